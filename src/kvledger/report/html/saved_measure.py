"""The object that `measure --json` prints, as far as the report reads it; what came later has defaults."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kvledger.ledger import Accuracy
from kvledger.report.html.saved import SavedFindings, SavedPoint

__all__ = [
    "SavedEngine",
    "SavedMeasure",
    "SavedReading",
    "SavedReservation",
    "SavedSheet",
    "SavedSheetFigure",
    "SavedSource",
    "SavedSpan",
]


class SavedSheetFigure(Struct, frozen=True, kw_only=True):
    """One number of a sample with its bounds; ``high`` is None where there is none."""

    name: str
    low: int
    high: int | None
    accuracy: Accuracy
    formula: str


class SavedPart(Struct, frozen=True, kw_only=True):
    """One reason for what is unattributed."""

    amount: int
    cause: str


class SavedSheet(Struct, frozen=True, kw_only=True):
    """The ledger of one sample, in bytes, or in tokens where nothing tells what one costs."""

    unit: str
    figures: list[SavedSheetFigure]
    unattributed: list[SavedPart] = []
    capacity_bytes: int | None = None
    capacity_tokens: int | None = None
    accounts_bytes: dict[str, int] | None = None
    accounts_tokens: dict[str, int] | None = None

    @property
    def capacity(self) -> int:
        """The pool in the unit of the sheet."""
        return (self.capacity_bytes if self.unit == "bytes" else self.capacity_tokens) or 0

    @property
    def accounts(self) -> dict[str, int]:
        """The accounts in the unit of the sheet."""
        return (self.accounts_bytes if self.unit == "bytes" else self.accounts_tokens) or {}


class SavedSpan(Struct, frozen=True, kw_only=True):
    """The bounds of a number; ``high`` is None where there is none."""

    low: int
    high: int | None


class SavedAlternative(Struct, frozen=True, kw_only=True):
    """One way to reserve for the requests of a sample."""

    policy: str
    reserved_tokens: SavedSpan
    admitted: SavedSpan
    used_ratio: list[float]
    accuracy: Accuracy
    formula: str


class SavedTables(Struct, frozen=True, kw_only=True):
    """What blocks hold for the requests of a sample."""

    held_tokens: int
    used_ratio: list[float]
    accuracy: Accuracy
    formula: str


class SavedReservation(Struct, frozen=True, kw_only=True):
    """The requests of a sample under reservation."""

    running: int
    block_tables_admit: int
    policies: list[SavedAlternative]
    block_tables: SavedTables | None = None
    """None in files that were written before it was told."""
    times_more: float | None = None
    missing: list[str] = []


class SavedReading(Struct, frozen=True, kw_only=True):
    """One sample of one engine."""

    seconds: float
    running: int | None
    waiting: int | None
    usage_ratio: float | None = None
    problem: str | None = None
    tokens: dict[str, Any] | None = None
    ledger: SavedSheet | None = None


class SavedEngine(Struct, frozen=True, kw_only=True):
    """One engine of vLLM, or one pool of another engine, over a window of samples.

    ``engine`` is the index of the former, the name of the latter, whose index is ``engine_index``.
    """

    engine: int | str
    engine_index: int = 0
    rank: str | None = None
    pool: str = "kv"
    model: str | None
    samples: int
    verdict: dict[str, str]
    last: SavedReading
    peak: SavedReading | None
    mean_ratio: dict[str, float | None]
    traffic: dict[str, Any]
    unread: int = 0
    restarts: int = 0
    problem: str | None = None
    reservation: SavedReservation | None = None
    timeline: list[SavedPoint] = []


class SavedSource(Struct, frozen=True, kw_only=True):
    """One server."""

    name: str
    samples: int
    missed: int
    engines: list[SavedEngine] = []
    pools: list[SavedEngine] = []
    last_error: str | None = None


class SavedMeasure(Struct, frozen=True, kw_only=True):
    """One measurement of one or several servers."""

    schema: str
    schema_version: int
    sources: list[SavedSource]
    notes: list[str] = []
    findings: SavedFindings = SavedFindings()
