"""The objects that `replay --json` and `demo --json` print, as far as the report reads them.

Fields that are not named here are ignored; fields that came later have defaults, so that older files can be read.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from kvledger.ledger import Accuracy

__all__ = [
    "Ratios",
    "SavedFigure",
    "SavedFinding",
    "SavedFindings",
    "SavedLatency",
    "SavedLayout",
    "SavedLengthTable",
    "SavedLengths",
    "SavedMitigation",
    "SavedPoint",
    "SavedPolicy",
    "SavedPool",
    "SavedRemedy",
    "SavedReplay",
    "SavedTrace",
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
    running: float | None
    waiting: float | None
    peak_used_ratio: float
    peak_held_ratio: float
    preemptions: int | None = None


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


class SavedPool(Struct, frozen=True, kw_only=True):
    """One of two pools that are sized apart: how full it was, and how often it refused."""

    name: Literal["full", "window"]
    tokens: int
    token_bytes: int
    mean_held_ratio: float
    saturated_held_ratio: float
    peak_held_ratio: float
    refused: int


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
    memo: dict[str, float | None]
    paper_ratio: dict[str, float | None]
    factors: dict[str, float | None]
    latency_seconds: dict[str, SavedLatency | None]
    restarts: int = 0
    timeline: list[SavedPoint] = []
    layouts: list[SavedLayout] = []
    pools: list[SavedPool] | None = None


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
    gain: str | None = None


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


class SavedLengths(Struct, frozen=True, kw_only=True):
    """The statistics of one column of lengths."""

    mean_tokens: float
    p50_tokens: int
    p90_tokens: int
    p99_tokens: int
    max_tokens: int


class SavedTail(Struct, frozen=True, kw_only=True):
    """What blocks of one size lose in the last block of a request."""

    block_tokens: int
    tail_tokens: float
    tail_ratio: float


class SavedLengthTable(Struct, frozen=True, kw_only=True):
    """How long the requests are."""

    edges_tokens: list[int]
    prompt_requests: list[int]
    output_requests: list[int]
    total_requests: list[int]
    prompt: SavedLengths
    output: SavedLengths
    total: SavedLengths
    block_sizes: list[SavedTail]


class SavedTrace(Struct, frozen=True, kw_only=True):
    """The traffic of a replay."""

    requests: int
    source: str | None = None
    dropped: dict[str, int] = {}
    adjusted: dict[str, int] = {}
    notes: list[str] = []
    lengths: SavedLengthTable | None = None


class SavedReplay(Struct, frozen=True, kw_only=True):
    """One replay of one trace under several policies."""

    schema: str
    schema_version: int
    kvledger_version: str
    trace: SavedTrace
    pool: dict[str, Any]
    settings: dict[str, Any]
    accuracy: dict[str, Accuracy]
    notes: list[str]
    policies: list[SavedPolicy]
    mitigations: dict[str, list[SavedMitigation]] = {}
    what_ifs: dict[str, Any] | None = None
    answer: str = ""
    findings: SavedFindings = SavedFindings()
