"""What a trace looks like in numbers: rates, lengths, burstiness, sharing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.replay.workload import Workload
from kvledger.traces.prefix import PrefixShare, prefix_share

__all__ = ["Lengths", "TraceStatistics", "describe", "lengths_of"]

_RANKS = (0.5, 0.9, 0.95, 0.99)
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A column of lengths; percentiles are nearest-rank, so each of them occurs in the trace."""

    count: int
    mean_tokens: float
    min_tokens: int
    p50_tokens: int
    p90_tokens: int
    p95_tokens: int
    p99_tokens: int
    max_tokens: int
    sum_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """Statistics that need no replay. ``arrival_cv``: standard deviation over mean of the gaps (1 for Poisson).

    Rates are per second; peaks are over windows that start at the first arrival. None where time stands still, and
    peaks where the trace is shorter than the window.
    """

    requests: int
    span_seconds: float
    mean_rate: float | None
    peak_10s_rate: float | None
    peak_60s_rate: float | None
    arrival_cv: float | None
    prompt: Lengths
    output: Lengths
    total: Lengths
    declared: Lengths | None
    sessions: int
    prefix: PrefixShare | None


def describe(workload: Workload) -> TraceStatistics:
    """Compute the statistics of a workload."""
    arrivals, span = workload.arrival_seconds, workload.span_seconds
    total = _total(workload)
    declared = None if workload.max_tokens is None else workload.max_tokens[workload.max_tokens > 0]
    sessions = 0
    if workload.session is not None:
        sessions = len(np.unique(workload.session[workload.session >= 0]))
    return TraceStatistics(
        requests=len(workload),
        span_seconds=span,
        mean_rate=(len(workload) - 1) / span if span > 0 else None,
        peak_10s_rate=_peak(arrivals, 10.0) if span >= 10 else None,
        peak_60s_rate=_peak(arrivals, 60.0) if span >= 60 else None,
        arrival_cv=_variation(arrivals) if span > 0 else None,
        prompt=lengths_of(workload.prompt_tokens),
        output=lengths_of(workload.output_tokens),
        total=lengths_of(total),
        declared=lengths_of(declared) if declared is not None and len(declared) else None,
        sessions=sessions,
        prefix=prefix_share(workload),
    )


def _total(workload: Workload) -> NDArray[np.integer]:
    """Return prompt plus output of each request, in 32 bits where they fit."""
    fits = int(workload.prompt_tokens.max()) + int(workload.output_tokens.max()) < 2**31
    return np.add(workload.prompt_tokens, workload.output_tokens, dtype=np.int32 if fits else np.int64)


def _peak(arrivals: NDArray[np.float64], window_seconds: float) -> float:
    """Return the most arrivals in one window over the window's length; windows do not overlap."""
    most, current, held = 0, -1.0, 0
    for i in range(0, len(arrivals), _PIECE):
        window = np.floor((arrivals[i : i + _PIECE] - arrivals[0]) / window_seconds)
        edges = np.flatnonzero(np.diff(window, prepend=-1.0))
        counts = np.diff(np.append(edges, len(window)))
        counts[0] += held if window[0] == current else 0  # the window in which the piece before ended goes on
        most, current, held = max(most, int(counts.max())), float(window[-1]), int(counts[-1])
    return most / window_seconds


def _variation(arrivals: NDArray[np.float64]) -> float | None:
    count = len(arrivals) - 1
    if count < 2:
        return None
    mean = float(arrivals[-1] - arrivals[0]) / count
    pieces = (np.diff(arrivals[i : i + _PIECE + 1]) for i in range(0, count, _PIECE))
    return math.sqrt(sum(float(np.square(gaps - mean).sum()) for gaps in pieces) / count) / mean


def lengths_of(column: NDArray[np.integer]) -> Lengths:
    """Return the statistics of a column of lengths that has at least one."""
    count = len(column)
    ranks = [max(0, int(np.ceil(rank * count)) - 1) for rank in _RANKS]
    ordered = np.partition(column, [*ranks, 0, count - 1])
    p50, p90, p95, p99 = (int(ordered[rank]) for rank in ranks)
    total = int(column.sum(dtype=np.int64))
    return Lengths(
        count=count,
        mean_tokens=total / count,
        min_tokens=int(ordered[0]),
        p50_tokens=p50,
        p90_tokens=p90,
        p95_tokens=p95,
        p99_tokens=p99,
        max_tokens=int(ordered[-1]),
        sum_tokens=total,
    )
