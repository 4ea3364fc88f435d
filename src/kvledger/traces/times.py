"""Arrival times: units, dates, and a clock whose origin is subtracted before precision is lost."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvledger.errors import UsageError

__all__ = ["ABSOLUTE_SECONDS", "Clock", "TimeUnit", "numbers", "parse_date", "unit_of_name"]

ABSOLUTE_SECONDS = 1e8
"""A clock that starts later than this (March 1973 as Unix time) counts from an epoch, not from the trace's start."""

_MOST_STEPS = 2**61
"""Integers of a time column are cut off here, so that differences stay within 64 bits."""

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$"
_DATE = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.]\d{1,9})?(Z|[+-]\d\d:?\d\d)?$"
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_DATE_PARTS = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


class TimeUnit(StrEnum):
    """What one step of a time column is."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"
    DATE = "date"

    @property
    def per_second(self) -> int:
        """Steps in a second (dates are counted in nanoseconds)."""
        return {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9, "date": 10**9}[self.value]


_UNITS = {
    "s": TimeUnit.SECONDS,
    "sec": TimeUnit.SECONDS,
    "second": TimeUnit.SECONDS,
    "seconds": TimeUnit.SECONDS,
    "ms": TimeUnit.MILLISECONDS,
    "millis": TimeUnit.MILLISECONDS,
    "milliseconds": TimeUnit.MILLISECONDS,
    "us": TimeUnit.MICROSECONDS,
    "microseconds": TimeUnit.MICROSECONDS,
    "ns": TimeUnit.NANOSECONDS,
    "nanos": TimeUnit.NANOSECONDS,
    "nano": TimeUnit.NANOSECONDS,
    "nanoseconds": TimeUnit.NANOSECONDS,
    "date": TimeUnit.DATE,
    "iso": TimeUnit.DATE,
}


def unit_of_name(name: str) -> TimeUnit | None:
    """Find the unit that a column's name ends in (``_ms``, ``_seconds``, ``UnixNano``), if any."""
    last = re.split(r"[^A-Za-z]|(?<=[a-z])(?=[A-Z])", name)[-1].lower()
    return _UNITS.get(last) if last != "date" else None


def parse_unit(text: str) -> TimeUnit:
    """Read a unit as written after a column's name, such as ``ms`` in ``arrival=timestamp:ms``.

    Raises:
        UsageError: It is no unit of time.
    """
    unit = _UNITS.get(text.strip().lower())
    if unit is None:
        raise UsageError(f"`{text[:40]}` is not a unit of time", hint="the units are s, ms, us, ns and date")
    return unit


def numbers(values: Any) -> NDArray[np.float64]:
    """Convert a column to float64; whatever is no number becomes NaN."""
    if pa.types.is_null(values.type):
        return np.full(len(values), np.nan)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = _numeric_strings(values)
    elif not any(known(values.type) for known in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)):
        return np.full(len(values), np.nan)
    return np.asarray(pc.fill_null(pc.cast(values, pa.float64(), safe=False), math.nan))


def _numeric_strings(values: Any) -> Any:
    try:
        return pc.cast(values, pa.float64())
    except pa.ArrowInvalid:
        trimmed = pc.ascii_trim_whitespace(values)
        good = pc.match_substring_regex(trimmed, _NUMBER)
        return pc.cast(pc.if_else(good, trimmed, pa.scalar(None, trimmed.type)), pa.float64())


def parse_date(text: str) -> int | None:
    """Convert an ISO date with up to nine fractional digits to nanoseconds since 1970, or None when it is none."""
    match = _DATE_PARTS.fullmatch(text.strip())
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{(zone or 'Z').replace('Z', '+00:00')}")
    except ValueError:
        return None
    return int(moment.astimezone(UTC).timestamp()) * 10**9 + int((fraction or "0").ljust(9, "0"))


def _nanoseconds(values: Any) -> Any:
    """Convert dates (strings or Arrow timestamps) to int64 nanoseconds since 1970; bad ones become null."""
    if pa.types.is_timestamp(values.type):
        return pc.cast(pc.cast(values, pa.timestamp("ns", values.type.tz)), pa.int64())
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return pa.nulls(len(values), pa.int64())
    first = next((v.as_py() for v in values[:64] if v.is_valid), "")
    zone = "UTC" if _ZONE.search(first[10:]) else None
    try:
        return pc.cast(pc.cast(values, pa.timestamp("ns", zone)), pa.int64())
    except pa.ArrowInvalid:
        pass
    try:
        good = pc.match_substring_regex(values, _DATE)
        parsed = [parse_date(v.as_py()) if ok.as_py() else None for v, ok in zip(values, good)]
    except (UnicodeDecodeError, pa.ArrowInvalid):
        return pa.nulls(len(values), pa.int64())
    return pa.array(parsed, pa.int64())


class Clock:
    """Turn time columns, batch after batch, into seconds.

    A clock that starts beyond :data:`ABSOLUTE_SECONDS`, or that shows dates, is ``absolute``: its first good value
    becomes 0, subtracted as an integer where the column holds integers, so that nanoseconds since 1970 keep their
    precision. Other clocks keep their own zero.
    """

    def __init__(self, unit: TimeUnit) -> None:
        self.unit = unit
        self.absolute = unit is TimeUnit.DATE
        self._origin: int | float | None = None

    def seconds(self, values: Any) -> NDArray[np.float64]:
        """Convert one column; bad values become NaN."""
        if self.unit is TimeUnit.DATE:
            return self._relative_integers(_nanoseconds(values))
        if pa.types.is_string(values.type):
            try:
                values = pc.cast(values, pa.int64())
            except pa.ArrowInvalid:
                return self._relative_floats(numbers(values))
        if pa.types.is_integer(values.type):
            try:
                return self._relative_integers(pc.cast(values, pa.int64()))
            except pa.ArrowInvalid:
                pass
        return self._relative_floats(numbers(values))

    def _set_origin(self, first: int | float) -> None:
        self.absolute = self.absolute or abs(first) > ABSOLUTE_SECONDS * self.unit.per_second
        self._origin = first if self.absolute else 0

    def _relative_integers(self, values: Any) -> NDArray[np.float64]:
        good = np.asarray(pc.is_valid(values))
        steps = np.clip(np.asarray(pc.fill_null(values, 0)), -_MOST_STEPS, _MOST_STEPS)
        if self._origin is None and good.any():
            self._set_origin(int(steps[good][0]))
        origin = int(max(-_MOST_STEPS, min(_MOST_STEPS, self._origin or 0)))  # of an earlier column, perhaps of floats
        seconds: NDArray[np.float64] = (steps - origin) / self.unit.per_second
        seconds[~good] = np.nan
        return seconds

    def _relative_floats(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        good = np.isfinite(steps)
        if self._origin is None and good.any():
            self._set_origin(float(steps[good][0]))
        return np.where(good, (steps - (self._origin or 0)) / self.unit.per_second, np.nan)
