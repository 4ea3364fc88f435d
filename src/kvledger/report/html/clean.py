"""Text from outside, made harmless to look at: no control characters, no change of direction, no endless names."""

from __future__ import annotations

import unicodedata
from typing import Any

__all__ = ["clean_text", "clean_value"]

_LONGEST = 2_000
_KEPT = {"\n", "\u200d"}  # line breaks of our own sentences, and what joins emoji
_MOST_KEYS = 20_000
_DEEPEST = 12
_LARGEST = 2**62


def clean_text(text: str, *, longest: int = _LONGEST) -> str:
    r"""Replace what cannot be seen or would turn the text around, and cut what is too long.

    >>> clean_text("a\u202eb")
    'a\ufffdb'
    """
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c not in _KEPT else c for c in cut
    )


def clean_value(value: Any, *, most_items: int, depth: int = 0) -> Any:
    """Return a JSON value with clean strings and keys, and at most ``most_items`` in each list.

    Raises:
        ValueError: A number is larger than anything that is counted here.
    """
    if isinstance(value, str):
        return clean_text(value)
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        items = list(value.items())[:_MOST_KEYS]
        return {
            clean_text(str(key), longest=200): clean_value(item, most_items=most_items, depth=depth + 1)
            for key, item in items
        }
    if isinstance(value, (list, tuple)):
        return [clean_value(item, most_items=most_items, depth=depth + 1) for item in value[:most_items]]
    if isinstance(value, (int, float)) and not -_LARGEST <= value <= _LARGEST:
        raise ValueError(f"it holds a number beyond {_LARGEST:,}")
    return value
