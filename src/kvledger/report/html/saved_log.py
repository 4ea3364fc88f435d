"""The object that `measure LOG --json` prints: what a log alone tells; every number has bounds."""

from __future__ import annotations

from msgspec import Struct

from kvledger.ledger import Accuracy
from kvledger.report.html.saved import SavedFindings

__all__ = ["SavedLoad", "SavedLog", "SavedLogEngine", "SavedQuantity"]


class SavedQuantity(Struct, frozen=True, kw_only=True):
    """A number as a log prints it, and what its rounding leaves open."""

    value: float
    low: float
    high: float
    accuracy: Accuracy


class SavedLoad(Struct, frozen=True, kw_only=True):
    """The busiest periodic line, and the whole of them."""

    lines: int
    running: int
    waiting: int | None
    held_ratio: tuple[float, float]
    used_ratio: tuple[float, float] | None
    mean_held_ratio: float
    reserved_ratio: float | None
    preemptions: int | None
    verdict: dict[str, str]


class SavedLogEngine(Struct, frozen=True, kw_only=True):
    """One engine of one start."""

    engine: str
    engine_index: int
    version: str | None
    model: str | None
    tokens: SavedQuantity | None
    tokens_source: str | None
    size_bytes: SavedQuantity | None
    blocks: SavedQuantity | None
    block_tokens: SavedQuantity | None
    max_model_len: SavedQuantity | None
    concurrency: SavedQuantity | None
    errors: list[str]
    notes: list[str]
    load: SavedLoad | None


class SavedLog(Struct, frozen=True, kw_only=True):
    """The log of one server."""

    schema: str
    schema_version: int
    engines: list[SavedLogEngine]
    findings: SavedFindings = SavedFindings()
