"""How numbers are written on the page; a thin space joins a number and its unit."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.report.html.markup import Markup, element, join
from kvledger.units import format_bytes

__all__ = ["amount", "count", "duration", "percent", "points", "share_cell", "total"]

_GAP = "\u202f"
_MINUS = "\u2212"


def percent(ratio: float) -> str:
    r"""Write a share.

    >>> percent(0.963)
    '96.3\u202f%'
    """
    return f"{100 * ratio:.1f}{_GAP}%"


def points(ratio: float) -> str:
    """Write a change of a share in points; what rounds to nothing is a dot."""
    value = 100 * ratio
    if abs(value) < 0.05:
        return "·"
    return f"{'+' if value > 0 else _MINUS}{abs(value):.1f}"


def amount(value: float, unit: str) -> str:
    """Write an amount of a ledger in its unit."""
    if unit != "bytes":
        return f"{round(value):,}"
    return format_bytes(round(value)).replace(" ", _GAP)


def count(value: float | None) -> str:
    """Write a count; a dash where it is not known."""
    return "–" if value is None else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Write a time in the unit in which it has three figures or so."""
    if seconds is None:
        return "–"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{_GAP}{unit}"
    return f"{seconds:.2f}{_GAP}s" if seconds < 100 else f"{seconds:.0f}{_GAP}s"


def share_cell(ratio: float, capacity: int, unit: str) -> Markup:
    """Return a share with its amount below it."""
    return join(percent(ratio), element("small", amount(ratio * capacity, unit)))


def total(counts: Mapping[str, int]) -> int:
    """Return the sum of counts by reason."""
    return sum(counts.values())
