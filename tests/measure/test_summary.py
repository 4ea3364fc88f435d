"""One engine over a window: means over busy samples."""

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.live.view import line_of
from kvledger.measure.limits import LimitName, check_limits
from kvledger.measure.meter import Meter
from kvledger.measure.summary import summarise
from kvledger.report.measure import MeasureReport, SourceReport
from kvledger.report.measure_json import measure_json
from kvledger.report.measure_text import measure_text
from kvledger.report.tables import render
from kvledger.units import percent, percents
from tests.findings.test_handed_complaints import scrape


def test_what_is_known_to_be_free_or_cached_is_not_unexplained():
    """980 of 1,000 usable blocks of 1,001 are free or hold reusable tokens, and which of the two is not told."""
    meter = Meter()
    meter.take(read_vllm_metrics(scrape(held=20, running=2, waiting=0, ended=500)), seconds=0.0)
    (reading,) = meter.settle()[0]
    found = summarise([reading], meter.spans(0))
    rows = {part.cause: part.amount for part in reading.sheet.unattributed}
    (open_tokens,) = (amount for cause, amount in rows.items() if cause.startswith("free or cached"))
    assert open_tokens > 15_000
    assert found.shares.unattributed_of_pool == pytest.approx((sum(rows.values()) - open_tokens) / 16_016)
    assert found.shares.unattributed_of_pool < 0.05


def test_the_verdict_the_table_the_line_and_the_limit_name_one_share_of_the_whole_pool():
    """900 of 1,001 blocks are 89.9 % of the pool, and 90.0 % of the blocks that requests can get."""
    meter = Meter()
    meter.take(read_vllm_metrics(scrape(held=900, running=60, waiting=3, ended=500)), seconds=0.0)
    (reading,) = meter.settle()[0]
    found = summarise([reading], meter.spans(0))
    text = render(measure_text(report_of(found)), width=100, color=False)
    (limit,) = check_limits(found, {LimitName.MAX_HELD: 0.5})
    assert "89.9 % is held" in found.verdict.sentence
    assert found.verdict.sentence in " ".join(text.split())
    assert "held 89.9 %" in line_of("server", reading)
    assert limit.low == limit.high == pytest.approx(900 / 1001)
    assert f"the engine's own gauge {percent(0.9)} of usable blocks" in " ".join(text.split())
    used = percents(*reading.sheet.share("used"), between=" - ")
    assert f"used {used}" in line_of("server", reading)
    assert f" {used} " in next(line for line in text.splitlines() if line.startswith("used "))


def test_block_tables_are_compared_at_the_same_sample_as_reservation():
    """At the fullest sample 60 requests hold 900 blocks; at the last one 2 hold 20."""
    meter = Meter()
    for seconds, held, running in ((0.0, 900, 60), (1.0, 20, 2)):
        text = scrape(held=held, running=running, waiting=0, ended=500)
        meter.take(read_vllm_metrics(text), seconds=seconds)
    found = summarise(meter.settle()[0], meter.spans(0))
    text = render(measure_text(report_of(found)), width=100, color=False)
    told = measure_json(report_of(found))["sources"][0]["engines"][0]["reservation"]
    row = next(line.split() for line in text.splitlines() if line.startswith("block tables  "))
    assert "the 60 requests of the fullest sample under reservation" in text
    assert row[2] == "14,400"
    assert (told["seconds"], told["running"], told["block_tables"]["held_tokens"]) == (0.0, 60, 14_400)
    assert int(row[-2].replace(",", "")) == told["block_tables_admit"] == 16_000 * 60 // 14_400


def report_of(summary):
    source = SourceReport(name="server", engines=(summary,), samples=summary.samples, missed=0)
    return MeasureReport(sources=(source,))
