"""The values that one setting of a grid takes: a list, or a range written by its ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from kvledger.errors import UsageError
from kvledger.units import GIB, KIB, MIB, counted, parse_bytes

__all__ = ["MOST_VALUES", "Range", "Scalar", "values_of"]

Scalar = bool | int | float | str

MOST_VALUES = 10_000
"""The most values that one setting may take."""
_LEEWAY = 1e-9


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """``{from = 16, to = 128, times = 2}`` or ``{from = "10GiB", to = "80GiB", step = "10GiB"}``; both ends count."""

    start: int | float | str
    end: int | float | str
    step: int | float | str | None = None
    times: int | float | None = None


def values_of(name: str, axis: Sequence[Scalar] | Range) -> list[Scalar]:
    """Return the values of the setting ``name``, each once.

    Raises:
        UsageError: There are none or too many, or the ends of a range do not go together.

    >>> values_of("block-size", Range(start=16, end=128, times=2))
    [16, 32, 64, 128]
    >>> values_of("memory", Range(start="16GiB", end="48GiB", step="16GiB"))
    ['16GiB', '32GiB', '48GiB']
    """
    values = _expanded(name, axis) if isinstance(axis, Range) else list(axis)
    if not values:
        raise UsageError(f"`{name}` of the grid lists no value", hint="give at least one, or leave it out")
    if len(values) > MOST_VALUES:
        raise UsageError(f"`{name}` of the grid lists {counted(len(values), 'value')}, more than {MOST_VALUES:,}")
    return list({(type(value), value): value for value in values}.values())


def _expanded(name: str, axis: Range) -> list[Scalar]:
    if (axis.step is None) == (axis.times is None):
        raise UsageError(
            f"the range of `{name}` needs one of `step` and `times`", hint="write {from = 16, to = 128, times = 2}"
        )
    in_bytes = any(isinstance(part, str) for part in (axis.start, axis.end, axis.step))
    low, high = _number(axis.start), _number(axis.end)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UsageError(
            f"the range of `{name}` goes from {axis.start} to {axis.end}", hint="`to` must not be below `from`"
        )
    numbers = (
        _steps(name, low, high, _number(axis.step))
        if axis.step is not None
        else _multiples(name, low, high, axis.times or 0)
    )
    if in_bytes:
        return [_size_text(int(number)) for number in numbers]
    whole = all(isinstance(part, int) for part in (axis.start, axis.end, axis.step or 1))
    return [round(number) if whole else float(number) for number in numbers]


def _number(part: int | float | str) -> int | float:
    return parse_bytes(part) if isinstance(part, str) else part


def _steps(name: str, low: float, high: float, step: float) -> list[float]:
    if not (step > 0 and math.isfinite(step)):
        raise UsageError(f"the range of `{name}` goes on by {step:g}, which is not above 0")
    count = math.floor((high - low) / step + _LEEWAY) + 1
    _check_count(name, count)
    return [low + step * i for i in range(count)]


def _multiples(name: str, low: float, high: float, times: float) -> list[float]:
    if not (times > 1 and math.isfinite(times)):
        raise UsageError(f"the range of `{name}` multiplies by {times:g}, which is not above 1")
    if low <= 0:
        raise UsageError(f"the range of `{name}` starts at {low:g}, and multiplying leads nowhere from there")
    count = math.floor(math.log(high / low) / math.log(times) + _LEEWAY) + 1
    _check_count(name, count)
    return [low * times**i for i in range(count)]


def _check_count(name: str, count: int) -> None:
    if count > MOST_VALUES:
        raise UsageError(f"the range of `{name}` has {counted(count, 'value')}, more than {MOST_VALUES:,}")


def _size_text(size_bytes: int) -> str:
    """Write a size so that it is read back exactly, in the largest unit that divides it."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
