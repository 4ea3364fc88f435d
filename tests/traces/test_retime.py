import math

import pytest

from kvledger.errors import UsageError
from kvledger.traces import synthesise, with_rate

TRACE = synthesise("synthetic:chat,requests=20000,turns=2")


def test_new_arrivals_have_the_rate_and_leave_everything_else() -> None:
    drawn = with_rate(TRACE, 4.0, seed=1)
    assert drawn.workload.span_seconds == pytest.approx(5000, rel=0.03)
    assert (drawn.workload.prompt_tokens == TRACE.workload.prompt_tokens).all()
    assert drawn.workload.content is TRACE.workload.content
    assert "Poisson, 4 a second, seed 1" in drawn.notes[-1]


def test_an_infinite_rate_puts_all_arrivals_at_0() -> None:
    assert not with_rate(TRACE, math.inf).workload.arrival_seconds.any()


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="not above 0"):
        with_rate(TRACE, rate)


def test_arrivals_drawn_in_pieces_are_those_drawn_at_once(monkeypatch) -> None:
    whole = with_rate(TRACE, 4.0, seed=1).workload.arrival_seconds
    monkeypatch.setattr("kvledger.traces.retime._PIECE", 999)
    assert (with_rate(TRACE, 4.0, seed=1).workload.arrival_seconds == whole).all()
