"""Laws of lengths: whole tokens, bounded, with exactly the mean that was asked for.

Cutting a distribution at a longest length lowers its mean. So the scale of a law is found by bisection on the mean of
what is really drawn: the cut, rounded law over whole tokens, whose mean is a sum over its table and not a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError

__all__ = ["IntegerLaw", "LogLaw", "calibrated", "calibrated_under", "gamma", "lognormal", "uniform_law"]

_GRID = 1 << 14
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLaw:
    """Whole tokens from ``smallest_tokens`` on; ``cumulative[i]`` = P(X <= smallest + i), the last one is 1."""

    smallest_tokens: int
    cumulative: _Floats

    @property
    def largest_tokens(self) -> int:
        """The longest length that can be drawn."""
        return self.smallest_tokens + len(self.cumulative) - 1

    @property
    def mean_tokens(self) -> float:
        """E[X] = largest - sum of P(X <= n) over n below the largest."""
        return self.largest_tokens - float(self.cumulative[:-1].sum())

    def probabilities(self) -> _Floats:
        """P(X = smallest + i)."""
        return np.diff(self.cumulative, prepend=0.0)

    def means_below(self, caps: NDArray[np.int64]) -> _Floats:
        """E[X | X <= cap] = cap - sum of P(X <= n) over n below cap / P(X <= cap), for each cap."""
        index = np.minimum(caps, self.largest_tokens) - self.smallest_tokens
        below = np.concatenate(([0.0], np.cumsum(self.cumulative)))[index]
        means: _Floats = index + self.smallest_tokens - below / np.maximum(self.cumulative[index], 1e-300)
        return means

    def draw(self, uniform: _Floats, caps: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Turn uniform numbers in [0, 1) into lengths, each at most its cap, by inverting the (cut) law."""
        if caps is not None:
            index = np.minimum(caps, self.largest_tokens) - self.smallest_tokens
            uniform = uniform * self.cumulative[index]
        found: NDArray[np.int64] = np.searchsorted(self.cumulative, uniform, side="right")
        np.minimum(found, len(self.cumulative) - 1, out=found)
        if caps is not None:
            np.minimum(found, index, out=found)
        return found + self.smallest_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLaw:
    """A continuous law of positive lengths by its shape: ``cumulative`` of ln(x) - ln(scale) on ``grid``."""

    grid: _Floats
    cumulative: _Floats

    def rounded(self, log_scale: float, *, smallest: int, largest: int) -> IntegerLaw:
        """Round to whole tokens, cut above ``largest`` (the law given X <= largest), lift to ``smallest``."""
        edges = np.log(np.arange(smallest, largest + 1) + 0.5) - log_scale
        cumulative = np.interp(edges, self.grid, self.cumulative)
        if cumulative[-1] <= 0:
            cumulative = np.concatenate((np.zeros(largest - smallest), [1.0]))
        return IntegerLaw(smallest_tokens=smallest, cumulative=cumulative / cumulative[-1])


def lognormal(sigma: float) -> LogLaw:
    """Return the log-normal law of that sigma."""
    grid = np.linspace(-9 * sigma, 9 * sigma, _GRID)
    return _tabulated(grid, -((grid / sigma) ** 2) / 2)


def gamma(shape: float) -> LogLaw:
    """Return the gamma law of that shape: ln(x) has a density proportional to exp(shape t - e^t)."""
    grid = np.linspace(math.log(shape) - 40 / shape, math.log(shape + 12 * math.sqrt(shape) + 40), _GRID)
    return _tabulated(grid, shape * grid - np.exp(grid))


def _tabulated(grid: _Floats, log_density: _Floats) -> LogLaw:
    density = np.exp(log_density - log_density.max())
    steps = (density[1:] + density[:-1]) / 2 * np.diff(grid)
    cumulative = np.concatenate(([0.0], np.cumsum(steps)))
    return LogLaw(grid=grid, cumulative=cumulative / cumulative[-1])


def uniform_law(smallest: int, largest: int) -> IntegerLaw:
    """Return the law in which all lengths from smallest to largest are alike."""
    count = largest - smallest + 1
    return IntegerLaw(smallest_tokens=smallest, cumulative=np.arange(1, count + 1) / count)


def calibrated(law: LogLaw, mean_tokens: float, *, smallest: int = 1, largest: int) -> IntegerLaw:
    """Scale a law so that what is drawn has this mean.

    Raises:
        UsageError: No scale gives it.
    """

    def of_scale(log_scale: float) -> IntegerLaw:
        return law.rounded(log_scale, smallest=smallest, largest=largest)

    return _bisect(of_scale, lambda candidate: candidate.mean_tokens, mean_tokens, largest)


def calibrated_under(law: LogLaw, mean_tokens: float, *, others: IntegerLaw, total: int) -> IntegerLaw:
    """Scale a law so that what is drawn beside ``others``, with a sum of at most ``total``, has this mean.

    Raises:
        UsageError: No scale gives it.
    """
    smallest = others.smallest_tokens
    weights = others.probabilities()
    caps = total - (others.smallest_tokens + np.arange(len(weights)))

    def of_scale(log_scale: float) -> IntegerLaw:
        return law.rounded(log_scale, smallest=smallest, largest=total - smallest)

    return _bisect(of_scale, lambda law: float(weights @ law.means_below(caps)), mean_tokens, total)


def _bisect(
    of_scale: Callable[[float], IntegerLaw], mean: Callable[[IntegerLaw], float], wanted: float, largest: int
) -> IntegerLaw:
    low, high = math.log(1e-3), math.log(largest) + 8
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(of_scale(middle)) < wanted else (low, middle)
    law = of_scale((low + high) / 2)
    if abs(mean(law) - wanted) > 1e-3 * wanted:
        raise UsageError(
            f"a mean of {wanted:g} tokens cannot be had with at most {largest:,}: the law reaches {mean(law):.1f}",
            hint="raise max_total or lower the mean",
        )
    return law
