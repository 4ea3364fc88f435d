"""What TensorRT-LLM exports: iteration statistics (JSON), Prometheus names of ``trtllm-serve``, and those of Triton.

``GET /metrics`` of ``trtllm-serve`` is drained on read: two readers share the iterations between them. Used blocks are
those allocated; what the default scheduler has promised beyond them is not told.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Mapping
from time import strptime

from kvledger.engines.exposition import Series, SeriesTable, read_exposition
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, add, exact
from kvledger.engines.strict_json import find_object, number, read_json
from kvledger.errors import SourceError
from kvledger.units import counted

__all__ = ["WANTED", "read_iterations", "read_metrics"]

_PREFIXES = ("trtllm_", "trtllm:", "tensorrt_llm:")
_NAMES = (
    "kv_cache_utilization", "kv_cache_hit_rate", "kv_cache_max_blocks", "kv_cache_free_blocks", "kv_cache_used_blocks",
    "kv_cache_tokens_per_block", "num_requests_running", "num_requests_waiting", "num_paused_requests",
    "max_num_active_requests", "gpu_memory_usage_bytes",
)  # fmt: skip
_OTHERS = (
    "kv_cache_reused_blocks_total", "kv_cache_missed_blocks_total", "num_scheduled_requests", "num_context_requests",
    "num_generation_requests", "kv_cache_host_utilization", "reused_blocks_total", "missed_blocks_total",
)  # fmt: skip
_EXPECTED = ("kv_cache_max_blocks", "kv_cache_used_blocks", "num_requests_running")
_BLOCKS, _REQUESTS = "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_request_metrics"
_MEMORY, _BATCHER = "nv_trt_llm_runtime_memory_metrics", "nv_trt_llm_inflight_batcher_metrics"
WANTED = frozenset(prefix + name for prefix in _PREFIXES for name in (*_NAMES, *_OTHERS)) | {
    _BLOCKS,
    _REQUESTS,
    _MEMORY,
    _BATCHER,
}
"""The names of samples that are read."""
_IDENTITY = ("model_name", "model", "version", "engine_type", "rank", "dp_rank")
_MAX_ITERATIONS = 1_000_000


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read a scrape of ``trtllm-serve`` (``/prometheus/metrics``) or of Triton: one snapshot a model and rank.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    groups = read_exposition(text, WANTED).group(_IDENTITY)
    return tuple(_read_group(dict(key), series) for key, series in groups.items())


def _read_group(labels: dict[str, str], series: list[Series]) -> EngineSnapshot:
    table = SeriesTable.of(series)
    if _BLOCKS in table.by_name or _REQUESTS in table.by_name:
        return _read_triton(labels, table)

    def find(name: str) -> Quantity | None:
        return table.find_any(*(prefix + name for prefix in _PREFIXES))

    pool = PoolReading(
        unit="blocks",
        capacity=find("kv_cache_max_blocks"),
        used=find("kv_cache_used_blocks"),
        free=find("kv_cache_free_blocks"),
        usage_ratio=find("kv_cache_utilization"),
        block_tokens=find("kv_cache_tokens_per_block"),
    )
    return EngineSnapshot(
        engine=Engine.TENSORRT_LLM,
        model=labels.get("model_name") or labels.get("model"),
        engine_index=_index(labels.get("dp_rank", "")),
        labels=labels,
        pools=(pool,) if pool.capacity or pool.used or pool.usage_ratio else (),
        running=find("num_requests_running"),
        waiting=find("num_requests_waiting"),
        paused=find("num_paused_requests"),
        max_running=find("max_num_active_requests"),
        prefix_hit_ratio=find("kv_cache_hit_rate"),
        device_bytes=find("gpu_memory_usage_bytes"),
        others=table.find_others(prefix + name for prefix in _PREFIXES for name in _OTHERS),
        missing=tuple(name for name in _EXPECTED if find(name) is None),
    )


def _read_triton(labels: dict[str, str], table: SeriesTable) -> EngineSnapshot:
    def blocks(kind: str) -> Quantity | None:
        return table.find(_BLOCKS, kv_cache_block_type=kind)

    def requests(kind: str) -> Quantity | None:
        return table.find(_REQUESTS, request_type=kind)

    pool = PoolReading(
        unit="blocks",
        capacity=blocks("max"),
        used=blocks("used"),
        free=blocks("free"),
        usage_ratio=blocks("fraction"),
        block_tokens=blocks("tokens_per"),
    )
    return EngineSnapshot(
        engine=Engine.TENSORRT_LLM,
        model=labels.get("model"),
        labels=labels,
        pools=(pool,) if pool.capacity or pool.used else (),
        running=requests("scheduled"),
        waiting=requests("waiting"),
        paused=table.find(_BATCHER, inflight_batcher_specific_metric="paused_requests"),
        max_running=requests("max"),
        device_bytes=table.find(_MEMORY, memory_type="gpu"),
        missing=tuple(f"{_BLOCKS}{{{kind}}}" for kind in ("max", "used", "free") if blocks(kind) is None),
    )


def read_iterations(text: str) -> tuple[EngineSnapshot, ...]:
    """Read iteration statistics: a JSON list, one object, or one object a line; in order.

    An iteration without statistics of its cache gives a snapshot without a pool.

    Raises:
        SourceError: The text is no such JSON, or holds more than a million iterations.
    """
    records = _find_records(text)
    if len(records) > _MAX_ITERATIONS:
        raise SourceError(f"{counted(len(records), 'iteration')} are more than the {_MAX_ITERATIONS:,} that are read")
    return tuple(_read_iteration(record) for record in records)


def _find_records(text: str) -> list[Mapping[str, object]]:
    what = "the iteration statistics"
    try:
        value = read_json(text, what=what)
    except SourceError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or len(lines) > _MAX_ITERATIONS:
            raise
        value = [read_json(line, what=what) for line in lines]
    records = value if isinstance(value, list) else [value]
    flat = [item for record in records for item in (record if isinstance(record, list) else [record])]
    found: list[Mapping[str, object]] = [record for record in flat if isinstance(record, dict)]
    if len(found) < len(flat):
        raise SourceError("the iteration statistics are no list of objects", hint="hand over the answer unchanged")
    return found


def _read_iteration(record: Mapping[str, object]) -> EngineSnapshot:
    cache = find_object(record, "kvCacheStats")
    batch = find_object(record, "inflightBatchingStats") or find_object(record, "staticBatchingStats")
    pool = PoolReading(
        unit="blocks",
        capacity=number(cache, "maxNumBlocks", source="kvCacheStats."),
        used=number(cache, "usedNumBlocks", source="kvCacheStats."),
        free=number(cache, "freeNumBlocks", source="kvCacheStats."),
        block_tokens=number(cache, "tokensPerBlock", "toksPerBlock", source="kvCacheStats."),
    )
    others = {name: number(record, name) for name in ("iter", "iterLatencyMS", "numCompletedRequests")}
    others |= {name: number(cache, name) for name in ("reusedBlocks", "missedBlocks", "allocTotalBlocks")}
    return EngineSnapshot(
        engine=Engine.TENSORRT_LLM,
        engine_index=_index(str(record.get("attentionDpRank", ""))),
        seconds=_read_time(record.get("timestamp")),
        pools=(pool,) if pool.capacity or pool.used else (),
        running=number(batch, "numScheduledRequests") or number(record, "numActiveRequests"),
        waiting=number(record, "numQueuedRequests"),
        paused=number(batch, "numPausedRequests"),
        max_running=number(record, "maxNumActiveRequests"),
        live_tokens=_live_tokens(batch),
        prefix_hit_ratio=number(cache, "cacheHitRate", source="kvCacheStats."),
        device_bytes=number(record, "gpuMemUsage"),
        others={name: float(value.value) for name, value in others.items() if value is not None},
        missing=() if cache else ("kvCacheStats",),
    )


def _live_tokens(batch: Mapping[str, object]) -> Quantity | None:
    """Return the tokens in the cache of context and generation requests; a runtime that does not count them gives 0."""
    tokens = add([number(batch, "numCtxKvTokens"), number(batch, "numGenKvTokens")])
    return (
        None if tokens is None or tokens.value <= 0 else exact(tokens.value, source="numCtxKvTokens + numGenKvTokens")
    )


def _read_time(value: object) -> float | None:
    """Read ``MM-DD-YYYY HH:MM:SS[.ffffff]``."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    whole, _, fraction = value.partition(".")
    try:
        seconds = timegm(strptime(whole, "%m-%d-%Y %H:%M:%S"))
    except ValueError:
        return None
    return seconds + (float(f"0.{fraction}") if fraction.isascii() and fraction.isdigit() else 0.0)


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
