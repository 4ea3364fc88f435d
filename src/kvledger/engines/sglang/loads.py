"""What SGLang tells at ``/v1/loads`` (0.5.9 and newer), also without ``--enable-metrics``: used tokens of this moment.

The pool is counted when it is asked for (``managers/scheduler_components/load_inquirer.py``), while the gauges of
``/metrics`` are those of the last prefill or of every 40th decode step. What of the rest is kept for reuse is not told.
"""

from __future__ import annotations

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, printed_bytes
from kvledger.engines.strict_json import find_object, number, read_json
from kvledger.errors import SourceError
from kvledger.units import GIB

__all__ = ["read_loads"]

_MAX_RANKS = 4096


def read_loads(text: str) -> tuple[EngineSnapshot, ...]:
    """Read ``/v1/loads``: one snapshot a data-parallel rank.

    Raises:
        SourceError: It is no such object.
    """
    value = read_json(text, what="the answer of /v1/loads")
    loads = value.get("loads") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(loads, list) or len(loads) > _MAX_RANKS:
        raise SourceError("the answer of /v1/loads is no list of loads", hint="hand over the answer unchanged")
    version = value.get("version")
    told = version[:40] if isinstance(version, str) else None
    return tuple(_read_load(load, told) for load in loads if isinstance(load, dict))


def _read_load(load: dict[str, object], version: str | None) -> EngineSnapshot:
    rank = number(load, "dp_rank")
    index = 0 if rank is None or not 0 <= rank.value < 100_000 else int(rank.value)
    queues = find_object(load, "queues")
    speculative = find_object(load, "speculative")
    pool = PoolReading(
        capacity=number(load, "max_total_num_tokens", source="/v1/loads "),
        used=number(load, "num_used_tokens", source="/v1/loads "),
        size_bytes=_size(find_object(load, "memory").get("kv_cache_gb")),
    )
    time = number(load, "timestamp")
    return EngineSnapshot(
        engine=Engine.SGLANG,
        engine_index=index,
        labels={"dp_rank": str(index)},
        seconds=None if time is None else float(time.value),
        version=version,
        pools=(pool,) if pool.capacity is not None or pool.used is not None else (),
        running=number(load, "num_running_reqs", source="/v1/loads "),
        waiting=number(load, "num_waiting_reqs", source="/v1/loads "),
        paused=number(queues, "retracted", source="/v1/loads "),
        max_running=number(load, "max_running_requests", source="/v1/loads "),
        prefix_hit_ratio=number(load, "cache_hit_rate", source="/v1/loads "),
        others={"sglang:spec_num_draft_tokens": 1.0} if speculative else {},
    )


def _size(value: object) -> Quantity | None:
    """Read what SGLang calls GB (2**30), with three decimals."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        return None
    return printed_bytes(f"{value:.3f}", GIB, decimals=3, source="/v1/loads kv_cache_gb")
