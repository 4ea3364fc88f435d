"""The text of a file, in the encodings in which logs are saved: UTF-8, and what a Windows shell writes."""

from __future__ import annotations

__all__ = ["decode", "is_wide"]

_LOOK = 4096
_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def is_wide(content: bytes) -> str | None:
    """Return the name of the UTF-16 that bytes are written in, None for all else.

    Without a mark it is known by its zeros: of ASCII text every second byte is one.

    >>> is_wide("slot".encode("utf-16-le"))
    'utf-16-le'
    """
    named = _MARKS.get(content[:2])
    if named is not None:
        return named
    head = content[: min(_LOOK, len(content) // 2 * 2)]
    half = len(head) // 2
    for name, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = head[first::2].count(0), head[1 - first :: 2].count(0)
        if half and zeros > 0.9 * half and not others:
            return name
    return None


def decode(content: bytes) -> str:
    """Return the text; bytes that are none become a replacement sign."""
    return content.decode(is_wide(content) or "utf-8", errors="replace").removeprefix("\ufeff")
