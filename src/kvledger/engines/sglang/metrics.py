"""What SGLang exports (``--enable-metrics``), 0.4 to 0.5.23: one snapshot a scheduler.

From 0.5.13 it tells used, evictable and free tokens of each pool, and from 0.5.9 the tokens of the decode batch
(``decode_sum_seq_lens``): the only counter from which the tails of pages can be read. Older releases give used tokens
and a usage with two decimals, so the pool is an interval. ``token_usage`` is the greatest usage of all pools.
"""

from __future__ import annotations

import math

from kvledger.engines.exposition import Series, SeriesTable, expand_names, read_exposition
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, exact, printed_bytes
from kvledger.ledger import Accuracy
from kvledger.units import GIB

__all__ = ["WANTED", "read_metrics"]

_PREFIX = "sglang:"
_RANKS = ("dp_rank", "pp_rank", "tp_rank", "moe_ep_rank")
_IDENTITY = ("model_name", "engine_type", *_RANKS)
_GAUGES = (
    "num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "full_token_usage", "swa_token_usage",
    "mamba_usage", "kv_available_tokens", "kv_evictable_tokens", "kv_used_tokens", "swa_available_tokens",
    "swa_evictable_tokens", "swa_used_tokens", "mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens",
    "decode_sum_seq_lens", "max_total_num_tokens", "max_total_num_tokens_swa", "page_size", "num_pages", "context_len",
    "kv_cache_memory_usage_gb", "weight_memory_usage_gb", "num_retracted_reqs", "num_paused_reqs", "cache_hit_rate",
    "hicache_host_used_tokens", "hicache_host_total_tokens",
)  # fmt: skip
_COUNTERS = (
    "num_retracted_requests_total", "prompt_tokens_total", "generation_tokens_total", "cached_tokens_total",
    "evicted_tokens_total",
)  # fmt: skip
_OTHERS = (
    "gen_throughput", "new_token_ratio", "num_grammar_queue_reqs", "graph_memory_usage_gb", "num_requests_total",
    "num_retracted_input_tokens_total", "num_retracted_output_tokens_total", "startup_available_gpu_memory_gb",
    "pending_prealloc_token_usage", "streaming_session_held_tokens", "load_back_tokens_total",
    "num_aborted_requests_total", "spec_num_draft_tokens",
)  # fmt: skip
_HISTOGRAMS = (
    "prompt_tokens_histogram", "uncached_prompt_tokens_histogram", "generation_tokens_histogram",
    "e2e_request_latency_seconds",
)  # fmt: skip
_EXPECTED = ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage")
WANTED = expand_names(
    (_PREFIX + name for name in (*_GAUGES, *_COUNTERS, *_OTHERS, "cache_config_info", "realtime_tokens_total")),
    (_PREFIX + name for name in _HISTOGRAMS),
)
"""The names of samples that are read."""


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read a scrape: one snapshot a scheduler, and one for the front end when it serves several of them.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    groups: dict[tuple[str, ...], list[Series]] = {}
    for series in read_exposition(text, WANTED).series:
        if series.labels.get("priority"):  # the total stands under the empty priority
            continue
        labels = {"model_name": series.labels.get("name", ""), **series.labels}  # `name` in 0.3
        groups.setdefault(tuple(labels.get(name, "") for name in _IDENTITY), []).append(series)
    return tuple(_read_group(key, series) for key, series in _join_front_ends(groups).items())


def _join_front_ends(groups: dict[tuple[str, ...], list[Series]]) -> dict[tuple[str, ...], list[Series]]:
    """Give request counters, which carry no rank, to the scheduler of their model when there is only one."""
    joined = dict(groups)
    for key in groups:
        if any(key[2:]):
            continue
        ranked = [other for other in groups if other[0] == key[0] and any(other[2:])]
        if len(ranked) == 1:
            joined[ranked[0]] = joined[ranked[0]] + joined.pop(key)
    return joined


def _read_group(key: tuple[str, ...], series: list[Series]) -> EngineSnapshot:
    table = SeriesTable.of(series)
    labels = {name: value for name, value in zip(_IDENTITY, key) if value}

    def find(name: str) -> Quantity | None:
        return table.find(_PREFIX + name)

    used = find("num_used_tokens") or find("kv_used_tokens")
    return EngineSnapshot(
        engine=Engine.SGLANG,
        model=labels.get("model_name"),
        engine_index=_index(labels.get("dp_rank", "")),
        labels=labels,
        pools=_read_pools(table),
        running=find("num_running_reqs"),
        waiting=find("num_queue_reqs"),
        paused=find("num_retracted_reqs"),
        live_tokens=find("decode_sum_seq_lens"),
        max_model_len=find("context_len"),
        preemptions_total=find("num_retracted_requests_total"),
        prompt_tokens_total=find("prompt_tokens_total"),
        generation_tokens_total=find("generation_tokens_total"),
        cached_tokens_total=find("cached_tokens_total"),
        evicted_tokens_total=find("evicted_tokens_total"),
        prefix_hit_ratio=find("cache_hit_rate"),
        weights_bytes=_gigabytes(find("weight_memory_usage_gb")),
        histograms=table.find_histograms(_PREFIX + name for name in _HISTOGRAMS),
        others=table.find_others(_PREFIX + name for name in _OTHERS) | _find_processed(table),
        missing=table.find_missing(_PREFIX + name for name in _EXPECTED) if used is None else (),
    )


def _find_processed(table: SeriesTable) -> dict[str, float]:
    """Return the tokens that steps have processed since the start (0.5.9+), those of prefills apart."""
    found = {
        mode: table.find(_PREFIX + "realtime_tokens_total", mode=mode)
        for mode in ("prefill_compute", "prefill_cache", "decode")
    }
    known = {mode: float(quantity.value) for mode, quantity in found.items() if quantity is not None}
    if not known:
        return {}
    prefilled = known.get("prefill_compute", 0.0) + known.get("prefill_cache", 0.0)
    return {"sglang:prefilled_tokens": prefilled, "sglang:decoded_tokens": known.get("decode", 0.0)}


def _read_pools(table: SeriesTable) -> tuple[PoolReading, ...]:
    def find(name: str) -> Quantity | None:
        return table.find(_PREFIX + name)

    window = find("max_total_num_tokens_swa") or find("swa_used_tokens")
    two = window is not None and window.value > 0
    page = find("page_size") or _label(table, "page_size")
    usage = find("full_token_usage") if two else None
    pools = [
        PoolReading(
            name="full" if two else "kv",
            capacity=find("max_total_num_tokens") or _capacity(find("num_used_tokens"), find("token_usage")),
            used=find("kv_used_tokens") or (None if two else find("num_used_tokens")),
            cached=find("kv_evictable_tokens"),
            free=find("kv_available_tokens"),
            usage_ratio=usage or _rounded(find("token_usage")),
            block_tokens=page,
            size_bytes=_gigabytes(find("kv_cache_memory_usage_gb")),
        )
    ]
    if two:
        pools.append(
            _side_pool(table, "swa", "tokens", capacity=find("max_total_num_tokens_swa"), usage="swa_token_usage")
        )
    states = find("mamba_used_tokens"), find("mamba_available_tokens")
    if any(quantity is not None and quantity.value > 0 for quantity in states):
        pools.append(_side_pool(table, "mamba", "slots", capacity=None, usage="mamba_usage"))
    host = find("hicache_host_total_tokens")
    if host is not None and host.value > 0:
        pools.append(PoolReading(name="host", capacity=host, used=find("hicache_host_used_tokens")))
    empty = all(getattr(pools[0], name) is None for name in ("capacity", "used", "free", "usage_ratio"))
    return tuple(pools[1:] if empty else pools)


def _side_pool(table: SeriesTable, name: str, unit: str, *, capacity: Quantity | None, usage: str) -> PoolReading:
    used, cached, free = (table.find(f"{_PREFIX}{name}_{what}_tokens") for what in ("used", "evictable", "available"))
    return PoolReading(
        name="state" if name == "mamba" else name,
        unit=unit,
        capacity=capacity,
        used=used,
        cached=cached,
        free=free,
        usage_ratio=table.find(_PREFIX + usage),
    )


def _rounded(usage: Quantity | None) -> Quantity | None:
    """Return the usage with the interval of its two decimals."""
    if usage is None or usage.value < 0:
        return None
    return Quantity(value=usage.value, low=max(0.0, usage.value - 0.005), high=usage.value + 0.005, source=usage.source)


def _capacity(used: Quantity | None, usage: Quantity | None) -> Quantity | None:
    """Return the pool of a release that does not tell it: used / usage, whose usage has two decimals."""
    if used is None or usage is None or usage.value <= 0.005 or used.value <= 0:
        return None
    return Quantity(
        value=round(used.value / usage.value),
        low=math.ceil(used.value / (usage.value + 0.005)),
        high=math.floor(used.value / (usage.value - 0.005)),
        accuracy=Accuracy.DERIVED,
        source=f"{used.source} / {usage.source}",
    )


def _gigabytes(size: Quantity | None) -> Quantity | None:
    """Return bytes of what SGLang calls GB (2**30), which it rounds to three decimals."""
    if size is None or not 0 <= size.value < 1e6:
        return None
    if abs(size.value - round(size.value, 3)) > 1e-9:
        return exact(round(size.value * GIB), source=size.source)
    return printed_bytes(f"{size.value:.3f}", GIB, decimals=3, source=size.source)


def _label(table: SeriesTable, name: str) -> Quantity | None:
    """Return a number that stands in a label of ``cache_config_info`` (about 0.5.9)."""
    for series in table.by_name.get(_PREFIX + "cache_config_info", ()):
        text = series.labels.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 12:
            return exact(int(text), source=f"{series.name}{{{name}}}")
    return None


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
