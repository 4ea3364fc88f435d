"""Numbers as engines give them: a value, the interval its rounding leaves, and where it was read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvledger.ledger import Accuracy

__all__ = [
    "LARGEST",
    "Fact",
    "Quantity",
    "add",
    "exact",
    "given",
    "largest",
    "printed",
    "printed_bytes",
    "smallest",
    "truncated_bytes",
    "whole",
]

LARGEST = 2**60
"""No count or size above this is believed."""
_DIGITS = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact(Generic[T]):
    """A word or a flag, and the line it came from."""

    value: T
    line: int | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number and the closed interval that holds the true one; counts and bytes are integers."""

    value: int | float
    low: int | float
    high: int | float
    accuracy: Accuracy = Accuracy.MEASURED
    source: str = ""
    """Metric or field name; empty for log lines."""
    line: int | None = None
    """Line of the log, from 1."""
    origin: str = ""
    """Rank or process that printed it."""

    @property
    def is_exact(self) -> bool:
        """True when no rounding lies between this number and the engine's own."""
        return self.low == self.high

    def holds(self, value: float) -> bool:
        """Return whether ``value`` agrees with this number."""
        return self.low <= value <= self.high


def exact(
    value: float, *, source: str = "", line: int | None = None, origin: str = "", accuracy: Accuracy = Accuracy.MEASURED
) -> Quantity | None:
    """Return a number that is not rounded, or None when it is not finite or beyond belief."""
    if not math.isfinite(value) or abs(value) > LARGEST:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return Quantity(value=value, low=value, high=value, accuracy=accuracy, source=source, line=line, origin=origin)


def whole(text: str, *, line: int | None = None, origin: str = "", source: str = "") -> Quantity | None:
    """Read a whole number that may have commas, or return None when it has too many digits.

    >>> whole("245,360").value
    245360
    """
    digits = text.replace(",", "")
    if not digits.isascii() or not digits.removeprefix("-").isdigit() or len(digits) > _DIGITS:
        return None
    return exact(int(digits), line=line, origin=origin, source=source)


def given(text: str, *, line: int | None = None, origin: str = "", source: str = "") -> Quantity | None:
    """Read a setting: its digits are what was set, not a rounding."""
    parts = _split(text, None)
    return None if parts is None else exact(parts[0], line=line, origin=origin, source=source)


def truncated_bytes(count: int, unit_bytes: int, *, times: int = 1, line: int | None = None) -> Quantity:
    """Return a size of which only whole units were printed, the rest cut off; ``times`` such sizes when several."""
    low = count * unit_bytes * times
    accuracy = Accuracy.DERIVED if times > 1 else Accuracy.MEASURED
    return Quantity(value=low, low=low, high=low + (unit_bytes - 1) * times, accuracy=accuracy, line=line)


def printed(
    text: str,
    *,
    factor: float = 1.0,
    decimals: int | None = None,
    line: int | None = None,
    origin: str = "",
    source: str = "",
) -> Quantity | None:
    """Read a rounded decimal and the interval it stands for.

    Args:
        text: The digits, such as ``91.2``.
        factor: What one unit is worth (0.01 for percent).
        decimals: Decimals of the rounding, when the text may have lost zeros at its end; else those of the text.
        line: Line of the log.
        origin: Rank or process.
        source: Metric or field name.

    >>> quantity = printed("91.2", factor=0.01)
    >>> quantity.low <= 0.9115 <= quantity.high
    True
    """
    parts = _split(text, decimals)
    if parts is None:
        return None
    value, half = parts
    middle = value / round(1 / factor) if 0 < factor < 1 else value * factor
    edge = half * abs(factor) + 1e-12 * abs(middle)
    low = middle - edge if middle < 0 else max(0.0, middle - edge)
    return Quantity(value=middle, low=low, high=middle + edge, source=source, line=line, origin=origin)


def printed_bytes(
    text: str,
    unit_bytes: int,
    *,
    decimals: int | None = None,
    line: int | None = None,
    origin: str = "",
    source: str = "",
) -> Quantity | None:
    """Read a rounded size; value, low and high are whole bytes.

    >>> quantity = printed_bytes("13.1", 2**30, decimals=2)
    >>> quantity.high - quantity.low <= 0.01 * 2**30
    True
    """
    parts = _split(text, decimals)
    if parts is None or abs(parts[0]) * unit_bytes > LARGEST:
        return None
    value, half = parts
    low, high = math.ceil((value - half) * unit_bytes - 1e-6), math.floor((value + half) * unit_bytes + 1e-6)
    middle = min(max(round(value * unit_bytes), low), high) if low <= high else round(value * unit_bytes)
    low = min(low, middle) if middle < 0 else max(0, min(low, middle))
    return Quantity(value=middle, low=low, high=max(high, middle), source=source, line=line, origin=origin)


def _split(text: str, decimals: int | None) -> tuple[float, float] | None:
    """Return the number and half a unit of its last decimal."""
    if len(text) > 2 * _DIGITS:
        return None
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    if not math.isfinite(value) or abs(value) > LARGEST:
        return None
    shown = len(text.partition(".")[2])
    return value, 0.5 * 10.0 ** -max(shown, decimals or 0)


def smallest(quantities: Iterable[Quantity | None]) -> Quantity | None:
    """Return the quantity with the least value, ignoring None."""
    return min((q for q in quantities if q is not None), key=lambda q: q.value, default=None)


def add(quantities: Iterable[Quantity | None]) -> Quantity | None:
    """Return the sum, with intervals added; None when a part is missing or there is none."""
    parts = list(quantities)
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    first = known[0]
    return Quantity(
        value=sum(part.value for part in known),
        low=sum(part.low for part in known),
        high=sum(part.high for part in known),
        accuracy=first.accuracy if len(known) == 1 else Accuracy.DERIVED,
        source=first.source,
        line=first.line,
        origin=first.origin,
    )


def largest(quantities: Iterable[Quantity | None]) -> Quantity | None:
    """Return the quantity with the greatest value, ignoring None."""
    return max((q for q in quantities if q is not None), key=lambda q: q.value, default=None)
