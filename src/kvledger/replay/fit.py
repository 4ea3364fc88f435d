"""A clock fitted to what was observed: the four numbers with which a replay comes closest to recorded moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import TraceError, UsageError
from kvledger.pool.policy import Policy
from kvledger.replay.clock import MOST_SECONDS, Clock, roofline_clock
from kvledger.replay.observed import Observed
from kvledger.replay.outcome import Outcome
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.simulate import find_moments, replay
from kvledger.replay.workload import HashIds, SharedPrefix, TokenIds, Workload
from kvledger.units import counted

__all__ = ["ClockFit", "fit_clock"]

DEFAULT_PART = 1 / 3
LEAST_MOMENTS = 8
MOST_REQUESTS = 20_000
USUAL_TRIES = 500

_KEPT_STARTS = 3
_MOST_TRIES = 120
_FIRST_STEP, _COARSE_STEP, _LAST_STEP = 0.3, 0.03, 0.005
_BEYOND = 0.5
_LEAST_BASE = 1e-4
_BANDWIDTHS = (0.5e12, 1e12, 2e12, 3.3e12, 8e12)
_FLOPS_PER_BYTE = 150  # dense 16-bit rate over bandwidth, between an RTX 4090 (164), an A100 (153) and an H100 (295)
_PARAMETERS = (0.5e9, 2e9, 8e9, 32e9)

_Four = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFit:
    """A fitted clock, and how good it is.

    The first ``until_seconds`` of the run were fitted, a share ``part_ratio`` of it. Errors are mean absolute
    differences between modelled and observed first-token and end times, in the fitted part and after it (NaN: no
    moment there). ``latency_error_ratio`` and ``makespan_error_ratio`` compare the mean time from arrival to end and
    the last end, over the whole run (modelled over observed, minus 1).
    """

    clock: Clock
    policy: str
    part_ratio: float
    until_seconds: float
    moments_inside: int
    moments_outside: int
    error_inside_seconds: float
    error_outside_seconds: float
    latency_error_ratio: float
    makespan_error_ratio: float
    tries: int


def fit_clock(
    workload: Workload,
    policy: Policy,
    *,
    pool: Pool,
    settings: Settings,
    observed: Observed,
    part_ratio: float = DEFAULT_PART,
    progress: Callable[[int], None] | None = None,
) -> ClockFit:
    """Find the clock with which the replay of ``workload`` under ``policy`` comes closest to what was observed.

    The mean absolute error of first-token and end times is made small by pattern search, from the best of a grid of
    rooflines; the result is the same for the same input. Only moments in the first part of the run are looked at, so
    that the rest tells how good the clock is.

    Args:
        workload: The requests of the recorded run.
        policy: How its server managed memory.
        pool: The memory it had.
        settings: Its scheduler; the clock in it does not matter.
        observed: What was seen of each request.
        part_ratio: Which part of the time from first arrival to last end is fitted, above 0, at most 1.
        progress: Called with the number of clocks tried.

    Raises:
        UsageError: The part is not above 0 and at most 1.
        TraceError: Fewer than 8 moments were observed in it, or it holds more than 20,000 requests.
    """
    if not 0 < part_ratio <= 1:
        raise UsageError(f"a clock cannot be fitted to {part_ratio:g} of a run", hint="give a part such as 1/3")
    workload.check()
    observed.check(workload.arrival_seconds)
    began = float(workload.arrival_seconds[0])
    until = began + part_ratio * (_latest(observed) - began)
    inside = _moments(observed) <= until
    _require(int(inside.sum()), part_ratio, until - began, observed)
    arrived = int(np.searchsorted(workload.arrival_seconds, until, side="right"))
    if arrived > MOST_REQUESTS:
        raise TraceError(
            f"{counted(arrived, 'request')} arrive in the part of the run to fit, more than {MOST_REQUESTS:,}",
            hint=f"fit a smaller part, such as --clock fit:{part_ratio * MOST_REQUESTS / arrived:.2g}",
        )
    search = _Search(_first(workload, arrived), policy, pool, settings, _moments(observed)[:, :arrived], until)
    search.progress = progress
    four = search.run(pool.bytes_per_token)
    clock = _clock(four, name=f"fitted to the first {until - began:.4g} s of the recorded run")
    outcome = replay(workload, policy, pool=pool, settings=replace(settings, clock=clock))
    return _judge(outcome, workload, observed, inside, ClockFit(
        clock=clock, policy=policy.name, part_ratio=part_ratio, until_seconds=until - began,
        moments_inside=0, moments_outside=0, error_inside_seconds=math.nan, error_outside_seconds=math.nan,
        latency_error_ratio=math.nan, makespan_error_ratio=math.nan, tries=search.tries,
    ))  # fmt: skip


def _moments(observed: Observed) -> NDArray[np.float64]:
    """Return first-token and end times as one array, (2, requests)."""
    return np.stack((observed.first_token_seconds, observed.end_seconds))


def _latest(observed: Observed) -> float:
    moments = _moments(observed)
    return float(np.nanmax(moments)) if np.isfinite(moments).any() else -math.inf


def _require(inside: int, part_ratio: float, seconds: float, observed: Observed) -> None:
    if inside >= LEAST_MOMENTS:
        return
    raise TraceError(
        f"only {inside} of the {observed.moments:,} observed moments lie in the first "
        f"{max(seconds, 0):.4g} s, the part ({part_ratio:.3g}) of the run to fit; a clock needs {LEAST_MOMENTS}",
        hint="fit a larger part, such as --clock fit:1, or give a roofline such as --clock h100-80gb:8b",
    )


def _first(workload: Workload, count: int) -> Workload:
    """Return the first requests of a workload."""
    content = workload.content
    match content:
        case SharedPrefix():
            content = SharedPrefix(tokens=content.tokens[:count])
        case HashIds() | TokenIds():
            content = replace(content, offsets=content.offsets[: count + 1])
    return Workload(
        arrival_seconds=workload.arrival_seconds[:count],
        prompt_tokens=workload.prompt_tokens[:count],
        output_tokens=workload.output_tokens[:count],
        max_tokens=None if workload.max_tokens is None else workload.max_tokens[:count],
        content=content,
        samples=None if workload.samples is None else workload.samples[:count],
        beams=None if workload.beams is None else replace(workload.beams, mask=workload.beams.mask[:count]),
    )


def _clock(four: _Four, *, name: str = "fitted") -> Clock:
    base, a, b, c = four
    return Clock(base=base, a=a, b=b, c=c, name=name)


class _Search:
    """Pattern search (Hooke and Jeeves): base, a, b and c are made larger and smaller by a factor that shrinks."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        pool: Pool,
        settings: Settings,
        moments: NDArray[np.float64],
        until: float,
    ) -> None:
        self._replayed = (workload, policy, pool, settings)
        self._moments = moments
        self._wanted = moments <= until
        began = float(workload.arrival_seconds[0])
        self._late = until + _BEYOND * (until - began)
        self.tries = 0
        self.progress: Callable[[int], None] | None = None

    def error(self, four: _Four) -> float:
        """Return the mean absolute error of a clock in the part that is fitted."""
        self.tries += 1
        if self.progress:
            self.progress(self.tries)
        workload, policy, pool, settings = self._replayed
        clocked = replace(settings, clock=_clock(four))
        found = find_moments(workload, policy, pool=pool, settings=clocked, until_seconds=self._late)[1:]
        reached = np.fmin(found, self._late)[self._wanted]  # what comes later than that, or never, counts as then
        return float(np.abs(reached - self._moments[self._wanted]).mean())

    def run(self, bytes_per_token: int) -> _Four:
        """Start from the best rooflines and return the best clock found."""
        grid = sorted((self.error(four), four) for four in _rooflines(bytes_per_token))
        found = []
        for error, four in grid[:_KEPT_STARTS]:
            found.append(self._descend(four, error, first=_FIRST_STEP, last=_COARSE_STEP))
        error, four = min(found)
        return self._descend(four, error, first=2 * _COARSE_STEP, last=_LAST_STEP)[1]

    def _descend(self, four: _Four, error: float, *, first: float, last: float) -> tuple[float, _Four]:
        step = first
        limit = self.tries + _MOST_TRIES
        while step > last and self.tries < limit:
            start = four
            error, four = self._sweep(four, error, step)
            if four == start:
                error, four = self._trade(four, error, step)
            if four == start:
                step *= 0.5
                continue
            while self.tries < limit:  # as long as it helps, once more the same way
                onward = _onward(start, four)
                found = self.error(onward)
                if found >= error:
                    break
                error, start, four = found, four, onward
        return error, four

    def _sweep(self, four: _Four, error: float, step: float) -> tuple[float, _Four]:
        """Make each number larger or smaller, or 0, wherever that is better."""
        for i in range(4):
            for factor in (1 + step, 1 / (1 + step), 0.0):
                if factor == 0.0 and (i == 0 or step < _FIRST_STEP):
                    continue
                candidate = _scaled(four, {i: factor})
                if candidate != four and (found := self.error(candidate)) < error:
                    error, four = found, candidate
                    break
        return error, four

    def _trade(self, four: _Four, error: float, step: float) -> tuple[float, _Four]:
        """Make one number larger and another smaller: what each alone cannot better, two can in exchange."""
        for i in range(4):
            for j in range(4):
                candidate = _scaled(four, {i: 1 + step, j: 1 / (1 + step)}) if i != j else four
                if candidate != four and (found := self.error(candidate)) < error:
                    return found, candidate
        return error, four


def _scaled(four: _Four, factors: Mapping[int, float]) -> _Four:
    return _bounded([value * factors.get(i, 1.0) for i, value in enumerate(four)])


def _onward(before: _Four, now: _Four) -> _Four:
    """Go from ``now`` as far again as it is from ``before``, in ratios."""
    return _bounded([new * (new / old) if old > 0 else new for old, new in zip(before, now)])


def _bounded(values: Sequence[float]) -> _Four:
    """Keep a step from taking no time, or more than a clock can count."""
    base, a, b, c = (min(value, MOST_SECONDS) for value in values)
    return max(_LEAST_BASE, base), a, b, c


def _rooflines(bytes_per_token: int) -> Sequence[_Four]:
    """Return clocks of GPUs and models of several sizes, as places to start from."""
    clocks = (
        roofline_clock(
            name="start",
            parameters=parameters,
            bandwidth_bytes_per_second=bandwidth,
            flops_per_second=_FLOPS_PER_BYTE * bandwidth,
            bytes_per_token=bytes_per_token,
        )
        for bandwidth in _BANDWIDTHS
        for parameters in _PARAMETERS
    )
    return [(clock.base, clock.a, clock.b, clock.c) for clock in clocks]


def _judge(
    outcome: Outcome, workload: Workload, observed: Observed, inside: NDArray[np.bool_], fit: ClockFit
) -> ClockFit:
    """Say how good a fitted clock is, from the replay of the whole run."""
    moments = _moments(observed)
    difference = np.abs(outcome.latencies[1:] - moments)
    known = np.isfinite(difference)
    ended = known[1]
    ours = (outcome.latencies[2] - workload.arrival_seconds)[ended]
    theirs = (observed.end_seconds - workload.arrival_seconds)[ended]
    began = float(workload.arrival_seconds[0])
    return replace(
        fit,
        moments_inside=int((known & inside).sum()),
        moments_outside=int((known & ~inside).sum()),
        error_inside_seconds=_mean(difference[known & inside]),
        error_outside_seconds=_mean(difference[known & ~inside]),
        latency_error_ratio=_error(_mean(ours), _mean(theirs)),
        makespan_error_ratio=_error(_span(outcome.latencies[2][ended], began), _span(moments[1][ended], began)),
    )


def _error(modelled: float, observed: float) -> float:
    return modelled / observed - 1 if observed > 0 else math.nan


def _span(ends: NDArray[np.float64], began: float) -> float:
    return float(ends.max()) - began if len(ends) else math.nan


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan
