"""What a number of a saved result may be; the file may come from anybody."""

from __future__ import annotations

from collections.abc import Iterable

from kvledger.errors import SourceError

__all__ = ["LARGEST", "TOLERANCE", "check_count", "check_numbers", "check_shares"]

LARGEST = 2**60
TOLERANCE = 1e-6
_MOST_BOOKS = 64


def check_count(count: int, what: str, name: str) -> None:
    """Raise when there is none of something of which a page shows each, or more than it can show."""
    if not 1 <= count <= _MOST_BOOKS:
        raise SourceError(f"`{name}` has {count:,} {what}, not from 1 to {_MOST_BOOKS}")


def check_numbers(numbers: Iterable[float], where: str) -> None:
    """Raise when a number is negative or beyond anything that is counted here."""
    for number in numbers:
        if not 0 <= number <= LARGEST:
            raise SourceError(f"{where} is damaged: {number:g} is no amount")


def check_shares(shares: Iterable[float], where: str) -> None:
    """Raise when a number is no share of a whole."""
    for share in shares:
        if not -TOLERANCE <= share <= 1 + TOLERANCE:
            raise SourceError(f"{where} is damaged: {share:g} is no share of a whole")
