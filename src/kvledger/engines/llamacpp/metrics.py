"""What llama.cpp's server tells in ``/metrics``: counters and queues.

It has lost its KV gauges in May 2025 (``kv_cache_usage_ratio``, ``kv_cache_tokens``): the slots tell what is stored
(:mod:`.slots`). Reading it begins a new interval of its two speed gauges, for every reader.
"""

from __future__ import annotations

from kvledger.engines.exposition import SeriesTable
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.llamacpp.slots import read_props, read_slots
from kvledger.engines.quantity import Quantity

__all__ = ["WANTED", "read_metrics", "read_props", "read_slots"]

_PREFIX = "llamacpp:"
_OTHERS = (
    "prompt_tokens_seconds", "predicted_tokens_seconds", "n_busy_slots_per_decode", "n_decode_total", "n_tokens_max",
    "prompt_seconds_total", "tokens_predicted_seconds_total",
)  # fmt: skip
WANTED = frozenset(
    _PREFIX + name
    for name in (
        *_OTHERS, "prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total", "requests_processing",
        "requests_deferred", "kv_cache_usage_ratio", "kv_cache_tokens",
    )
)  # fmt: skip
"""The names of samples that are read."""


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read ``/metrics``: one snapshot, or none when the text has no sample of llama.cpp.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    table = SeriesTable.read(text, WANTED)
    if table is None:
        return ()

    def find(name: str) -> Quantity | None:
        return table.find(_PREFIX + name)

    usage, tokens = find("kv_cache_usage_ratio"), find("kv_cache_tokens")
    pool = PoolReading(unit="cells", occupied=tokens, usage_ratio=usage)
    gone = () if usage or tokens else ("llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens")
    return (
        EngineSnapshot(
            engine=Engine.LLAMACPP,
            pools=(pool,) if usage or tokens else (),
            running=find("requests_processing"),
            waiting=find("requests_deferred"),
            prompt_tokens_total=find("prompt_tokens_total"),
            generation_tokens_total=find("tokens_predicted_total"),
            cached_tokens_total=find("prompt_tokens_cached_total"),
            others=table.find_others(_PREFIX + name for name in _OTHERS),
            missing=gone,
        ),
    )
