"""From a number to a place on a line, with marks at round numbers; static pictures are drawn with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Scale", "scale_of"]

_WIDE = 30.0
_MARKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A line from ``low`` to ``high``; on a logarithmic one nothing is below ``low``, zeros least of all."""

    low: float
    high: float
    is_logarithmic: bool

    def place(self, value: float) -> float:
        """Return where a number lies, from 0 to 1."""
        if self.is_logarithmic:
            span = math.log(self.high / self.low) or 1.0
            return min(1.0, max(0.0, math.log(max(value, self.low) / self.low) / span))
        return min(1.0, max(0.0, (value - self.low) / ((self.high - self.low) or 1.0)))

    def marks(self, base: int) -> list[float]:
        """Return a few round numbers on the line: powers of ``base``, or multiples of 1, 2 or 5."""
        if not self.is_logarithmic:
            step = _step(self.high - self.low)
            return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]
        first, last = (math.log(n, base) for n in (self.low, self.high))
        powers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
        every = max(1, -(-len(powers) // _MARKS))
        return [float(base) ** power for power in powers if (power - powers[0]) % every == 0]


def scale_of(values: Iterable[float]) -> Scale:
    """Return a line that all of the numbers are on: logarithmic where they differ much.

    >>> scale_of([0.0, 4.0]).place(1.0)
    0.25
    >>> scale_of([0.01, 100.0]).place(1.0)
    0.5
    """
    known: Sequence[float] = sorted(values)
    positive = [value for value in known if value > 0]
    if not positive:
        return Scale(low=0.0, high=1.0, is_logarithmic=False)
    if len(positive) > 1 and positive[-1] / positive[0] > _WIDE:
        low = positive[0] / (2.0 if len(positive) < len(known) else 1.0)
        return Scale(low=low, high=positive[-1], is_logarithmic=True)
    return Scale(low=0.0, high=positive[-1], is_logarithmic=False)


def _step(span: float) -> float:
    rough = (span or 1.0) / _MARKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
