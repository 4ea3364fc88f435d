"""Ten samples a second for an hour and longer: what is kept is bounded, whatever the server does."""

from pathlib import Path

import pytest

from kvledger.engines.vllm.metrics import VllmScrape
from kvledger.live.view import WatchModel
from kvledger.measure.meter import Meter
from kvledger.measure.recording import RecordedSample
from kvledger.sources.recordings import Recorder, read_recording
from tests.measure.recorded import scrapes, without_end


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


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
