"""A log alone: capacity from the start-up lines, the three-minute check from the periodic ones."""

import json

import pytest

from kvledger.engines.facts import Engine
from kvledger.engines.vllm.log import read_log
from kvledger.measure.log_check import check_log
from kvledger.measure.verdict import Diagnosis

START = (
    "INFO 11-29 23:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='org/tiny', "
    "dtype=torch.bfloat16, max_seq_len=2048\n"
    "INFO 11-29 23:00:01 [gpu_worker.py:1] Available KV cache memory: 16.5 GiB\n"
    "INFO 11-29 23:00:01 [kv_cache_utils.py:1] GPU KV cache size: 135,168 tokens, "
    "Maximum concurrency for 2,048 tokens per request: 66.00x\n"
)
LINE = (
    "INFO 11-29 23:0{minute}:00 [loggers.py:1] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation "
    "throughput: {rate} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage}%, "
    "Prefix cache hit rate: 0.0%\n"
)


def lines(*rows):
    return "".join(
        LINE.format(minute=n + 1, rate=rate, running=running, waiting=waiting, usage=usage)
        for n, (running, waiting, usage, rate) in enumerate(rows)
    )


def one(text):
    (check,) = check_log(read_log(text))
    return check


def test_a_start_alone_gives_capacity_and_concurrency():
    check = one(START)
    assert (check.engine, check.version, check.model) == (Engine.VLLM, "0.32.0", "tiny")
    assert (check.tokens.value, check.max_model_len.value, check.concurrency.value) == (135_168, 2048, 66.0)
    assert check.size_bytes.holds(16.5 * 2**30)
    assert check.load is None


def test_the_busiest_line_gives_what_is_held_and_what_reservation_would_take():
    """20 requests of 2,048 tokens are 40,960 of 135,168: 30.3 %."""
    load = one(START + lines((10, 0, 5.0, 100), (20, 0, 9.1, 200), (4, 0, 2.0, 50))).load
    assert (load.lines, load.running) == (3, 20)
    assert load.held_ratio == pytest.approx((0.0905, 0.0915))
    assert load.reserved_ratio == pytest.approx(40_960 / 135_168)
    assert load.mean_held_ratio == pytest.approx((0.05 + 0.091 + 0.02) / 3)
    assert load.verdict.diagnosis is Diagnosis.ROOM


def test_used_is_held_less_at_most_a_tail_for_each_running_request():
    """The gauge is of 8,447 usable blocks or of all 8,448, by release: of the pool it may be a block less."""
    text = START.replace("max_seq_len=2048", "max_seq_len=2048, block_size=16")
    text = "INFO non-default args: {'block_size': 16}\n" + text
    load = one(text + lines((20, 0, 9.1, 200))).load
    assert load.used_ratio == pytest.approx((0.0905 - 16 / 135_168 - 20 * 15 / 135_168, 0.0915))
    assert load.held_ratio == pytest.approx((0.0905 - 16 / 135_168, 0.0915))


def test_requests_that_wait_while_memory_is_free_wait_for_something_else():
    load = one(START + lines((256, 40, 30.0, 900), (256, 41, 31.0, 900))).load
    assert load.verdict.diagnosis is Diagnosis.OTHER_LIMIT


def test_a_full_pool_is_full():
    assert one(START + lines((60, 10, 97.0, 900), (60, 9, 98.0, 900))).load.verdict.diagnosis is Diagnosis.FULL


def test_running_requests_without_tokens_are_a_stall():
    load = one(START + lines((8, 3, 99.0, 0.0), (8, 3, 99.0, 0.0))).load
    assert load.verdict.diagnosis is Diagnosis.STALLED


def test_only_the_last_start_counts():
    check = one(START + lines((60, 0, 97.0, 900)) + START.replace("135,168", "270,336") + lines((1, 0, 1.0, 5)))
    assert check.tokens.value == 270_336
    assert check.load.lines == 1
    assert any("earlier start" in note for note in check.notes)


def test_handed_logs_of_users_get_the_stated_answer(shared):
    cases = [json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines()]
    printed = {case["id"]: "\n".join(case["printed"]) for case in cases}
    glued = one(printed["K2-005"]).load
    assert (glued.lines, glued.running) == (3, 8)
    assert glued.held_ratio[0] <= 0.919 <= glued.held_ratio[1]
    growing = one(printed["K2-006"]).load
    assert (growing.running, growing.waiting) == (34, 66)
    assert one(printed["K2-007"]).load.verdict.diagnosis is Diagnosis.FULL
    length = one(printed["K3-054"])
    assert (length.tokens.value, length.concurrency.value) == (75_278, 9.19)


def test_every_handed_log_is_checked_without_a_fault(shared):
    from kvledger.engines.recognise import TextKind, recognise

    checked = 0
    for line in (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        text = "\n".join(case["printed"])
        found = recognise(text)
        if found is None or found.kind is not TextKind.LOG or found.engine is not Engine.VLLM:
            continue
        for check in check_log(read_log(text)):
            checked += 1
            assert check.load is None or 0 <= check.load.held_ratio[0] <= check.load.held_ratio[1] <= 1
    assert checked > 10


def test_preemptions_that_no_line_tells_are_not_zero():
    line = (
        "INFO 01-01 00:00:0%d loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
        "Avg generation throughput: 9.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, "
        "GPU KV cache usage: 50.0%%, Prefix cache hit rate: 0.0%%"
    )
    (check,) = check_log(read_log("\n".join(line % second for second in (1, 2))))
    assert check.load.preemptions is None


def test_without_a_block_size_what_is_held_is_the_most_that_holds_tokens():
    """vLLM's START tells no block size, so how much of what is held are tails is not known."""
    load = one(START + lines((38, 0, 31.4, 400.0))).load
    assert load.used_ratio is None
    assert "at most 31.5 % of the pool holds tokens" in load.verdict.sentence
