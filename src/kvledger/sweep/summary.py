"""Which rows of a sweep are worth looking at: the best by one figure, and those that no other beats in two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvledger.sweep.columns import Cell
from kvledger.sweep.grid import Values

__all__ = ["BEST", "DEMAND", "FIGURES", "Demand", "Row", "demands_of", "pareto"]

FIGURES = (
    "used_ratio", "wasted_ratio", "wasted_bytes", "queue_mean_seconds", "queue_p99_seconds", "first_token_p99_seconds",
    "end_to_end_p99_seconds", "requests_per_second", "output_tokens_per_second", "mean_running", "preemptions",
    "prefix_hit_ratio", "rejected", "truncated", "finished",
)  # fmt: skip
"""The columns that a summary looks at."""

DEMAND = (
    "trace", "columns", "content", "rate", "seed", "session-starts", "samples", "beams", "beam-turnover",
    "model", "bytes-per-token", "layers",
)  # fmt: skip
"""Settings that say what is served, and not how: only rows that agree in them can be compared."""

BEST = {
    "wasted_bytes": ("least memory wasted", min),
    "queue_p99_seconds": ("shortest queue, p99", min),
    "first_token_p99_seconds": ("first token soonest, p99", min),
    "output_tokens_per_second": ("most output tokens a second", max),
}
"""Figures by which a best row is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy of one cell, as far as a summary needs it. ``values``: the settings that vary in the grid."""

    cell: str
    policy: str
    values: Values
    figures: Mapping[str, Cell]

    def number(self, name: str) -> float:
        """Return a figure that is there."""
        value = self.figures[name]
        assert isinstance(value, int | float)
        return value

    @property
    def cut_requests(self) -> float:
        """Requests that were rejected or cut short: a row with more of them has less to do."""
        return self.number("rejected") + self.number("truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Rows that serve the same: ``front`` and ``best`` are among those that serve the most of it in full.

    ``front``: rows that no other beats in both wasted memory and p99 queue time, from the least waste on; of rows that
    are equal in both the first. ``best``: by figure. ``left_out``: rows that reject or cut short more than others.
    """

    values: Values
    rows: Sequence[Row]
    front: Sequence[Row]
    best: Mapping[str, Row]
    left_out: int


def demands_of(rows: Sequence[Row]) -> list[Demand]:
    """Group rows by what they serve, in their order, and find the front and the best of each group."""

    def served(row: Row) -> tuple[tuple[str, str], ...]:
        return tuple((name, repr(row.values[name])) for name in DEMAND if name in row.values)

    order = {key: i for i, key in enumerate(dict.fromkeys(served(row) for row in rows))}
    ordered = sorted(rows, key=lambda row: order[served(row)])
    return [_demand(list(group)) for _, group in groupby(ordered, key=served)]


def _demand(rows: Sequence[Row]) -> Demand:
    able = [row for row in rows if row.figures.get("queue_p99_seconds") is not None]
    least = min((row.cut_requests for row in able), default=0)
    whole = [row for row in able if row.cut_requests == least]
    best = {name: choose(whole, key=lambda row: row.number(name)) for name, (_, choose) in BEST.items() if whole}
    return Demand(
        values={name: value for name, value in rows[0].values.items() if name in DEMAND},
        rows=rows,
        front=pareto(whole),
        best=best,
        left_out=len(rows) - len(whole),
    )


def pareto(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of which no other wastes as little with as short a queue, from the least waste on."""
    front: list[Row] = []
    shortest = float("inf")
    for row in sorted(rows, key=lambda row: (row.number("wasted_bytes"), row.number("queue_p99_seconds"))):
        if row.number("queue_p99_seconds") < shortest:
            shortest = row.number("queue_p99_seconds")
            front.append(row)
    return front
