"""What a workload promises, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from kvledger.errors import TraceError
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, Workload, replay
from kvledger.testing import workloads

from .by_hand import workload

ONE = workload((0, 4, 3), (1, 2, 2))
NONE = Workload(arrival_seconds=np.zeros(0), prompt_tokens=np.zeros(0, np.int32), output_tokens=np.zeros(0, np.int32))


@given(workloads())
def test_what_the_strategy_draws_is_a_workload(drawn):
    assert drawn.check() is drawn
    assert drawn.longest_tokens >= 2
    assert drawn.span_seconds >= 0


def test_length_span_and_longest_request():
    assert (len(ONE), ONE.span_seconds, ONE.longest_tokens) == (2, 1.0, 7)


def test_an_empty_workload_is_one():
    assert NONE.check() is NONE
    assert (len(NONE), NONE.span_seconds, NONE.longest_tokens) == (0, 0.0, 0)


def test_an_empty_workload_replays_to_nothing():
    outcome = replay(
        NONE, parse_policy("paged"), pool=Pool(bytes_per_token=1, num_blocks=1), settings=Settings(max_model_len=8)
    )
    assert (outcome.requests, outcome.steps, outcome.makespan_seconds, outcome.timeline) == (0, 0, 0.0, [])


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("prompt_tokens", np.array([4], np.int32), "has 1 row, arrivals have 2"),
        ("max_tokens", np.zeros(3, np.int32), "has 3 rows, arrivals have 2"),
        ("prompt_tokens", np.array([4, 0], np.int32), "the value 0, below 1"),
        ("output_tokens", np.array([-5, 1], np.int32), "the value -5, below 1"),
        ("max_tokens", np.array([-1, 1], np.int32), "the value -1, below 0"),
        ("prompt_tokens", np.array([4, 2**31], np.int64), "above 2147483647"),
        ("output_tokens", np.array([1.5, 2.0]), "float64, not integers"),
        ("arrival_seconds", np.array([0.0, np.nan]), "not a finite number"),
        ("arrival_seconds", np.array([-np.inf, 0.0]), "not a finite number"),
        ("arrival_seconds", np.array([1.0, 0.5]), "go backwards"),
        ("arrival_seconds", np.array([0.0, 1e300]), "more than 1099511627776"),
        ("arrival_seconds", np.array([-1e15, 0.0]), "more than 1099511627776"),
    ],
)
def test_a_column_that_breaks_the_invariant_is_refused_before_the_replay(column, values, message):
    broken = replace(ONE, **{column: values})
    with pytest.raises(TraceError, match=message):
        replay(
            broken,
            parse_policy("paged"),
            pool=Pool(bytes_per_token=1, num_blocks=9),
            settings=Settings(max_model_len=8),
        )


def test_arrivals_that_go_backwards_far_into_a_long_trace_are_found():
    n = 2**20 + 2
    times = np.zeros(n)
    times[2**20] = -1.0
    lengths = np.ones(n, np.int32)
    with pytest.raises(TraceError, match="backwards"):
        Workload(arrival_seconds=times, prompt_tokens=lengths, output_tokens=lengths).check()


def test_longer_integers_are_taken_as_they_are():
    wide = replace(ONE, prompt_tokens=np.array([4, 2], np.int64), arrival_seconds=np.array([0, 1], np.int64))
    outcome = replay(
        wide, parse_policy("paged@1"), pool=Pool(bytes_per_token=1, num_blocks=9), settings=Settings(max_model_len=8)
    )
    assert outcome.prompt_tokens == 6
