"""The objects that `trace --json` and `cache --json` print, as far as the report reads them."""

from __future__ import annotations

from msgspec import Struct

from kvledger.ledger import Accuracy
from kvledger.report.html.saved import SavedLengths, SavedLengthTable

__all__ = ["SavedBudget", "SavedCache", "SavedEviction", "SavedLiveCache", "SavedTraceFile", "SavedTraceLengths"]


class SavedFormat(Struct, frozen=True, kw_only=True):
    """What a trace is."""

    name: str
    sentence: str


class SavedTraceAccuracy(Struct, frozen=True, kw_only=True):
    """How the columns of a trace are known."""

    arrivals: Accuracy
    prompts: Accuracy
    outputs: Accuracy
    error_band_ratio: dict[str, tuple[float, float]] = {}


class SavedRate(Struct, frozen=True, kw_only=True):
    """Requests a second; None where all came at once, or the trace is too short."""

    mean: float | None
    peak_10_seconds: float | None
    peak_60_seconds: float | None


class SavedTraceLengths(SavedLengths, frozen=True, kw_only=True):
    """What `trace` tells beside of a column of lengths."""

    count: int
    p95_tokens: int
    sum_tokens: int


class SavedPrefixShare(Struct, frozen=True, kw_only=True):
    """What a cache without limit would find."""

    prompt_tokens: int
    shared_tokens: int
    ratio: float


class SavedTraceFile(Struct, frozen=True, kw_only=True):
    """What a trace holds."""

    schema: str
    schema_version: int
    format: SavedFormat
    rows_read: int
    requests: int
    dropped: dict[str, int]
    adjusted: dict[str, int]
    notes: list[str]
    accuracy: SavedTraceAccuracy
    span_seconds: float
    rate_per_second: SavedRate
    arrival_cv: float | None
    prompt: SavedTraceLengths
    output: SavedTraceLengths
    total: SavedTraceLengths
    declared_max_tokens: SavedTraceLengths | None
    sessions: int
    answers: int
    beam_searches: int
    identity: str
    infinite_cache_prefix: SavedPrefixShare | None
    lengths: SavedLengthTable | None = None


class SavedCachedTrace(Struct, frozen=True, kw_only=True):
    """The traffic a cache was asked with."""

    format: str
    requests: int
    dropped: dict[str, int]
    notes: list[str]


class SavedCeiling(Struct, frozen=True, kw_only=True):
    """What a cache that forgets nothing finds."""

    hit_ratio: float


class SavedEviction(Struct, frozen=True, kw_only=True):
    """What a cache of one size finds under one eviction."""

    eviction: str
    hit_ratio: float
    filled: bool


class SavedBudget(Struct, frozen=True, kw_only=True):
    """One size of the cache."""

    budget_bytes: int
    blocks: int
    evictions: list[SavedEviction]


class SavedLiveCache(Struct, frozen=True, kw_only=True):
    """One size with live requests; None where the largest request does not fit."""

    budget_bytes: int
    eviction: str
    alone_hit_ratio: float
    live_hit_ratio: float | None
    mean_running: float | None
    preemptions: int | None


class SavedCache(Struct, frozen=True, kw_only=True):
    """What a prefix cache of every size would find."""

    schema: str
    schema_version: int
    kvledger_version: str
    trace: SavedCachedTrace
    model: str
    bytes_per_token: int
    block_tokens: int
    block_bytes: int
    distinct_blocks: int
    first_measured_request: int
    answer: str
    ceiling: SavedCeiling
    budgets: list[SavedBudget]
    live: list[SavedLiveCache]
    notes: list[str]
