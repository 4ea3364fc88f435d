"""Ten samples a second for an hour and longer: what is kept is bounded, whatever the server does."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvledger.engines.vllm.metrics import VllmScrape, read_vllm_metrics
from kvledger.live.view import WatchModel
from kvledger.measure.meter import Meter
from kvledger.measure.recording import RecordedSample
from kvledger.sources.recordings import Recorder, read_recording
from tests.measure.recorded import rows, scrapes

COUNTERS = ("prompt_tokens", "generation_tokens", "cached_tokens", "query_tokens", "hit_tokens", "preemptions")


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


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


@pytest.mark.slow
def test_an_hour_at_ten_samples_a_second_grows_by_less_than_ten_megabytes(tmp_path):
    """Measured, shown and recorded. A third of an hour is run: the window of samples is full long before its end."""
    meter, view, source = Meter(), WatchModel(), without_end()
    with Recorder(str(tmp_path / "r")) as recorder:
        for number in range(12_500):
            sample = RecordedSample(seconds=number / 10, source=0, scrape=next(source))
            recorder.write(sample)
            for reading in meter.take(sample.scrape, seconds=sample.seconds):
                view.add("server", 0, reading)
            view.lines(width=100)
            if number == 200:
                begin = resident_mb()
            if number == 11_000:
                full = resident_mb()
        assert reading.epoch == 0
        assert reading.balance.live.high < 2**40
        assert resident_mb() - begin < 10
        assert resident_mb() - full < 1
    assert (tmp_path / "r").stat().st_size < 12_500 * 100
    assert sum(1 for _ in read_recording(tmp_path / "r")) == 12_500


def test_a_server_that_crashes_in_a_loop_is_followed_with_bounded_memory():
    idle = scrapes("async")[0]
    meter = Meter()
    for number in range(1200):
        meter.take(VllmScrape(engines=idle.engines, start_seconds=1000.0 * number), seconds=10.0 * number)
    assert len(meter.spans(0)) == 500
    assert meter.settle()[0][-1].epoch == 1199
