"""How findings write shares."""

from __future__ import annotations

__all__ = ["share"]


def share(ratio: float) -> str:
    """Write a ratio as percent.

    >>> share(0.8181)
    '81.8 %'
    """
    return f"{100 * ratio:.1f} %"
