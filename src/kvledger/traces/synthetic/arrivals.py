"""Laws of arrivals: Poisson, gamma gaps, on and off, or everything at time 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kvledger.traces.synthetic.lengths import gamma

__all__ = ["ArrivalLaw"]

DAY_SECONDS = 86400.0
_MOMENTS = 1 << 14
_Floats = NDArray[np.float64]


@lru_cache(maxsize=256)
def _unit_gaps(cv: float) -> tuple[_Floats, _Floats]:
    """Tabulate the gamma law of mean 1 and this coefficient of variation: cumulative probabilities, gaps.

    The mean is that of drawing from the table with straight lines between its points, so it is exactly 1.
    """
    law = gamma(1 / cv**2)
    gaps = np.exp(law.grid)
    mean = float(np.diff(law.cumulative) @ (gaps[1:] + gaps[:-1]) / 2)
    return law.cumulative, gaps / mean


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalLaw:
    """Mean arrivals a second, the coefficient of variation of the gaps, and optional on and off periods.

    ``rate`` infinite: all arrivals are at 0, a queue that is never empty. ``cv`` 1 is Poisson, above is burstier, 0 is
    a metronome. With ``off_seconds`` > 0 all arrivals fall into the on periods; ``rate`` stays the mean over both.
    With ``swing_ratio`` s the rate at t is rate * (1 - s cos(2 pi t / day)): least at time 0, most half a day later.
    """

    rate: float
    cv: float = 1.0
    on_seconds: float = 0.0
    off_seconds: float = 0.0
    swing_ratio: float = 0.0

    def gaps(self, uniform: _Floats) -> _Floats:
        """Turn uniform numbers in [0, 1) into gaps of mean 1 / rate (of the time that is on)."""
        if math.isinf(self.rate):
            return np.zeros(len(uniform))
        if self.cv == 0:
            return np.full(len(uniform), 1 / self.rate)
        if self.cv == 1:
            return -np.log1p(-uniform) / self.rate
        cumulative, gaps = _unit_gaps(self.cv)
        return np.interp(uniform, cumulative, gaps) / self.rate

    def clock(self, busy_seconds: _Floats) -> _Floats:
        """Insert the off periods, or the swing: map the sum of gaps to the time at which it is reached."""
        if math.isinf(self.rate):
            return busy_seconds
        if self.swing_ratio:
            return _swung(busy_seconds, self.swing_ratio)
        if not self.off_seconds:
            return busy_seconds
        period = self.on_seconds + self.off_seconds
        periods, inside = np.divmod(busy_seconds, period)
        return periods * period + inside * (self.on_seconds / period)


def _swung(busy_seconds: _Floats, ratio: float) -> _Floats:
    """Invert t - s day / (2 pi) sin(2 pi t / day), the arrivals until t over their mean rate, by a table of one day."""
    days, inside = np.divmod(busy_seconds, DAY_SECONDS)
    times = np.linspace(0.0, DAY_SECONDS, _MOMENTS)
    reached = times - ratio * DAY_SECONDS / math.tau * np.sin(math.tau * times / DAY_SECONDS)
    reached[-1] = DAY_SECONDS
    return days * DAY_SECONDS + np.interp(inside, reached, times)
