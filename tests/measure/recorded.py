"""Recorded scrapes of real vLLM servers, with what the only client knew at the same instants."""

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from kvledger.measure.tear import TearDetector

COUNTERS = ("prompt_tokens", "generation_tokens", "cached_tokens", "query_tokens", "hit_tokens", "preemptions")
"""What grows while a server runs."""
DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0-scrapes"


@cache
def rows(name):
    """Return the samples of one recording: scrape, phase and the client's open requests before and after."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return tuple(json.loads(line) for line in stream)


@cache
def whole_rows(name):
    """Return the rows whose scrape is not torn."""
    detector = TearDetector()
    return tuple(
        row for row, scrape in zip(rows(name), scrapes(name), strict=True) if not detector.is_torn(scrape.engines[0])
    )


@cache
def scrapes(name):
    return tuple(read_vllm_metrics(row["text"]) for row in rows(name))


def is_busy(scrape):
    engine = scrape.engines[0]
    return bool(engine.running or engine.waiting)


def measure(name, *, phases=None, only_busy=False, settled=True):
    """Measure a whole recording; return (row, reading) of every sample that is asked for.

    ``only_busy`` leaves out idle samples before measuring: a server that is never seen idle.
    """
    return [
        (row, reading)
        for row, reading in _measure(name, only_busy, settled)
        if phases is None or row["phase"].partition("/")[0] in phases
    ]


@cache
def _measure(name, only_busy, settled):
    chosen = [
        (row, scrape) for row, scrape in zip(rows(name), scrapes(name), strict=True) if is_busy(scrape) or not only_busy
    ]
    meter = Meter()
    online = [meter.take(scrape, seconds=row["seconds"])[0] for row, scrape in chosen]
    readings = meter.settle()[0] if settled else online
    return [(row, reading) for (row, _), reading in zip(chosen, readings, strict=True)]


def client_tokens(row):
    """Return the fewest and the most tokens that can have been alive while the scrape was answered.

    A request that is open before and after was alive with at least its earlier length; one that began or ended
    meanwhile may have been, with at most its later length.
    """
    before, after = row["before"], row["after"]
    low = sum(length for key, length in before.items() if key in after)
    high = sum(max(before.get(key, 0), after.get(key, 0)) for key in {**before, **after})
    return low, high


def without_a_ledger():
    """A gauge that is no whole number of blocks, as of a copy that rounds."""
    lines = {"num_requests_running": "3.0", "num_requests_waiting": "1.0", "kv_cache_usage_perc": "0.25"}
    text = "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in lines.items())
    return text + 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="8811"} 1.0\n'


def without_end(name="async"):
    """Yield the scrapes of a recording again and again, as of one server whose counters only grow."""
    last = scrapes(name)[-1].engines[0]
    cycle = 0
    while True:
        for row in rows(name):
            scrape = read_vllm_metrics(row["text"])
            (engine,) = scrape.engines
            counts = {key: getattr(engine, key) + cycle * getattr(last, key) for key in COUNTERS}
            histograms = {
                key: replace(
                    one,
                    count=one.count + cycle * last.histograms[key].count,
                    total=one.total + cycle * last.histograms[key].total,
                )
                for key, one in engine.histograms.items()
            }
            yield replace(scrape, engines=(replace(engine, **counts, histograms=histograms),))
        cycle += 1
