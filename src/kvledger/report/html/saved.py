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
    "SavedLengthTable",
    "SavedLengths",
    "SavedMeasure",
    "SavedMitigation",
    "SavedPoint",
    "SavedPolicy",
    "SavedReading",
    "SavedRemedy",
    "SavedReplay",
    "SavedSource",
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


class SavedReservation(Struct, frozen=True, kw_only=True):
    """The requests of a sample under reservation."""

    running: int
    block_tables_admit: int
    policies: list[SavedAlternative]
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
