"""Lengths of the requests that ended between two samples: drawn from buckets, their sums as recorded.

Of an interval with one request the length is its sum. The others are drawn evenly inside the buckets of their minute,
less those already known, and handed out so that intervals with long requests get the long ones; then each interval is
scaled to its sum: x_i = 1 + (S - n) v_i / sum(v), rounded by largest remainders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.traces.recorded import Minute, Series

__all__ = ["count_untold", "draw_lengths", "hand_out_limits"]

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]
_LONGEST = 1e9


def draw_lengths(series: Series, generator: np.random.Generator) -> _Ints:
    """Draw one length for every request of a series, in the order of the intervals.

    The lengths of an interval add up to its recorded sum, or to the number of its requests where that is more.
    """
    counts, totals = np.array(series.counts, dtype=np.int64), np.rint(np.array(series.totals)).astype(np.int64)
    overall = _overall(series)
    parts, begin = [], 0
    for minute in series.minutes:
        n, sums = counts[begin : minute.end], totals[begin : minute.end]
        begin = minute.end
        if n.any():
            parts.append(_draw_minute(n, np.maximum(sums, n), minute, overall, generator))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _draw_minute(n: _Ints, sums: _Ints, minute: Minute, overall: Minute, generator: np.random.Generator) -> _Ints:
    interval = np.repeat(np.arange(len(n)), n)
    lengths = sums[interval]
    several = n[interval] > 1
    if several.any():
        owner = interval[several]
        drawn = _draw_values(lengths[~several], len(owner), minute, overall, generator)
        wish = sums[owner] / n[owner] * -np.log1p(-generator.random(len(owner)))
        weights = np.empty(len(owner))
        weights[np.argsort(wish, kind="stable")] = np.sort(drawn)
        lengths[several] = _scale(weights, owner, n, sums)
    return lengths


def _draw_values(known: _Ints, wanted: int, minute: Minute, overall: Minute, generator: np.random.Generator) -> _Floats:
    """Draw values from the buckets of the minute; from those of the other minutes where it has none."""
    left = np.array(minute.counts, dtype=np.int64)
    edges = np.array(minute.edges)
    if len(left):
        np.subtract.at(left, np.minimum(np.searchsorted(edges, known), len(left) - 1), 1)
        left = np.maximum(left, 0)
    if left.sum() == wanted:
        bucket = np.repeat(np.arange(len(left)), left)
    else:  # the last minute, or counters that were scraped a step apart
        if not left.sum():
            left, edges = np.array(overall.counts, dtype=np.int64), np.array(overall.edges)
        if not left.sum():
            return np.ones(wanted)
        bucket = np.searchsorted(np.cumsum(left), generator.random(wanted) * left.sum(), side="right")
    low = np.concatenate(([0.0], edges[:-1]))[bucket]
    high = np.where(np.isinf(edges[bucket]), 2 * low + 1, edges[bucket])
    low, high = np.minimum(low, _LONGEST), np.minimum(high, _LONGEST)
    values: _Floats = np.ceil(low + (high - low) * (1 - generator.random(wanted)))
    return np.maximum(values, 1)


def _scale(weights: _Floats, owner: _Ints, n: _Ints, sums: _Ints) -> _Ints:
    """Make whole lengths of at least 1 that are in proportion to the weights and add up to each interval's sum."""
    whole = np.bincount(owner, weights, minlength=len(n))
    exact = (sums - n)[owner] * weights / whole[owner]
    floor = np.floor(exact).astype(np.int64)
    missing = sums - n - np.rint(np.bincount(owner, floor.astype(np.float64), minlength=len(n))).astype(np.int64)
    order = np.lexsort((floor - exact, owner))
    place = _place(np.bincount(owner, minlength=len(n)), owner[order])
    floor[order] += place < missing[owner[order]]
    return floor + 1


def _overall(series: Series) -> Minute:
    """Add up the minutes of the recording; without any, take what ended before it began."""
    told = [minute for minute in series.minutes if sum(minute.counts)]
    if not told:
        return series.earlier
    alike = [minute.counts for minute in told if minute.edges == told[-1].edges]
    return Minute(end=0, edges=told[-1].edges, counts=tuple(sum(column) for column in zip(*alike)))


def count_untold(series: Series) -> tuple[int, int]:
    """Count the requests drawn from the buckets of other minutes, and those that share their interval's sum evenly."""
    begin = untold = 0
    for minute in series.minutes:
        if not sum(minute.counts):
            untold += sum(count for count in series.counts[begin : minute.end] if count > 1)
        begin = minute.end
    return (untold, 0) if sum(_overall(series).counts) else (0, untold)


def hand_out_limits(
    outputs: _Ints, output_counts: list[int], limits: _Ints, limit_counts: list[int], generator: np.random.Generator
) -> tuple[_Ints, int]:
    """Give the drawn limits of each interval to its outputs, the largest to the longest; 0 is none declared.

    Which requests declared none is drawn. A limit below its output is raised to it; the second value counts these.
    """
    n = np.array(output_counts, dtype=np.int64)
    m = np.minimum(np.array(limit_counts, dtype=np.int64), n)
    given = np.zeros(len(outputs), dtype=np.int64)
    if not m.any():
        return given, 0
    owner, limit_owner = (np.repeat(np.arange(len(n)), counts) for counts in (n, limit_counts))
    chance = np.lexsort((generator.random(len(owner)), owner))
    chosen = chance[_place(n, owner[chance]) < m[owner[chance]]]
    chosen = chosen[np.lexsort((-outputs[chosen], owner[chosen]))]
    largest = np.lexsort((-limits, limit_owner))
    largest = largest[_place(np.array(limit_counts, dtype=np.int64), limit_owner[largest]) < m[limit_owner[largest]]]
    wanted = limits[largest]
    sums = (np.bincount(owner, outputs, minlength=len(n)), np.bincount(limit_owner, limits, minlength=len(n)))
    exact = ((m == n) & (sums[0] == sums[1]))[owner[chosen]]  # no limit is below its output: then all are equal
    wanted[exact] = outputs[chosen][exact]
    given[chosen] = np.maximum(wanted, outputs[chosen])
    return given, int((wanted < outputs[chosen]).sum())


def _place(counts: _Ints, owner: _Ints) -> _Ints:
    """Return the place of each row inside its interval; the rows are in the order of the intervals."""
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    places: _Ints = np.arange(len(owner)) - starts[owner]
    return places
