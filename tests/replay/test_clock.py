"""How long a step takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import Error, UsageError
from kvledger.ledger import Accuracy
from kvledger.pool import parse_policy
from kvledger.replay import Clock, Pool, Settings, parse_clock, replay
from kvledger.replay.clock import STEPS, roofline_clock

from .by_hand import workload


def test_a_clock_adds_base_prefill_decode_and_reading():
    """0.01 + 100 * 1e-4 + 5 * 1e-3 + 1000 * 1e-5 = 0.035."""
    clock = parse_clock("0.01,1e-4,1e-3,1e-5")
    assert clock.seconds(prefill_tokens=100, decode_sequences=5, kv_tokens_read=1000) == pytest.approx(0.035)


def test_steps_are_one_second_each():
    assert parse_clock("steps") is STEPS
    assert STEPS.seconds(prefill_tokens=9, decode_sequences=9, kv_tokens_read=9) == 1.0
    assert STEPS.name == "steps"


@pytest.mark.parametrize(
    "text",
    ["", "step", "1,2,3", "1,2,3,4,5,6", "1,2,3,4,-5", "a,b,c,d",
     "1;2;3;4", "nan,0,0,0", "inf,0,0,0", "1,inf,0,0", "1,0,0,-1e-9",
     "-1,0,0,0", "0,1,1,1", "1e7,0,0,0", "1,0,0,1e300", "1,,0,0", "1," * 10_000],
)  # fmt: skip
def test_what_is_no_clock_is_refused_briefly(text):
    with pytest.raises(UsageError) as caught:
        parse_clock(text)
    assert len(caught.value.message) < 200


@given(st.text(max_size=30) | st.lists(st.floats(), min_size=4, max_size=4).map(lambda v: ",".join(map(str, v))))
def test_any_text_is_a_clock_that_runs_forwards_or_an_error_of_ours(text):
    try:
        clock = parse_clock(text)
    except Error:
        return
    assert clock.seconds(prefill_tokens=10**9, decode_sequences=10**6, kv_tokens_read=10**12) > 0


@pytest.mark.parametrize("values", [{"base": 0.0}, {"base": -1.0}, {"base": float("nan")}, {"base": 1.0, "c": 1e9}])
def test_a_clock_built_in_code_is_checked_too(values):
    with pytest.raises(UsageError):
        Clock(**values)


def test_a_roofline_reads_the_weights_once_and_computes_two_flop_a_parameter():
    """8e9 parameters, 2e12 B/s, 300e12 FLOP/s, 131,072 B a token.

    base 1 ms + 16e9 B / 1.6e12 B/s = 11 ms; a token 16e9 FLOP / 150e12 FLOP/s; reading 131,072 B / 1.6e12 B/s.
    """
    clock = roofline_clock(
        name="x", parameters=8e9, bandwidth_bytes_per_second=2e12, flops_per_second=300e12, bytes_per_token=131_072
    )
    assert clock.base == pytest.approx(0.011)
    assert clock.a == clock.b == pytest.approx(16e9 / 150e12)
    assert clock.c == pytest.approx(131_072 / 1.6e12)
    assert clock.accuracy is Accuracy.MODELLED


def test_a_block_costs_tokens_more_only_where_there_are_blocks():
    """c 2: in blocks of 8 with an overhead of 4, a token takes 2 x (1 + 4 / 8) = 3."""
    clock = Clock(base=1.0, c=2.0, block_overhead_tokens=4.0)
    assert clock.per_token_read(8) == 3.0
    assert clock.per_token_read(None) == 2.0
    for policy, seconds in (("paged@8", 1 + 3 * 10), ("no-evict@8", 1 + 3 * 10), ("max", 1 + 2 * 10), ("paged@2", 61)):
        outcome = replay(
            workload((0, 10, 1)),
            parse_policy(policy),
            pool=Pool(bytes_per_token=1, capacity_tokens=64),
            settings=Settings(max_model_len=32, clock=clock),
        )
        assert outcome.makespan_seconds == seconds, policy


def test_a_clock_keeps_its_speed_at_the_block_size_of_its_run():
    fitted = Clock(base=1.0, c=3.0).with_overhead(4.0, block_tokens=8)
    assert (fitted.per_token_read(8), fitted.c) == (3.0, 2.0)


def test_an_overhead_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="as -1 tokens more, not from 0 to 1024"):
        Clock(base=1.0, block_overhead_tokens=-1.0)
