"""Timelines of the page: joined without losing peaks, with idle time in its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.report.html.saved import SavedPoint
from kvledger.report.html.timeline import join_points, timeline_of


def point(start, *, seconds=1.0, used=0.5, held=None, running=1.0):
    return SavedPoint(
        start_seconds=start,
        seconds=seconds,
        ratio={"used": used, "free": 1 - used},
        running=running,
        waiting=0.0,
        peak_used_ratio=used,
        peak_held_ratio=used if held is None else held,
        preemptions=int(start),
    )


shares = st.lists(st.floats(0, 1), min_size=1, max_size=60)


@given(shares, st.integers(1, 9))
def test_joining_keeps_the_mean_the_peak_and_the_end(values, count):
    points = [point(float(i), used=value) for i, value in enumerate(values)]
    joined = join_points(points, count)
    assert len(joined) == -(-len(points) // count)
    assert sum(p.ratio["used"] * p.seconds for p in joined) == pytest.approx(sum(values))
    assert max(p.peak_held_ratio for p in joined) == max(values)
    assert joined[-1].preemptions == points[-1].preemptions
    assert joined[-1].start_seconds + joined[-1].seconds == len(points)


def test_time_between_stretches_of_a_replay_is_an_empty_pool():
    line = timeline_of([point(0.0), point(5.0)], most=100, sampled=False)
    assert line.start_seconds == [0.0, 1.0, 5.0]
    assert line.ratio == {"used": [0.5, 0.0, 0.5], "free": [0.5, 1.0, 0.5]}
    assert line.running == [1.0, 0.0, 1.0]
    assert line.end_seconds == 6.0


def test_what_a_prefix_cache_holds_while_idle_is_not_made_up():
    cached = SavedPoint(
        start_seconds=0.0,
        seconds=1.0,
        ratio={"cached": 1.0},
        running=1,
        waiting=0,
        peak_used_ratio=0,
        peak_held_ratio=0,
    )
    line = timeline_of([cached, point(5.0)], most=100, sampled=False)
    assert [column[1] for column in line.ratio.values()] == [0.0, 0.0, 0.0]


def test_time_in_which_a_server_was_not_sampled_is_unknown():
    line = timeline_of([point(0.0), point(5.0)], most=100, sampled=True)
    assert line.running == [1.0, None, 1.0]
    assert [column[1] for column in line.ratio.values()] == [0.0, 0.0]


def test_a_timeline_is_reduced_to_what_is_asked_and_says_how():
    line = timeline_of([point(float(i)) for i in range(1000)], most=100, sampled=False)
    assert len(line.start_seconds) == 100
    assert line.joined == 10


def test_a_result_without_a_timeline_has_none():
    assert timeline_of([], most=10, sampled=False) is None
