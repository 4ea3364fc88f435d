"""Metrics and periodic lines from public reports; those of vLLM's ``/metrics`` are tested beside its reader."""

import json

import pytest

from kvledger.engines.facts import Engine, SampleKind
from kvledger.engines.llamacpp.metrics import read_metrics as read_llamacpp
from kvledger.engines.llamacpp.metrics import read_slots
from kvledger.engines.sglang.metrics import read_metrics as read_sglang
from tests.engines.log_samples import READERS


@pytest.fixture(scope="module")
def cases(shared):
    lines = (shared / "cases" / "handed.jsonl").read_text().splitlines()
    return {case["id"]: case for case in map(json.loads, lines) if case["kind"] == "K2"}


def samples(cases, case_id, engine):
    return READERS[engine]("\n".join(cases[case_id]["printed"])).samples


def values(found, *names):
    return [tuple(getattr(sample, name).value for name in names) for sample in found]


def test_two_vllm_records_on_one_line(cases):
    found = samples(cases, "K2-005", Engine.VLLM)
    expected = [(8, 0, 0.912, 239.2), (8, 0, 0.916, 239.2), (8, 0, 0.919, 240.0)]
    names = ("running", "waiting", "usage_ratio", "generation_tokens_per_second")
    assert values(found, *names) == [pytest.approx(row) for row in expected]
    assert [s.seconds - found[0].seconds for s in found] == [0, 10, 20]
    growth = (found[2].usage_ratio.value - found[0].usage_ratio.value) / 2
    assert 2392 / growth == pytest.approx(cases["K2-005"]["derived"]["implied_pool_tokens"], rel=0.06)


def test_running_and_waiting_add_up(cases):
    found = samples(cases, "K2-006", Engine.VLLM)
    assert values(found, "running", "waiting") == [(10, 90), (16, 84), (34, 66)]
    assert values(found, "prompt_tokens_per_second", "usage_ratio") == [
        pytest.approx(row) for row in ((23998.2, 0.193), (23999.9, 0.309), (24000.7, 0.654))
    ]
    assert {s.origin for s in found} == {"APIServer"}
    assert [s.seconds - found[0].seconds for s in found] == [0, 10, 40]


def test_the_wording_of_v0(cases):
    found = samples(cases, "K2-007", Engine.VLLM)
    assert values(found, "running", "swapped", "waiting", "host_usage_ratio") == [(16, 0, 0, 0)] * 2
    assert values(found, "usage_ratio") == [pytest.approx((0.921,)), pytest.approx((0.927,))]
    assert found[1].seconds - found[0].seconds == 6


def test_a_dry_run_forces_no_blocks(cases):
    """The override stands before the memory line: it belongs to the profiling of CUDA graphs."""
    (start,) = READERS[Engine.VLLM]("\n".join(cases["K2-012"]["printed"])).startups
    assert not start.notices
    assert start.pools[0].blocks is None
    assert start.pools[0].size_bytes.holds(8.29 * 2**30)


def test_sglang_of_0_4_leaves_the_pool_an_interval(cases):
    (snapshot,) = read_sglang("\n".join(cases["K2-013"]["printed"]))
    low, high = cases["K2-013"]["derived"]["pool_tokens_range"]
    assert (snapshot.running.value, snapshot.waiting.value) == (162, 2826)
    (pool,) = snapshot.pools
    assert pool.used.value == 123_859
    assert (pool.usage_ratio.low, pool.usage_ratio.high) == pytest.approx((0.275, 0.285))
    assert low <= pool.capacity.low <= low + 1
    assert high - 1 <= pool.capacity.high <= high
    assert pool.capacity.accuracy == "derived"
    assert pool.cached is None


def test_a_decode_line_of_sglang(cases):
    (found,) = samples(cases, "K2-015", Engine.SGLANG)
    assert values([found], "running", "tokens", "usage_ratio", "waiting") == [(6, 1920, 0.94, 5)]
    assert (found.kind, found.origin) == (SampleKind.DECODE, "TP0")
    low, high = found.tokens.value / found.usage_ratio.high, found.tokens.value / found.usage_ratio.low
    assert [int(low), int(high)] == cases["K2-015"]["derived"]["pool_tokens_range"]


def test_a_decode_line_of_a_data_parallel_rank(cases):
    (found,) = samples(cases, "K2-016", Engine.SGLANG)
    assert values([found], "running", "tokens", "usage_ratio", "swapped", "waiting") == [(1, 2765, 0.01, 0, 0)]
    assert (found.engine_index, found.origin) == (5, "DP5 TP5")


def test_llama_cpp_with_its_old_gauge_and_a_slot_without_tokens(cases):
    text = "\n".join(cases["K2-018"]["printed"])
    (snapshot,) = read_llamacpp(text)
    assert (snapshot.running.value, snapshot.waiting.value) == (1, 2)
    assert (snapshot.prompt_tokens_total.value, snapshot.generation_tokens_total.value) == (2500, 1500)
    assert snapshot.pools[0].usage_ratio.value == 0.25
    assert snapshot.others["llamacpp:n_decode_total"] == 1000
    slots = read_slots(text.partition("/slots: ")[2])
    assert slots.slots[0].capacity_tokens.value == 77_824
    assert slots.slots[0].tokens is None
    assert slots.missing == ("/slots[0].n_prompt_tokens",)
