"""The object that `sweep --json` prints, as far as the report reads it."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["SavedDemand", "SavedName", "SavedRow", "SavedSweep", "Setting"]

Setting = str | int | float | bool | None


class SavedName(Struct, frozen=True, kw_only=True):
    """What identifies a row."""

    cell: str
    policy: str


class SavedRow(Struct, frozen=True, kw_only=True):
    """One policy of one cell; times are None where no request was ever scheduled."""

    cell: str
    policy: str
    values: dict[str, Setting]
    used_ratio: float
    wasted_ratio: float
    wasted_bytes: float
    queue_p99_seconds: float | None
    first_token_p99_seconds: float | None
    output_tokens_per_second: float | None
    mean_running: float
    preemptions: int
    rejected: int
    truncated: int
    finished: int


class SavedDemand(Struct, frozen=True, kw_only=True):
    """Rows that serve the same: those that no other beats, and the best by each figure."""

    values: dict[str, Setting]
    rows: int
    left_out: int
    pareto: list[SavedName]
    best: dict[str, SavedName]


class SavedRowFailure(Struct, frozen=True, kw_only=True):
    """A row without a result."""

    cell: str
    policy: str | None
    values: dict[str, Setting]
    code: str
    message: str


class SavedSweep(Struct, frozen=True, kw_only=True):
    """A grid of settings, replayed cell by cell."""

    schema: str
    schema_version: int
    kvledger_version: str
    grid: str
    output: str | None
    cells: int
    known_cells: int
    varying: list[str]
    answer: str
    rows: list[SavedRow]
    demands: list[SavedDemand]
    failures: list[SavedRowFailure]
    notes: list[str]
