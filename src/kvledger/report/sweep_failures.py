"""Rows of a sweep without a result: every reason once, with the rows that it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvledger.sweep.columns import Cell
from kvledger.sweep.grid import Values
from kvledger.units import counted

__all__ = ["Failure", "failure_lines", "reasons_of", "written"]

_MOST_REASONS = 20
_MOST_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row without a result; ``policy`` is None when the whole cell failed."""

    cell: str
    policy: str | None
    values: Values
    code: str
    message: str


def reasons_of(failures: Sequence[Failure]) -> dict[str, list[Failure]]:
    """Return the rows of every reason, in the order in which reasons first come."""
    reasons: dict[str, list[Failure]] = {}
    for failure in failures:
        reasons.setdefault(failure.message, []).append(failure)
    return reasons


def failure_lines(failures: Sequence[Failure]) -> Iterator[str]:
    """Write every reason with the rows that it took; of many rows the first, and what all of them share."""
    reasons = reasons_of(failures)
    for message, rows in list(reasons.items())[:_MOST_REASONS]:
        yield f"- {message}"
        shown = rows if len(rows) <= _MOST_ROWS else rows[: _MOST_ROWS - 1]
        yield from (f"    {_name(row)}" for row in shown)
        if len(rows) > len(shown):
            shared = ", ".join(_shared(rows))
            yield f"    and {len(rows) - len(shown):,} more" + (f", all with {shared}" if shared else "")
    if len(reasons) > _MOST_REASONS:
        yield f"- and {counted(len(reasons) - _MOST_REASONS, 'more reason')}, which `--json` tells"


def written(value: Cell) -> str:
    """Write the value of a setting."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53):
        return f"{int(value):,}"
    return f"{value:g}" if isinstance(value, float) else value


def _name(failure: Failure) -> str:
    return ", ".join(_settings(failure)) or failure.cell


def _settings(failure: Failure) -> list[str]:
    named = [f"{name} {written(value)}" for name, value in failure.values.items()]
    return named + ([failure.policy] if failure.policy and "policy" not in failure.values else [])


def _shared(rows: Sequence[Failure]) -> list[str]:
    others = [set(_settings(row)) for row in rows[1:]]
    return [one for one in _settings(rows[0]) if all(one in other for other in others)]
