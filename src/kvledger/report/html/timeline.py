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
    accounts that are ever above zero.
    """

    start_seconds: list[float]
    end_seconds: float
    ratio: dict[str, list[float]]
    running: list[float]
    waiting: list[float]
    peak_used_ratio: list[float]
    peak_held_ratio: list[float]
    preemptions: list[int]
    joined: int


def timeline_of(points: Sequence[SavedPoint], *, most: int) -> Timeline | None:
    """Return the columns of a timeline with about ``most`` stretches; None when there is none."""
    if not points:
        return None
    whole = _with_idle(points)
    joined = max(1, -(-len(whole) // most))
    rows = join_points(whole, joined)
    used = [account for account in Account if any(row.ratio.get(account, 0.0) for row in rows)]
    digits = _time_digits(rows[-1].start_seconds + rows[-1].seconds)
    return Timeline(
        start_seconds=[round(row.start_seconds, digits) for row in rows],
        end_seconds=round(rows[-1].start_seconds + rows[-1].seconds, digits),
        ratio={str(a): [round(row.ratio.get(a, 0.0), _DIGITS) for row in rows] for a in used},
        running=[round(row.running, 2) for row in rows],
        waiting=[round(row.waiting, 2) for row in rows],
        peak_used_ratio=[round(row.peak_used_ratio, _DIGITS) for row in rows],
        peak_held_ratio=[round(row.peak_held_ratio, _DIGITS) for row in rows],
        preemptions=[row.preemptions for row in rows],
        joined=joined,
    )


def join_points(points: Sequence[SavedPoint], count: int) -> list[SavedPoint]:
    """Join every ``count`` neighbours: means weighted by time, the largest peak, the last running total."""
    if count == 1:
        return list(points)
    return [_join(points[at : at + count]) for at in range(0, len(points), count)]


def _join(points: Sequence[SavedPoint]) -> SavedPoint:
    seconds = sum(p.seconds for p in points)

    def mean(values: Sequence[float], of: Sequence[SavedPoint] = points) -> float:
        weights = [p.seconds or 1e-12 for p in of]
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)

    told = [p for p in points if p.ratio]
    return SavedPoint(
        start_seconds=points[0].start_seconds,
        seconds=seconds,
        ratio={a: mean([p.ratio.get(a, 0.0) for p in told], told) for a in map(str, Account)} if told else {},
        running=mean([p.running for p in points]),
        waiting=mean([p.waiting for p in points]),
        peak_used_ratio=max(p.peak_used_ratio for p in points),
        peak_held_ratio=max(p.peak_held_ratio for p in points),
        peak_external_ratio=max(p.peak_external_ratio for p in points),
        peak_running=max(p.peak_running for p in points),
        peak_waiting=max(p.peak_waiting for p in points),
        preemptions=points[-1].preemptions,
        steps=sum(p.steps for p in points),
    )


def _with_idle(points: Sequence[SavedPoint]) -> list[SavedPoint]:
    """Put a stretch without requests wherever nothing ran between two stretches.

    The pool is free then; where a prefix cache was ever filled, what it holds meanwhile is not in the result, so the
    stretch has no shares at all.
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
                    ratio={} if caches else {str(Account.FREE): 1.0},
                    running=0,
                    waiting=0,
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
