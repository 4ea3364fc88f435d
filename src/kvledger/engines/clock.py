"""The clocks of log lines: with a year, without one, and none at all."""

from __future__ import annotations

import re
from calendar import timegm
from dataclasses import dataclass

__all__ = ["LineClock", "read_iso"]

_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_AMERICAN = re.compile(r"\[(\d\d)/(\d\d)/(\d{4})-(\d\d):(\d\d):(\d\d)\]")
_YEARLESS = re.compile(
    r"(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL)\s{1,8}(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?"
)
_HALF_A_YEAR = 183 * 86_400
_YEAR = 366 * 86_400
_REACH = 200
"""Characters at the beginning of a message in which its time stands."""


def read_iso(text: str) -> float | None:
    """Return seconds since the Unix epoch of an ISO 8601 time; without a zone it is taken as UTC.

    >>> read_iso("1970-01-01T00:01:00.5Z")
    60.5
    """
    match = _ISO.match(text[:_REACH].lstrip("["))
    return None if match is None else _seconds(match)


def _seconds(match: re.Match[str]) -> float | None:
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    seconds = float(timegm((year, month, day, hour, minute, second)))
    seconds += float(f"0.{match[7] or 0}")
    zone = match[8]
    if zone and zone != "Z":
        shift = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= shift if zone[0] == "+" else -shift
    return seconds


@dataclass(slots=True)
class LineClock:
    """Reads the time of messages; times without a year go on over New Year."""

    _years: int = 0
    _last: float | None = None

    def read(self, text: str) -> float | None:
        """Return the seconds of a message: since the Unix epoch with a year, else since a New Year."""
        head = text[:_REACH]
        match = _YEARLESS.search(head)
        if match:
            return self._read_yearless(match)
        match = _ISO.search(head)
        if match:
            return _seconds(match)
        match = _AMERICAN.search(head)
        if match is None:
            return None
        month, day, year, hour, minute, second = (int(part) for part in match.groups())
        return read_iso(f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}")

    def _read_yearless(self, match: re.Match[str]) -> float | None:
        month, day, hour, minute, second = (int(match[i]) for i in range(1, 6))
        if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
            return None
        # 1972 is a leap year
        seconds = timegm((1972, month, day, hour, minute, second)) - timegm((1972, 1, 1, 0, 0, 0))
        value = seconds + float(f"0.{match[6] or 0}") + self._years * _YEAR
        if self._last is not None and value < self._last - _HALF_A_YEAR:
            self._years += 1
            value += _YEAR
        self._last = value
        return value
