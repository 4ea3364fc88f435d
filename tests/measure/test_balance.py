"""The law of one instant: bounds that hold whatever the counters leave open."""

from dataclasses import replace

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from tests.findings.test_handed_complaints import scrape


def balance_of(longest, **load):
    meter = Meter(complete=lambda shape, _: replace(shape, max_model_len=longest))
    one_server = "\nprocess_start_time_seconds 1.0\n"
    (reading,) = meter.take(read_vllm_metrics(scrape(**load) + one_server), seconds=0.0)
    return reading.balance


@pytest.mark.parametrize("waiting", [0, 5])
def test_no_request_that_runs_or_waits_has_more_than_the_longest_length(waiting):
    """100,000 tokens entered and did not end: at most 1,000 are of each of 30 requests, whoever was lost."""
    found = balance_of(1000, held=990, running=30, waiting=waiting, tokens=100_000)
    assert found.live.high <= (30 + waiting) * 1000
    assert found.live.low <= found.live.high


def test_sharing_saves_at_most_what_all_but_one_request_could_store():
    found = balance_of(1000, held=10, running=3, waiting=0, tokens=100_000)
    assert found.used.high == 160
    assert found.shared_saving.high <= 2 * 160
    assert balance_of(1000, held=10, running=1, waiting=0, tokens=100_000).shared_saving.high == 0
