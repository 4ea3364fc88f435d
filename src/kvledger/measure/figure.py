"""Numbers of a running server: how well each is known, by which formula, and why it is not known better."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.ledger import Accuracy

__all__ = ["Figure", "Span"]


@dataclass(frozen=True, slots=True)
class Span:
    """A closed interval of integers that holds the true number."""

    low: int
    high: int

    @classmethod
    def exact(cls, value: int) -> Span:
        """Return the interval of one number."""
        return cls(value, value)

    @property
    def is_exact(self) -> bool:
        """True when only one number is left."""
        return self.low == self.high

    @property
    def width(self) -> int:
        """High minus low."""
        return self.high - self.low

    def __add__(self, other: Span) -> Span:
        """Add number by number: the widest result."""
        return Span(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Span) -> Span:
        """Subtract an independent number."""
        return Span(self.low - other.high, self.high - other.low)

    def meet(self, other: Span) -> Span | None:
        """Return what both intervals hold, or None when they contradict each other."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Span(low, high) if low <= high else None

    def clip(self, low: int, high: int) -> Span:
        """Return the interval with both ends moved into ``low`` to ``high``."""
        return Span(min(max(self.low, low), high), min(max(self.high, low), high))

    def scale(self, factor: int) -> Span:
        """Multiply by a factor of at least 0."""
        return Span(self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its accuracy.

    ``formula`` says which series it follows from; ``cause`` says why it is an interval, and is empty when it is none.
    """

    name: str
    span: Span
    unit: str
    accuracy: Accuracy
    formula: str
    cause: str = ""

    @property
    def low(self) -> int:
        """The least it can be."""
        return self.span.low

    @property
    def high(self) -> int:
        """The most it can be."""
        return self.span.high

    @property
    def is_exact(self) -> bool:
        """True when it is no interval."""
        return self.span.is_exact
