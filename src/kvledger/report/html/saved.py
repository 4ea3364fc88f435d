"""The objects that `replay --json`, `demo --json` and `measure --json` print, as far as the report reads them.

Fields that are not named here are ignored; fields that came later have defaults, so that older files can be read.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from kvledger.ledger import Accuracy

__all__ = [
    "Ratios",
    "SavedEngine",
    "SavedFigure",
    "SavedFinding",
    "SavedFindings",
    "SavedLatency",
    "SavedLayout",
    "SavedMeasure",
    "SavedMitigation",
    "SavedPoint",
    "SavedPolicy",
    "SavedReading",
    "SavedRemedy",
    "SavedReplay",
    "SavedSource",
]

Ratios = dict[str, float]


class SavedLatency(Struct, frozen=True, kw_only=True):
    """Seconds from arrival to one moment."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    exact: bool = True


class SavedPoint(Struct, frozen=True, kw_only=True):
    """One stretch of a timeline: means, with the peaks kept."""

    start_seconds: float
    seconds: float
    ratio: Ratios
    running: float
    waiting: float
    peak_used_ratio: float
    peak_held_ratio: float
    peak_external_ratio: float = 0.0
    peak_running: float = 0
    peak_waiting: float = 0
    preemptions: int = 0
    steps: int = 1


class SavedPieces(Struct, frozen=True, kw_only=True):
    """What each request holds, as columns in the order of the map."""

    joined: int
    request: list[int]
    start_bytes: list[int]
    end_bytes: list[int]
    size_bytes: list[int]
    used_bytes: list[int]
    reserved_bytes: list[int]


class SavedBlocks(Struct, frozen=True, kw_only=True):
    """What cells of one block or more hold, as columns in the order of their numbers."""

    blocks_per_cell: int
    blocks: int
    held_bytes: list[int]
    used_bytes: list[int]
    cached_bytes: list[int]
    shared_blocks: list[int]


class SavedLayout(Struct, frozen=True, kw_only=True):
    """Where everything lies at one instant."""

    moment: Literal["fullest", "most-waste", "most-holes"]
    order: Literal["addresses", "segments", "blocks", "counts"]
    step: int
    time_seconds: float
    running: int
    waiting: int
    asked_bytes: int
    unit_bytes: int
    accounts_bytes: dict[str, int]
    pieces: SavedPieces | None
    blocks: SavedBlocks | None


class SavedPolicy(Struct, frozen=True, kw_only=True):
    """What one policy did."""

    policy: str
    meaning: str
    capacity_bytes: int
    requests: int
    rejected: dict[str, int]
    truncated: int
    finished: int
    steps: int
    preemptions: int
    recomputed_tokens: int
    copied_tokens: int
    refused_while_free: int
    makespan_seconds: float
    busy_seconds: float
    saturated_seconds: float
    mean_running: float
    saturated_running: float
    peak_running: int
    peak_waiting: int
    mean_ratio: Ratios
    saturated_ratio: Ratios
    memo: dict[str, float]
    paper_ratio: Ratios
    factors: Ratios
    latency_seconds: dict[str, SavedLatency | None]
    prefix: dict[str, float] | None = None
    restarts: int = 0
    timeline: list[SavedPoint] = []
    layouts: list[SavedLayout] = []


class SavedMitigation(Struct, frozen=True, kw_only=True):
    """One row of a mitigation table."""

    change: str
    price: str
    headline_ratio: Ratios
    effect: Ratios
    mean_running: float
    saturated_running: float
    rejected: dict[str, int]
    truncated: int
    preemptions: int
    restarts: int = 0
    recomputed_tokens: int = 0
    makespan_seconds: float = 0.0


class SavedFigure(Struct, frozen=True, kw_only=True):
    """An amount with its bounds, how it is known, and what it is."""

    low: int
    high: int
    unit: str
    accuracy: Accuracy
    formula: str


class SavedRemedy(Struct, frozen=True, kw_only=True):
    """A change of one setting, and what it gives back."""

    setting: str
    returned: SavedFigure
    trade: str
    proof: str
    worse: str | None = None


class SavedFinding(Struct, frozen=True, kw_only=True):
    """One finding with everything that would help."""

    code: str
    title: str
    subject: str
    sentence: str
    size: SavedFigure
    remedies: list[SavedRemedy]
    returned_bytes: int | None = None


class SavedFindings(Struct, frozen=True, kw_only=True):
    """What would give memory back, the most first; and what was not proved."""

    told: list[SavedFinding] = []
    unproved: list[str] = []


class SavedReplay(Struct, frozen=True, kw_only=True):
    """One replay of one trace under several policies."""

    schema: str
    schema_version: int
    kvledger_version: str
    trace: dict[str, Any]
    pool: dict[str, Any]
    settings: dict[str, Any]
    accuracy: dict[str, str]
    notes: list[str]
    policies: list[SavedPolicy]
    mitigations: dict[str, list[SavedMitigation]] = {}
    what_ifs: dict[str, Any] | None = None
    answer: str = ""
    findings: SavedFindings = SavedFindings()


class SavedReading(Struct, frozen=True, kw_only=True):
    """One sample of one engine."""

    seconds: float
    engine: int
    running: int | None
    waiting: int | None
    usage_ratio: float | None = None
    problem: str | None = None
    pool: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None


class SavedEngine(Struct, frozen=True, kw_only=True):
    """One engine over a window of samples."""

    engine: int
    model: str | None
    samples: int
    verdict: dict[str, str]
    last: SavedReading
    peak: SavedReading | None
    mean_ratio: dict[str, float | None]
    traffic: dict[str, float | None]
    unread: int = 0
    restarts: int = 0
    problem: str | None = None
    internal_per_request_tokens: dict[str, float] | None = None
    reservation: dict[str, Any] | None = None
    timeline: list[SavedPoint] = []


class SavedSource(Struct, frozen=True, kw_only=True):
    """One server."""

    name: str
    samples: int
    missed: int
    engines: list[SavedEngine]
    last_error: str | None = None


class SavedMeasure(Struct, frozen=True, kw_only=True):
    """One measurement of one or several servers."""

    schema: str
    schema_version: int
    sources: list[SavedSource]
    notes: list[str] = []
    findings: SavedFindings = SavedFindings()
