"""Versions of engines that number their releases ``major.minor.patch``."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvledger.errors import UsageError

__all__ = ["Release", "read_release"]

_TEXT = re.compile(
    r"\s*v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\.?(?:dev|post|rc|a|b)\d{0,9}){0,2}(?:\+[\w.-]{0,60})?\s*"
)


class Release(NamedTuple):
    """A release: only major, minor and patch decide which rules hold."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def read_release(text: str, *, engine: str, first: Release, latest: Release) -> Release:
    """Read a version such as ``0.5.9`` or ``v0.4.6.post5``.

    Raises:
        UsageError: The text is no version, or the rules of that version are not known.

    >>> read_release("0.4.6.post5", engine="SGLang", first=Release(0, 4, 1), latest=Release(0, 5, 23))
    Release(major=0, minor=4, patch=6)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UsageError(f"`{text[:40]}` is not a version of {engine}", hint=f"write it as `{latest}`")
    release = Release(int(match[1]), int(match[2]), int(match[3] or 0))
    if not first <= release <= latest:
        raise UsageError(
            f"the sizing rules of {engine} {release} are not known: they are known from {first} to {latest}",
            hint=f"plan it as {latest if release > latest else first} and compare with the engine's log",
        )
    return release
