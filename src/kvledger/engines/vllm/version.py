"""Versions of vLLM, as people and logs write them."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvledger.errors import UsageError

__all__ = ["FIRST", "LATEST", "Version", "parse_version"]


class Version(NamedTuple):
    """A release: only major, minor and patch decide which rules hold."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


FIRST = Version(0, 2)
LATEST = Version(0, 33)
_LAST_PATCHES = {(0, 11): 2, (0, 20): 2}
"""The last patch of a release whose patches differ in a rule."""
_TEXT = re.compile(
    r"\s*v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\.?(?:dev|post|rc|a|b)\d{0,9}){0,2}(?:\+[\w.-]{0,60})?\s*"
)


def parse_version(text: str) -> Version:
    """Read a version such as ``0.32``, ``v0.9.1.dev705``, ``0.20.2rc1.dev9+g01d4d1ad3`` or ``0.20.2+cu129``.

    A build between two releases counts as the one it names, a release without its patch as the last one of it.

    Raises:
        UsageError: The text is no version, or the version is older than 0.2 or newer than the newest rules known.

    >>> parse_version("0.9.1.dev705")
    Version(major=0, minor=9, patch=1)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise UsageError(f"`{text[:40]}` is not a vLLM version", hint="write it as `0.32` or `0.20.2`")
    release = int(match[1]), int(match[2])
    version = Version(*release, int(match[3]) if match[3] else _LAST_PATCHES.get(release, 0))
    if version == (0, 1, 0) and "dev" in text:
        raise UsageError(
            f"`{text[:40]}` is what vLLM calls a build without its tags, so the rules it follows are not known",
            hint=f"give the release it was built near, such as `--engine-version {LATEST[0]}.{LATEST[1]}`",
        )
    if version < FIRST or version[:2] > LATEST[:2]:
        raise UsageError(
            f"the sizing rules of vLLM {version} are not known: they are known from {FIRST[0]}.{FIRST[1]} to "
            f"{LATEST[0]}.{LATEST[1]}",
            hint=f"use `--engine-version {LATEST[0]}.{LATEST[1]}` and compare with the engine's log",
        )
    return version
