"""How findings write shares."""

from __future__ import annotations

from kvledger.units import percent

__all__ = ["share"]


def share(ratio: float) -> str:
    """Write a ratio as percent.

    >>> share(0.8181)
    '81.8 %'
    """
    return percent(ratio)
