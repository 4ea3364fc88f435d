"""A sweep as text and as JSON: what ran, the best rows, and those that no other beats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import kvledger
from kvledger.report.sweep_failures import Failure, failure_lines, written
from kvledger.report.tables import heading, new_table
from kvledger.sweep.columns import Cell
from kvledger.sweep.grid import Values
from kvledger.sweep.summary import BEST, DEMAND, FIGURES, Demand, Row, demands_of
from kvledger.units import counted, format_bytes

__all__ = ["SweepReport", "sweep_answer", "sweep_json", "sweep_text"]

SCHEMA = "kvledger/sweep"
SCHEMA_VERSION = 1
_MOST_FRONT = 30
_MOST_SENTENCES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep found. ``varying`` names the settings that differ between cells; ``known`` cells were not run."""

    source: str
    cells: int
    known: int
    varying: Sequence[str]
    rows: Sequence[Row]
    failures: Sequence[Failure]
    output: str | None = None
    notes: tuple[str, ...] = ()


def sweep_text(report: SweepReport) -> RenderableType:
    """Return the whole report, ready to print with rich."""
    return Group(*_sections(report))


def _sections(report: SweepReport) -> Iterator[RenderableType]:
    known = f", {report.known:,} of them from before" if report.known else ""
    yield Text(f"{counted(report.cells, 'cell')} of {report.source}{known}; {counted(len(report.rows), 'result')}")
    demands = demands_of(report.rows)
    yield Text("\n" + sweep_answer(demands, report.varying), style="bold")
    settings = _shown(report, demands)
    for demand in demands:
        yield from _demand(demand, settings)
    if report.failures:
        yield heading(f"{counted(len(report.failures), 'row')} without a result")
        yield Text("\n".join(failure_lines(report.failures)))
    yield heading("How these numbers are known")
    yield Text("\n".join(f"- {line}" for line in _RULES))


def sweep_answer(demands: Sequence[Demand], varying: Sequence[str]) -> str:
    """Say in words what the ends of each front are: the least waste, and the shortest queue."""
    sentences = []
    for demand in demands:
        if not demand.front:
            continue
        which = ", ".join(f"{name} {written(value)}" for name, value in demand.values.items())
        least, quickest = demand.front[0], demand.front[-1]
        text = f"For {which}: " if which else ""
        if least is quickest:
            text += f"{_whole(least, varying)}, the least and the shortest."
        else:
            text += f"Least waste: {_whole(least, varying)}. Shortest queue: {_whole(quickest, varying)}."
            if len(demand.front) > 2:
                text += f" {counted(len(demand.front) - 2, 'row')} between them trade one for the other."
        sentences.append(text)
    if len(sentences) > _MOST_SENTENCES:
        return f"{counted(len(sentences), 'demand')}, each with its own answer below."
    return "\n".join(sentences) or "No row serves a request."


def _whole(row: Row, varying: Sequence[str]) -> str:
    """Name a row with its two figures."""
    settings = [f"{n} {written(row.values[n])}" for n in varying if n in row.values and n not in (*DEMAND, "policy")]
    name = f"`{row.policy}`" + (f" ({', '.join(settings)})" if settings else "")
    return f"{name} wastes {_figure(row, 'wasted_bytes')} and waits {_figure(row, 'queue_p99_seconds')} (p99)"


_RULES = (
    "memory: derived by replay; `wasted` is reserved + internal + external, the mean while requests wait if they wait "
    "for a tenth of the time, else over all busy time",
    "times: modelled, by the clock of each cell; p99 of all requests from arrival to first scheduled",
    "rows are compared with rows that serve the same requests and the same model, as many of them in full",
)


def _shown(report: SweepReport, demands: Sequence[Demand]) -> list[str]:
    """Return the settings that tell rows of one demand apart; `policy` has its own column."""
    named = {name for demand in demands for name in demand.values}
    return [name for name in report.varying if name not in named and name != "policy"]


def _demand(demand: Demand, settings: Sequence[str]) -> Iterator[RenderableType]:
    if demand.values:
        yield heading(", ".join(f"{name} {written(value)}" for name, value in demand.values.items()))
    if not demand.front:
        yield Text("no row serves a request")
        return
    note = f"of {counted(len(demand.rows), 'row')}, from the least waste on"
    if demand.left_out:
        note += f"; left out: {demand.left_out:,} that reject or cut short more requests than others"
    yield heading("No row beats these in both wasted memory and queue time", note)
    yield _table(demand.front[:_MOST_FRONT], settings)
    if len(demand.front) > _MOST_FRONT:
        yield Text(f"and {len(demand.front) - _MOST_FRONT:,} more", style="dim")
    yield heading("Best by one figure")
    yield _best(demand, settings)


def _table(rows: Sequence[Row], settings: Sequence[str]) -> Table:
    figures = ("wasted", "of pool", "queue p99", "first token p99", "tokens/s", "preempted")
    table = new_table("policy", *settings, *figures)
    for row in rows:
        table.add_row(
            row.policy,
            *(written(row.values.get(setting)) for setting in settings),
            _figure(row, "wasted_bytes"),
            f"{100 * row.number('wasted_ratio'):.1f} %",
            _figure(row, "queue_p99_seconds"),
            _figure(row, "first_token_p99_seconds"),
            _figure(row, "output_tokens_per_second"),
            f"{int(row.number('preemptions')):,}",
        )
    return table


def _best(demand: Demand, settings: Sequence[str]) -> Table:
    table = new_table("", "best", "policy", *settings)
    for name, row in demand.best.items():
        values = (written(row.values.get(setting)) for setting in settings)
        table.add_row(BEST[name][0], _figure(row, name), row.policy, *values)
    return table


def _figure(row: Row, name: str) -> str:
    value = row.figures.get(name)
    if not isinstance(value, int | float):
        return "-"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_per_second"):
        return f"{value:,.0f}"
    return f"{value:,.3g} s" if value < 1000 else f"{value:,.0f} s"


def sweep_json(report: SweepReport) -> dict[str, Any]:
    """Return the object that ``sweep --json`` prints."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvledger_version": kvledger.__version__,
        "grid": report.source,
        "output": report.output,
        "cells": report.cells,
        "known_cells": report.known,
        "varying": list(report.varying),
        "answer": sweep_answer(demands_of(report.rows), report.varying),
        "rows": [_row(row) for row in report.rows],
        "demands": [
            {
                "values": _plain(demand.values),
                "rows": len(demand.rows),
                "left_out": demand.left_out,
                "pareto": [_name(row) for row in demand.front],
                "best": {figure: _name(row) for figure, row in demand.best.items()},
            }
            for demand in demands_of(report.rows)
        ],
        "failures": [
            {"cell": f.cell, "policy": f.policy, "values": _plain(f.values), "code": f.code, "message": f.message}
            for f in report.failures
        ],
        "notes": list(report.notes),
    }


def _name(row: Row) -> dict[str, str]:
    return {"cell": row.cell, "policy": row.policy}


def _row(row: Row) -> dict[str, Any]:
    return {
        **_name(row),
        "values": _plain(row.values),
        **{name: row.figures.get(name) for name in FIGURES},
    }


def _plain(values: Values) -> dict[str, Cell]:
    """Return settings as JSON holds them: an infinite rate has no number there."""
    return {name: "inf" if isinstance(v, float) and math.isinf(v) else v for name, v in values.items()}
