"""The installation as Python sees it: packages, their versions, and what the metadata of kvledger asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

__all__ = ["Requirement", "find_version", "is_older", "read_requirements"]

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)\s*(?:>=\s*(?P<least>[0-9][0-9.]*))?[^;]*"
    r"(?:;.*?\bextra\s*==\s*['\"](?P<extra>[^'\"]+)['\"])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One package that kvledger asks for; ``extra`` is empty for what it cannot do without."""

    name: str
    least: str
    extra: str


def read_requirements(distribution: str = "kvledger") -> tuple[Requirement, ...] | None:
    """Return what a distribution asks for; None when it is not installed, as when it runs from a folder."""
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return None
    return tuple(_read(lines))


def find_version(package: str) -> str | None:
    """Return the version of a package; None when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def is_older(found: str, least: str) -> bool:
    """Tell whether a version is below another, by the numbers they begin with.

    >>> is_older("2.10.1", "2.9"), is_older("0.61.0rc1", "0.61")
    (False, False)
    """
    return _numbers(found) < _numbers(least)


def _read(lines: list[str]) -> Iterator[Requirement]:
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is not None:
            yield Requirement(name=match["name"], least=match["least"] or "", extra=match["extra"] or "")


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", text)
    numbers = [int(part) for part in match[1].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
