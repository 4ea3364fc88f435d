"""Recording rules for SGLang, run by Prometheus: they say what one instant's sheet says."""

import pytest

from kvledger.engines.sglang.metrics import read_metrics
from kvledger.measure.snapshots import draw_snapshots
from kvledger.report.prometheus.rules import write_rules
from kvledger.report.prometheus.sglang import sglang_rules
from tests.engines.sglang.test_metrics import FRONT, FULL, MODEL, RANK, scrape
from tests.report.prometheus.promtool import finds_none, run, series_of

WHOSE = 'instance="a:8000",job="vllm",engine_type="unified",model_name="org/m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
OLD = scrape(RANK, num_running_reqs=3, num_queue_reqs=0, num_used_tokens=700, token_usage=0.07, page_size=16)
TEXTS = {
    "0.5.13 and later": FULL,
    "with a front end": FRONT + FULL,
    "0.5.9": OLD + scrape(RANK, max_total_num_tokens=10_000, decode_sum_seq_lens=650, context_len=4096),
    "pages of one token": FULL.replace(f"page_size{{{RANK}}} 16", f"page_size{{{RANK}}} 1"),
    "page in a label": FULL.replace("sglang:page_size", "sglang:x")
    + f'sglang:cache_config_info{{{RANK},page_size="16",num_pages="625"}} 1\n',
    "no decode batch told": FULL.replace("decode_sum_seq_lens", "x"),
    "idle": FULL.replace(f"reqs{{{RANK}}} 5", f"reqs{{{RANK}}} 0").replace(" 3000\n", " 0\n").replace(" 5000", " 8000"),
}


def rules():
    return write_rules([sglang_rules()], heading=())


@pytest.mark.parametrize("name", TEXTS)
def test_the_rules_say_what_the_sheet_of_the_instant_says(tmp_path, name):
    text = TEXTS[name]
    in_tokens = read_metrics(text.replace("kv_cache_memory_usage_gb", "x"))
    (drawn,) = (one for one in draw_snapshots(in_tokens) if one.sheet is not None)
    tests = []
    for figure in ("held", "used", "internal"):
        span = drawn.sheet.figure(figure).span
        ends = ("",) if figure == "held" else ("low_", "high_")
        for end in ends:
            value = span.high if end == "high_" else span.low
            tests.append((0, f"kvledger:{figure}_{end}tokens", {f"kvledger:{figure}_{end}tokens{{{WHOSE}}}": value}))
    for account, amount in drawn.sheet.ledger.accounts().items():
        if account.value not in ("reserved", "external"):
            series = f'kvledger:pool_tokens{{account="{account}"}}'
            labels = f'kvledger:pool_tokens{{{WHOSE},account="{account}"}}'
            tests.append((0, series, {labels: amount}))
    assert run(tmp_path, rules(), series_of([text]), tests) == ""


def test_what_reservation_would_hold(tmp_path):
    tests = [
        (0, "kvledger:reservation_tokens", {f'kvledger:reservation_tokens{{{WHOSE},policy="max"}}': 5 * 4096}),
        (
            0,
            "kvledger:admitted_requests",
            {
                f'kvledger:admitted_requests{{{WHOSE},policy="max"}}': 2,
                f'kvledger:admitted_requests{{{WHOSE},policy="block-tables"}}': 16,
            },
        ),
    ]
    assert run(tmp_path, rules(), series_of([FULL]), tests) == ""


def test_priorities_are_parts_of_the_total_beside_them(tmp_path):
    text = FULL + scrape(RANK + ',priority="1"', num_running_reqs=3, num_queue_reqs=1)
    tests = [(0, "kvledger:running_requests", {f"kvledger:running_requests{{{WHOSE}}}": 5})]
    assert run(tmp_path, rules(), series_of([text]), tests) == ""


@pytest.mark.parametrize(
    "text",
    [
        FULL + scrape(RANK, max_total_num_tokens_swa=8000, swa_used_tokens=4000),
        OLD,
        FULL.replace("kv_used_tokens", "x").replace("num_used_tokens", "y"),
        FULL.replace(" 3000\n", " -1\n"),
        scrape(MODEL, prompt_tokens_total=100),
    ],
    ids=["two pools", "size not told", "usage not told", "no data", "front end only"],
)
def test_what_one_number_does_not_tell_has_no_result(tmp_path, text):
    tests = [finds_none(f"kvledger:{name}", 1) for name in ("held_tokens", "used_low_tokens", "pool_tokens")]
    assert run(tmp_path, rules(), series_of([text]), tests) == ""
