"""What engines say about themselves, as records: start-up facts, periodic samples and snapshots of an instant.

Readers fill these records from text (logs, ``/metrics``, JSON); the laws of a running server turn them into ledgers.
A field is None when the text does not say it: nothing is guessed and nothing becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.engines.notices import DeviceMemory, Notice, NoticeKind
from kvledger.engines.quantity import Fact, Quantity, smallest

__all__ = [
    "DeviceMemory",
    "Engine",
    "EngineLog",
    "EngineSnapshot",
    "HistogramReading",
    "MemoryItem",
    "Notice",
    "NoticeKind",
    "PeriodicSample",
    "PoolFacts",
    "PoolReading",
    "SampleKind",
    "SlotReading",
    "StartupFacts",
]


class Engine(StrEnum):
    """The engines whose logs and metrics are read; the values are those of a deployment."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OLLAMA = "ollama"
    TGI = "tgi"
    TENSORRT_LLM = "tensorrt-llm"
    LMDEPLOY = "lmdeploy"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """Bytes outside the pool that a log names: ``weights``, ``activation``, ``non-torch``, ``graphs``, ``total`` ..."""

    name: str
    size_bytes: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """One pool as one rank (or engine process) printed it; ranks restate a pool, they do not add to it."""

    name: str = "kv"
    """``kv`` for the only pool, or for all attention pools of a rank where the engine gives their sum; else ``full``,
    ``swa``, ``state``, ``index``, ``draft``, ``virtual``, ``host``, ``window N``."""
    origin: str = ""
    """The rank, process or device that printed it, such as ``TP0`` or ``EngineCore_DP1``; empty when it says none."""
    engine_index: int = 0
    """Data-parallel engine: each has a pool of its own."""
    line: int
    """First line of the log about this pool."""
    size_bytes: Quantity | None = None
    """Bytes of the pool on this rank."""
    key_bytes: Quantity | None = None
    value_bytes: Quantity | None = None
    tokens: Quantity | None = None
    """Tokens as printed: what they mean depends on engine and version (vLLM 0.20.1 changed it)."""
    blocks: Quantity | None = None
    """Blocks of the pool, null block included."""
    host_blocks: Quantity | None = None
    block_tokens: Quantity | None = None
    block_bytes: Quantity | None = None
    cells: Quantity | None = None
    """llama.cpp: cells of each stream; the pool holds ``cells * streams``."""
    streams: Quantity | None = None
    slots: Quantity | None = None
    """State slots, or sequences that can run at once."""
    kept_states: Quantity | None = None
    """llama.cpp: older states that each slot keeps besides its own, for a rejected draft (``rs_seq``)."""
    layers: Quantity | None = None
    key_dtype: str | None = None
    value_dtype: str | None = None
    longest_tokens: Quantity | None = None
    """The request length that the concurrency line speaks of."""
    concurrency: Quantity | None = None
    is_memory: bool = True
    """False for virtual address space: its size is not memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFacts:
    """What one start of an engine printed; a log with a restart gives several of these."""

    engine: Engine
    first_line: int = 1
    version: Fact[str] | None = None
    newest_version: Fact[str] | None = None
    """The newest release that words its lines so; it bounds a version that no line names."""
    model: Fact[str] | None = None
    dtype: Fact[str] | None = None
    kv_dtype: Fact[str] | None = None
    device: Fact[str] | None = None
    tp: Quantity | None = None
    pp: Quantity | None = None
    dp: Quantity | None = None
    dcp: Quantity | None = None
    max_model_len: Quantity | None = None
    """Longest request in tokens (of one slot where slots own strips)."""
    block_tokens: Quantity | None = None
    max_running: Quantity | None = None
    """Requests that may run at once (``max_num_seqs``, ``max_running_requests``, slots)."""
    batch_tokens: Quantity | None = None
    """Tokens of one step (``max_num_batched_tokens``, ``chunked_prefill_size``, ``n_ubatch``)."""
    memory_ratio: Quantity | None = None
    """The share of memory asked for (``gpu_memory_utilization``, ``mem_fraction_static`` ...)."""
    prefix_caching: Fact[bool] | None = None
    unified: Fact[bool] | None = None
    """llama.cpp: slots share all cells (true) or own strips (false)."""
    pools: tuple[PoolFacts, ...] = ()
    memory: tuple[MemoryItem, ...] = ()
    notices: tuple[Notice, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """Flags as the engine printed them, by the engine's own names, as text."""

    @property
    def errors(self) -> tuple[Notice, ...]:
        """The notices that are errors."""
        return tuple(notice for notice in self.notices if notice.is_error)

    def find_pools(self, name: str | None = None, *, engine_index: int | None = None) -> tuple[PoolFacts, ...]:
        """Return the pools of that name and engine, one a rank, in the order of the log."""
        return tuple(
            pool for pool in self.pools if name in (None, pool.name) and engine_index in (None, pool.engine_index)
        )

    def find_smallest(self, field_name: str, name: str = "kv", *, engine_index: int | None = None) -> Quantity | None:
        """Return a pool's field from the rank that has least: that rank decides for the whole engine."""
        pools = self.find_pools(name, engine_index=engine_index)
        return smallest(getattr(pool, field_name) for pool in pools)

    @property
    def engine_indices(self) -> tuple[int, ...]:
        """The data-parallel engines that printed a pool, ascending."""
        return tuple(sorted({pool.engine_index for pool in self.pools}))


class SampleKind(StrEnum):
    """What a periodic line speaks of."""

    INTERVAL = "interval"
    """The time since the previous line."""
    PREFILL = "prefill"
    """One prefill batch."""
    DECODE = "decode"
    """The decode batch of this moment."""
    ITERATION = "iteration"
    """One step of the scheduler."""
    EVENT = "event"
    """Something that happened between lines, such as a preemption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """One pool at one instant, in the unit the engine counts in."""

    name: str = "kv"
    unit: str = "tokens"
    """``tokens``, ``blocks``, ``slots``, ``cells`` or ``bytes``."""
    capacity: Quantity | None = None
    used: Quantity | None = None
    """Referenced by running requests, in whole grains of the engine."""
    cached: Quantity | None = None
    """Reusable and referenced by nobody."""
    free: Quantity | None = None
    occupied: Quantity | None = None
    """Used and cached together, where the engine does not tell them apart."""
    usage_ratio: Quantity | None = None
    """What the engine calls usage: used / capacity with its rounding."""
    stored: Quantity | None = None
    """Of ``used``: what holds tokens, a shared one once."""
    lost: Quantity | None = None
    """What nobody can use."""
    shared_saving: Quantity | None = None
    block_tokens: Quantity | None = None
    size_bytes: Quantity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicSample:
    """One periodic line of a log."""

    engine: Engine
    kind: SampleKind = SampleKind.INTERVAL
    line: int
    order: int = 0
    """Position among the samples of this log, from 0."""
    seconds: float | None = None
    """The line's own clock, in seconds since an arbitrary start (the Unix epoch where a year is printed)."""
    engine_index: int = 0
    aggregated_engines: int = 1
    """Engines averaged in this line."""
    origin: str = ""
    running: Quantity | None = None
    waiting: Quantity | None = None
    """Waiting, pending or queued, as printed (vLLM from 0.20 on: the deferred ones are among them)."""
    swapped: Quantity | None = None
    deferred: Quantity | None = None
    """Waiting for something other than memory."""
    preemptions: Quantity | None = None
    """Preemptions (retractions) since the previous line."""
    usage_ratio: Quantity | None = None
    """Share of the pool in use; low and high are the rounding of the printed digits."""
    host_usage_ratio: Quantity | None = None
    prompt_tokens_per_second: Quantity | None = None
    generation_tokens_per_second: Quantity | None = None
    prefix_hit_ratio: Quantity | None = None
    tokens: Quantity | None = None
    """Tokens in use, where the line prints them."""
    new_sequences: Quantity | None = None
    new_tokens: Quantity | None = None
    """Tokens computed by this batch or step."""
    cached_tokens: Quantity | None = None
    """Tokens this batch found in the cache."""
    step_seconds: Quantity | None = None
    pools: tuple[PoolReading, ...] = ()
    """Per pool, where the line tells pools apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReading:
    """One slot of a server with a fixed number of slots (llama.cpp)."""

    slot_id: int
    task_id: int | None = None
    """The request the slot works on, or worked on last; ids grow with time."""
    capacity_tokens: Quantity | None = None
    """``n_ctx`` of the slot: its strip, or all cells when slots share them."""
    tokens: Quantity | None = None
    """Tokens whose keys and values the slot holds, running or kept after the request."""
    is_processing: bool = False
    prompt_tokens: Quantity | None = None
    """Tokens of the current request's prompt that were computed or reused so far."""
    reused_tokens: Quantity | None = None
    """Of these, the ones that were in the cache."""
    decoded_tokens: Quantity | None = None
    remaining_tokens: Quantity | None = None
    """Tokens the request may still produce; None when it is not bounded."""
    declared_tokens: Quantity | None = None
    """Tokens the request may produce in all, as it declared; None when it declared none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramReading:
    """A cumulative histogram as scraped: ``counts[i]`` observations are <= ``edges[i]``; the last edge is infinity."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    count: float
    total: float
    """Sum of all observations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """One engine (or rank) at one instant, from metrics or JSON."""

    engine: Engine
    model: str | None = None
    engine_index: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that tell this engine or rank from the others of the same text."""
    seconds: float | None = None
    """The source's own clock, where it has one."""
    start_seconds: float | None = None
    """When the process started, by its own clock."""
    version: str | None = None
    pools: tuple[PoolReading, ...] = ()
    slots: tuple[SlotReading, ...] = ()
    running: Quantity | None = None
    waiting: Quantity | None = None
    paused: Quantity | None = None
    """Preempted, retracted, swapped or paused requests that will run again."""
    max_running: Quantity | None = None
    live_tokens: Quantity | None = None
    """Tokens whose keys and values are really there, where the engine tells."""
    reserved_tokens: Quantity | None = None
    """Tokens promised to running requests, those already there included."""
    max_model_len: Quantity | None = None
    preemptions_total: Quantity | None = None
    prompt_tokens_total: Quantity | None = None
    generation_tokens_total: Quantity | None = None
    cached_tokens_total: Quantity | None = None
    evicted_tokens_total: Quantity | None = None
    prefix_hit_ratio: Quantity | None = None
    weights_bytes: Quantity | None = None
    device_bytes: Quantity | None = None
    """Memory the engine uses on the device, all purposes."""
    histograms: tuple[HistogramReading, ...] = ()
    others: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of this engine by the source's own names."""
    missing: tuple[str, ...] = ()
    """Expected names that the source did not give, or gave as None or NaN."""
    problem: str = ""
    """Why the engine has no pool to speak of at this moment."""

    def find_pool(self, name: str = "kv") -> PoolReading | None:
        """Return the pool of that name."""
        return next((pool for pool in self.pools if pool.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLog:
    """Everything that was read from one log: starts in order, periodic samples in order, and what could not be read."""

    engine: Engine
    startups: tuple[StartupFacts, ...] = ()
    samples: tuple[PeriodicSample, ...] = ()
    lines: int = 0
    """Records looked at, after unwrapping and unglueing."""
    cut_lines: int = 0
    """Lines longer than the bound, of which only the beginning was read."""
    ended_early: bool = False
    """True when the bound on lines stopped the reading."""
    dropped: int = 0
    """Samples and starts beyond their bounds (a million, ten thousand), which were left out."""

    def find_startup(self, line: int) -> StartupFacts | None:
        """Return the start that a line belongs to: the last one at or before it, else the first."""
        found: StartupFacts | None = None
        for startup in self.startups:
            if startup.first_line <= line or found is None:
                found = startup
        return found
