"""A timeline as columns, joined until it is small enough; peaks are kept, and idle time is shown as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvledger.ledger import Account
from kvledger.report.html.saved import SavedPoint

__all__ = ["Timeline", "join_points", "timeline_of"]

_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Stretches one after the other, as columns.

    ``joined`` says how many stretches of the result became one here (1: none was reduced). ``ratio`` holds only
    accounts that are ever above zero; where all of them are zero, nothing is known of the stretch. ``sampled`` tells
    samples of a server, whose gaps were not looked at, from a replay, whose gaps are idle.
    """

    start_seconds: list[float]
    end_seconds: float
    ratio: dict[str, list[float]]
    running: list[float | None]
    waiting: list[float | None]
    peak_used_ratio: list[float]
    peak_held_ratio: list[float]
    preemptions: list[int | None]
    joined: int
    sampled: bool


def timeline_of(points: Sequence[SavedPoint], *, most: int, sampled: bool) -> Timeline | None:
    """Return the columns of a timeline with about ``most`` stretches; None when there is none."""
    if len(points) < (2 if sampled else 1) or points[-1].start_seconds + points[-1].seconds <= 0:
        return None  # one sample is an instant, not a time
    whole = _with_gaps(points, sampled=sampled)
    joined = max(1, -(-len(whole) // most))
    rows = join_points(whole, joined)
    used = [account for account in Account if any(row.ratio.get(account, 0.0) for row in rows)]
    digits = _time_digits(rows[-1].start_seconds + rows[-1].seconds)
    return Timeline(
        start_seconds=[round(row.start_seconds, digits) for row in rows],
        end_seconds=round(rows[-1].start_seconds + rows[-1].seconds, digits),
        ratio={str(a): [round(row.ratio.get(a, 0.0), _DIGITS) for row in rows] for a in used},
        running=[_rounded(row.running) for row in rows],
        waiting=[_rounded(row.waiting) for row in rows],
        peak_used_ratio=[round(row.peak_used_ratio, _DIGITS) for row in rows],
        peak_held_ratio=[round(row.peak_held_ratio, _DIGITS) for row in rows],
        preemptions=[row.preemptions for row in rows],
        joined=joined,
        sampled=sampled,
    )


def join_points(points: Sequence[SavedPoint], count: int) -> list[SavedPoint]:
    """Join every ``count`` neighbours: means weighted by time, the largest peak, the last running total."""
    if count == 1:
        return list(points)
    return [_join(points[at : at + count]) for at in range(0, len(points), count)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _join(points: Sequence[SavedPoint]) -> SavedPoint:
    told = [p for p in points if p.ratio]
    return SavedPoint(
        start_seconds=points[0].start_seconds,
        seconds=points[-1].start_seconds + points[-1].seconds - points[0].start_seconds,
        ratio={str(a): _mean([(p.ratio.get(a, 0.0), p.seconds) for p in told]) or 0.0 for a in Account} if told else {},
        running=_mean([(p.running, p.seconds) for p in points]),
        waiting=_mean([(p.waiting, p.seconds) for p in points]),
        peak_used_ratio=max(p.peak_used_ratio for p in points),
        peak_held_ratio=max(p.peak_held_ratio for p in points),
        preemptions=points[-1].preemptions,
    )


def _mean(values: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, seconds or 1e-12) for value, seconds in values if value is not None]
    whole = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / whole if known else None


def _with_gaps(points: Sequence[SavedPoint], *, sampled: bool) -> list[SavedPoint]:
    """Put a stretch of its own wherever there is time between two stretches.

    In a replay nothing ran then, and the pool is free; where a prefix cache was ever filled, what it holds meanwhile is
    not in the result, so the stretch has no shares at all. Nor has it where a server was not sampled.
    """
    caches = any(point.ratio.get(str(Account.CACHED), 0.0) for point in points)
    rows = [points[0]]
    for before, point in pairwise(points):
        end = before.start_seconds + before.seconds
        if point.start_seconds - end > 1e-6 * max(1.0, end):
            rows.append(
                SavedPoint(
                    start_seconds=end,
                    seconds=point.start_seconds - end,
                    ratio={} if caches or sampled else {str(Account.FREE): 1.0},
                    running=None if sampled else 0.0,
                    waiting=None if sampled else 0.0,
                    peak_used_ratio=0,
                    peak_held_ratio=0,
                    preemptions=before.preemptions,
                )
            )
        rows.append(point)
    return rows


def _time_digits(end_seconds: float) -> int:
    """Return how many decimals of a second can be told apart on a chart of that length."""
    return 3 if end_seconds < 1e4 else 1 if end_seconds < 1e6 else 0
