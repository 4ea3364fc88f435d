"""How numbers are written on the page; a thin space joins a number and its unit."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.report.html.markup import Markup, element, join
from kvledger.units import format_bytes

__all__ = ["amount", "count", "duration", "fine_amount", "percent", "points", "share_cell", "short_amount", "total"]

_GAP = "\u202f"
_MINUS = "\u2212"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


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


def short_amount(size_bytes: float) -> str:
    """Write an amount of bytes as a mark on an axis.

    >>> short_amount(1.5 * 2**30).split()
    ['1.5', 'GiB']
    """
    power = _power(size_bytes)
    return f"{size_bytes / 1024**power:.3g}{_GAP}{_UNITS[power]}"


def fine_amount(size_bytes: float) -> str:
    """Write an amount of bytes so that the bounds of a rounded one can be told apart.

    >>> fine_amount(17.205 * 2**30).split()
    ['17.2050', 'GiB']
    """
    power = _power(size_bytes)
    return f"{size_bytes / 1024**power:.4f}{_GAP}{_UNITS[power]}"


def _power(size_bytes: float) -> int:
    return next((n for n, _ in reversed(list(enumerate(_UNITS))) if size_bytes >= 1024**n), 0)


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
