"""Releases as logs and deployments write them, for what changed with one."""

from __future__ import annotations

import re

__all__ = ["is_before"]

_NUMBERS = re.compile(r"\s*v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


def is_before(version: str | None, *release: int) -> bool:
    """Tell whether a version is surely older than a release; one that cannot be read is not.

    >>> is_before("0.9.1.dev705", 0, 10, 2), is_before("0.10.2", 0, 10, 2), is_before(None, 0, 7)
    (True, False, False)
    """
    match = _NUMBERS.match(version or "")
    return match is not None and tuple(int(part or 0) for part in match.groups()) < release
