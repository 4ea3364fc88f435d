"""Chinese for the sentences that results bring along. What is not known stays English."""

from __future__ import annotations

import re

__all__ = ["translate"]

_RULES: tuple[tuple[str, str], ...] = ()


def translate(text: str) -> str | None:
    """Return a sentence in Chinese, or None when this is not one of ours.

    >>> translate("no such sentence") is None
    True
    """
    for pattern, chinese in _RULES:
        match = re.fullmatch(pattern, text)
        if match:
            return match.expand(chinese)
    return None
