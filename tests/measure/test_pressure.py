"""When a request may be computed again: after pressure, until it surely is not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvledger.engines.facts import HistogramReading
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.figure import Span
from kvledger.measure.pool import NullBlock, PoolShape, Structure
from kvledger.measure.pressure import PressureTracker

CACHING = {"enable_prefix_caching": "True"}


def shape(longest_blocks):
    return PoolShape(
        blocks=257,
        block_tokens=32,
        null_block=NullBlock.OUTSIDE,
        structure=Structure.ONE_GROUP,
        structure_source="",
        max_model_len=32 * longest_blocks,
    )


def at(held, *, steps=0, running=4, due=0, started=0, missed=0, config=CACHING, **changes):
    """Return (blocks held, counters): ``running`` requests emit a token each step, but for ``missed`` tokens."""
    counts = {"iteration_tokens_total": steps, "time_to_first_token_seconds": started, "request_prompt_tokens": 0}
    engine = VllmEngine(
        index=0,
        running=running,
        waiting=0,
        prompt_tokens=1000,
        generation_tokens=10_000 + running * steps - missed,
        query_tokens=1000 + due,
        histograms={n: HistogramReading(name=n, edges=(), counts=(), count=c, total=0) for n, c in counts.items()},
        cache_config=config,
    )
    return held, replace(engine, **changes)


def suspicious(*samples, longest_blocks=64, seconds=None, preempted=0):
    """Return, sample by sample, whether a request may be computed again."""
    tracker, found = PressureTracker(), []
    times = seconds or [float(n) for n in range(len(samples))]
    for now, (held, engine) in zip(times, samples, strict=True):
        found.append(tracker.ask(shape(longest_blocks), engine, held_blocks=held, seconds=now))
        balance = SimpleNamespace(preempted=Span(0, preempted))
        tracker.note(balance, is_idle=not engine.running and not engine.waiting, seconds=now)
    return found


def test_a_pool_with_room_for_what_was_due_preempted_nobody_however_long_requests_may_be():
    """Half of the pool is free; one request could fill it, but no more than 60 tokens were written since idle."""
    busy = [at(100, steps=15 * n, started=n) for n in range(1, 5)]
    assert suspicious(*busy, longest_blocks=250)[0]
    assert suspicious(at(0, running=0), *busy, longest_blocks=250) == [False] * 5


def test_a_pool_with_room_for_the_longest_request_is_not_under_pressure_while_nobody_leaves():
    assert suspicious(at(60), at(60, steps=10_000, due=5000)) == [False, False]


@pytest.mark.parametrize("left", [{"started": 90}, {"running": 3}])
def test_a_pool_may_have_been_full_before_somebody_left(left):
    assert suspicious(at(60), at(60, steps=10_000, due=5000, **left)) == [False, True]
    assert suspicious(at(60), at(60, steps=10, **left)) == [False, False]
    assert suspicious(at(60), at(60, steps=10_000, due=5000, **left), seconds=[0.0, 15.0]) == [False, False]


def test_what_is_due_may_not_have_fitted():
    begin = [at(0, running=0), at(60, steps=2, started=1)]
    assert suspicious(*begin, at(60, steps=3, started=2, due=200 * 32), longest_blocks=250) == [False, False, True]


def test_suspicion_ends_when_every_request_emits_at_every_step():
    tight = [at(254, steps=n, started=n) for n in range(2)]
    assert suspicious(*tight, at(80, steps=10, started=2), at(80, steps=20, started=2)) == [True, True, True, False]


def test_one_request_that_emits_nothing_keeps_the_suspicion():
    tight = [at(254, steps=n, started=n) for n in range(2)]
    easy = [at(80, steps=10 * n, started=2, missed=10 * n) for n in (1, 2)]
    assert suspicious(*tight, *easy) == [True] * 4


@pytest.mark.parametrize(("seconds", "still"), [(59.0, True), (61.0, False)])
def test_suspicion_lasts_a_minute_where_requests_come_and_go(seconds, still):
    samples = [at(254), at(80, steps=9, started=1), at(80, steps=19, started=2)]
    assert suspicious(*samples, seconds=[0.0, 1.0, seconds]) == [True, True, still]


def test_an_idle_moment_ends_it():
    assert suspicious(at(254), at(0, running=0, started=1), at(50, started=2)) == [True, True, False]


def test_a_request_that_may_wait_to_be_computed_again_is_pressure():
    assert suspicious(at(50), at(50, started=1), preempted=1) == [False, True]


@pytest.mark.parametrize("blind", [{"config": {}}, {"query_tokens": None}], ids=["not counted", "absent"])
def test_where_admissions_are_not_told_the_pool_needs_room_for_the_longest_request(blind):
    samples = [at(held, steps=n, started=n, **blind) for n, held in enumerate([100, 150, 200])]
    assert suspicious(*samples) == [False, False, True]


def test_proposed_tokens_are_no_proof_that_everyone_emits():
    tight = [at(254, steps=n, started=n) for n in range(2)]
    easy = [at(80, steps=10 * n, started=2, draft_tokens=5) for n in (1, 2)]
    assert suspicious(*tight, *easy) == [True] * 4
