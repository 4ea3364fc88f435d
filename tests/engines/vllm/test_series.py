"""The spellings of vLLM's names: whatever collector a scrape went through, the ledger is the same."""

import re
from dataclasses import replace

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.engines.vllm.series import PREFIXES, is_series, wanted_pattern, wanted_series
from kvledger.measure.meter import Meter
from tests.measure.recorded import rows

BUSY = next(row["text"] for row in rows("async")[20:] if row["phase"] == "plain")
RAY = 'Component="core_worker",NodeAddress="10.0.0.7",SessionName="s",Version="2.53.0",'


def spelled(text, prefix):
    return re.sub(r"^((?:# (?:HELP|TYPE) )?)vllm:", rf"\g<1>{prefix}", text, flags=re.MULTILINE)


def by_ray(text, worker, *, total="_total"):
    """Return a scrape as Ray's exporter writes it: no colon, its own labels, and no other series."""
    kept = [line for line in spelled(text, "ray_vllm_").splitlines() if line.startswith("ray_vllm_")]
    kept = [
        line.replace("{", f'{{{RAY}WorkerId="{worker}",ReplicaId="r",', 1) for line in kept if "_created{" not in line
    ]
    return "".join(re.sub(r"_total\{", total + "{", line, count=1) + "\n" for line in kept)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_spelling_gives_the_same_engine(prefix):
    expected = read_vllm_metrics(BUSY)
    found = read_vllm_metrics(spelled(BUSY, prefix))
    assert found.engines == expected.engines
    assert found.is_multiprocess == prefix.startswith("ray")


def test_a_text_with_two_spellings_counts_nothing_twice():
    assert read_vllm_metrics(spelled(BUSY, "vllm_") + BUSY) == read_vllm_metrics(BUSY)


@pytest.mark.parametrize("total", ["_total", ""])
def test_counters_of_ray_are_read_with_and_without_their_ending(total):
    (expected,) = read_vllm_metrics(BUSY).engines
    (found,) = read_vllm_metrics(by_ray(BUSY, "w1", total=total)).engines
    assert found == replace(expected, replica="w1", cache_config=found.cache_config)
    assert found.cache_config.items() >= expected.cache_config.items()


def test_a_counter_written_with_and_without_its_ending_counts_once():
    whole, short = by_ray(BUSY, "w1"), by_ray(BUSY, "w1", total="")
    both = whole + "\n".join(line for line in short.splitlines() if line not in whole)
    assert read_vllm_metrics(both).engines == read_vllm_metrics(by_ray(BUSY, "w1")).engines


def test_the_workers_of_one_ray_node_are_engines_of_their_own():
    later = rows("async")[60]["text"]
    scrape = read_vllm_metrics(by_ray(later, "b") + by_ray(BUSY, "a"))
    assert [(engine.index, engine.replica) for engine in scrape.engines] == [(0, "a"), (1, "b")]
    alone = [Meter().take(read_vllm_metrics(by_ray(text, "a")), seconds=0.0)[0] for text in (BUSY, later)]
    together = Meter().take(scrape, seconds=0.0)
    assert [reading.balance for reading in together] == [reading.balance for reading in alone]
    assert all(reading.shape.blocks == 257 for reading in together)


def test_another_worker_in_the_same_place_begins_a_new_epoch():
    meter = Meter()
    epochs = [meter.take(read_vllm_metrics(by_ray(BUSY, worker)), seconds=0.0)[0].epoch for worker in "aab"]
    assert epochs == [0, 0, 1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm:anything 1", True),
        ("# HELP ray_vllm_request_prompt_tokens Tokens.", True),
        ("vllm_prompt_tokens_total 1", True),
        ("vllm_1  | INFO 05-01 10:00:00 Starting", False),
        ("vllm_router_requests_total 3", False),
        ("vllmx:num_requests_running 3", False),
        ("", False),
    ],
)
def test_lines_of_a_log_are_no_series(line, expected):
    assert is_series(line) is expected


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prometheus_server_is_asked_for_every_spelling(prefix):
    pattern = re.compile(wanted_pattern())
    for name in wanted_series(buckets=False):
        assert pattern.fullmatch(prefix + name)
        assert pattern.fullmatch(prefix + name.removesuffix("_total"))
    assert not pattern.fullmatch(prefix + "request_prompt_tokens_bucket")
    assert not pattern.fullmatch("node_" + prefix + "prompt_tokens_total")
