"""Sizes in bytes: reading what people write, and writing what they read."""

from __future__ import annotations

import re

from kvledger.errors import UsageError

__all__ = ["GIB", "KIB", "MIB", "agree", "counted", "format_bytes", "parse_bytes", "percent", "percents"]

KIB = 2**10
MIB = 2**20
GIB = 2**30

_FACTORS = {
    "": 1,
    "B": 1,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_AMBIGUOUS = {"K", "M", "G", "T"}
_SIZE = re.compile(
    r"\s*(?P<digits>\d{1,20}|\d{1,3}(?:,\d{3}){1,6})(?:\.(?P<fraction>\d{1,20}))?\s*(?P<unit>[A-Za-z]*)\s*",
    re.ASCII,
)
_MAX_BYTES = 2**60
_LONGEST = 64


def parse_bytes(text: str) -> int:
    """Read a size such as ``16GiB``, ``16GB`` or ``17179869184``.

    Binary units (KiB, MiB, GiB, TiB) are powers of 1024, decimal ones (kB, MB, GB, TB) powers of 1000.
    A fraction of a byte is rounded down. ``16G`` is refused, because it means both.

    Raises:
        UsageError: The text is not a size, is ambiguous, or is above 2**60 bytes.

    >>> parse_bytes("0.5GiB")
    536870912
    """
    match = _SIZE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise UsageError(
            f"`{text[:_LONGEST]}` is not a size", hint="write a number with a unit, such as `16GiB` or `16GB`"
        )
    unit = match["unit"].upper()
    if unit in _AMBIGUOUS:
        number = text.strip()[: -len(match["unit"])].strip()
        raise UsageError(
            f"`{text.strip()}` is ambiguous: {match['unit']} may be binary or decimal",
            hint=f"write `{number}{unit}iB` (powers of 1024) or `{number}{unit}B` (powers of 1000)",
        )
    if unit not in _FACTORS:
        raise UsageError(
            f"`{match['unit']}` in `{text.strip()}` is not a unit of size",
            hint="the units are B, KiB, MiB, GiB, TiB and kB, MB, GB, TB",
        )
    fraction = match["fraction"] or ""
    if fraction and not unit:
        raise UsageError(f"`{text.strip()}` has no unit", hint=f"write `{text.strip()}GiB` or `{text.strip()}GB`")
    whole = int(match["digits"].replace(",", "") + fraction)
    value: int = whole * _FACTORS[unit] // 10 ** len(fraction)
    if value > _MAX_BYTES:
        raise UsageError(f"`{text.strip()}` is more than 1 EiB", hint="check the unit")
    return value


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Write a count with its noun, in the plural unless it is one; ``plural`` where it is more than an s.

    >>> counted(1, "request"), counted(2000, "answer"), counted(3, "copy", "copies")
    ('1 request', '2,000 answers', '3 copies')
    """
    return f"{count:,} " + (noun if count == 1 else plural or f"{noun}s")


def agree(count: int, one: str, more: str) -> str:
    """Return the form of a verb that agrees with a count.

    >>> agree(1, "is", "are"), agree(2, "is", "are")
    ('is', 'are')
    """
    return one if count == 1 else more


def percent(ratio: float) -> str:
    """Write a share as percent with one decimal.

    >>> percent(0.963)
    '96.3 %'
    """
    return f"{100 * ratio:.1f} %"


def percents(low: float, high: float, *, between: str = " to ") -> str:
    """Write a share that is an interval; one number when both ends read the same.

    >>> percents(0.2, 0.3), percents(0.2, 0.20001), percents(0.2, 0.3, between=" - ")
    ('20.0 to 30.0 %', '20.0 %', '20.0 - 30.0 %')
    """
    least, most = percent(low), percent(high)
    return least if least == most else f"{least.removesuffix(' %')}{between}{most}"


def format_bytes(value_bytes: float) -> str:
    """Write a size in binary units, with two decimals from KiB up.

    >>> format_bytes(131072)
    '128.00 KiB'
    >>> format_bytes(-1536)
    '-1.50 KiB'
    """
    sign, rest = ("-", -value_bytes) if value_bytes < 0 else ("", value_bytes)
    for factor, unit in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if rest >= factor:
            return f"{sign}{rest / factor:.2f} {unit}"
    return f"{sign}{rest:.0f} B"
