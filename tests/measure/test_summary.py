"""One engine over a window: means over busy samples."""

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from kvledger.measure.summary import summarise
from tests.findings.test_handed_complaints import scrape


def test_what_is_known_to_be_free_or_cached_is_not_unexplained():
    """980 of 1,000 usable blocks are free or hold reusable tokens, and which of the two is not told."""
    meter = Meter()
    meter.take(read_vllm_metrics(scrape(held=20, running=2, waiting=0, ended=500)), seconds=0.0)
    (reading,) = meter.settle()[0]
    found = summarise([reading], meter.spans(0))
    rows = {part.cause: part.amount for part in reading.sheet.unattributed}
    (open_tokens,) = (amount for cause, amount in rows.items() if cause.startswith("free or cached"))
    assert open_tokens > 15_000
    assert found.shares.unattributed_of_pool == pytest.approx((sum(rows.values()) - open_tokens) / 16_000)
    assert found.shares.unattributed_of_pool < 0.05
