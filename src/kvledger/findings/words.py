"""How findings write shares and lists."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["join_words", "share"]


def share(ratio: float) -> str:
    """Write a ratio as percent.

    >>> share(0.8181)
    '81.8 %'
    """
    return f"{100 * ratio:.1f} %"


def join_words(words: Iterable[str]) -> str:
    """Join what gets worse; empty parts are left out.

    >>> join_words(["a", "", "b"])
    'a; b'
    """
    return "; ".join(word for word in words if word)
