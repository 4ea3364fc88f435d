"""What an installation is made of and what is wrong with it, as text and as the object of ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvledger.report.tables import heading, new_table

__all__ = ["Check", "Examination", "Extra", "State", "doctor_json", "doctor_text"]


class State(StrEnum):
    """How a check came out."""

    FINE = "fine"
    NOTE = "note"
    """Works, with something to know."""
    PROBLEM = "problem"
    """Stops a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; ``advice`` is empty where nothing is to be done."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """One optional part: its packages and their versions, None where one is missing."""

    name: str
    packages: Mapping[str, str | None]

    @property
    def is_complete(self) -> bool:
        """True when all its packages are there."""
        return all(version is not None for version in self.packages.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was found."""

    kvledger_version: str
    python_version: str
    platform: str
    packages: Mapping[str, str | None]
    extras: tuple[Extra, ...] = ()
    checks: tuple[Check, ...] = field(default=())

    @property
    def problems(self) -> list[Check]:
        """The checks that found something that stops a command."""
        return [check for check in self.checks if check.state is State.PROBLEM]


def doctor_text(found: Examination) -> RenderableType:
    """Return what was found for the terminal, the answer first."""
    problems = len(found.problems)
    answer = "Nothing is wrong" if not problems else f"{problems} problem{'s' if problems > 1 else ''} found"
    checks = new_table("check", "", price=True)
    checks.columns[2].header = "what was found"
    for check in found.checks:
        checks.add_row(check.name, check.state.value, Text(check.found))
        if check.advice:
            checks.add_row("", "", Text(f"-> {check.advice}"))
    extras = new_table("extra", "", price=True)
    extras.columns[2].header = "packages"
    for extra in found.extras:
        told = ", ".join(f"{name} {version or 'missing'}" for name, version in extra.packages.items())
        extras.add_row(extra.name, "there" if extra.is_complete else "not there", Text(told))
        if not extra.is_complete:
            extras.add_row("", "", Text(f"-> pip install 'kvledger[{extra.name}]', if you want it"))
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in found.packages.items())
    title = f"kvledger {found.kvledger_version}"
    parts: list[RenderableType] = [heading(title, f"Python {found.python_version}, {found.platform}")]
    parts += [Text(f"\n{answer}", style="bold"), Text(""), checks, heading("packages"), Text(packages)]
    if found.extras:
        parts += [heading("optional parts"), extras]
    return Group(*parts, Text())


def doctor_json(found: Examination) -> dict[str, Any]:
    """Return the object of what was found."""
    return {
        "schema": "kvledger/doctor",
        "schema_version": 1,
        "kvledger_version": found.kvledger_version,
        "python_version": found.python_version,
        "platform": found.platform,
        "packages": dict(found.packages),
        "extras": [
            {"name": extra.name, "complete": extra.is_complete, "packages": dict(extra.packages)}
            for extra in found.extras
        ],
        "checks": [
            {
                "name": check.name,
                "state": check.state.value,
                "found": check.found,
                "advice": check.advice or None,
            }
            for check in found.checks
        ],
    }
