"""Reads from the samples of a recording how its server was set."""

from __future__ import annotations

from collections.abc import Iterable

from kvledger.engines.facts import EngineSnapshot
from kvledger.measure.pool import read_pool_shape
from kvledger.traces.recorded import Histories, RecordedEngine
from kvledger.traces.served import Served

__all__ = ["read_served"]


def read_served(histories: Histories) -> Served:
    """Read the settings of the server from its samples."""
    engines = [engine for engine in histories.engines if engine.last is not None]
    snapshots = histories.last_snapshots
    pools = [_pool(engine, beside=_count_beside(engine, engines)) for engine in engines]
    blocks = [one.usable_blocks for one in pools]
    return Served(
        max_model_len=_agreed([*(one.max_model_len for one in pools), *_lengths(snapshots)]),
        max_num_seqs=_agreed(_most_running(snapshots)),
        block_tokens=_agreed(one.block_tokens for one in pools),
        usable_blocks=sum(one for one in blocks if one) if blocks and all(blocks) else None,
        step_seconds=_mean_step(engines),
    )


def _pool(engine: RecordedEngine, *, beside: int) -> Served:
    shape = None if engine.last is None else read_pool_shape(engine.last, engines=beside)
    if shape is None:
        return Served()
    return Served(
        max_model_len=shape.max_model_len, block_tokens=shape.block_tokens, usable_blocks=shape.usable_blocks or None
    )


def _count_beside(engine: RecordedEngine, engines: Iterable[RecordedEngine]) -> int:
    """Return how many engines one server has: it tells the blocks of all of them."""
    return sum(other.source == engine.source for other in engines)


def _lengths(snapshots: Iterable[EngineSnapshot]) -> list[int | None]:
    return [None if one.max_model_len is None else int(one.max_model_len.value) for one in snapshots]


def _most_running(snapshots: Iterable[EngineSnapshot]) -> list[int | None]:
    return [None if one.max_running is None else int(one.max_running.value) for one in snapshots]


def _agreed(values: Iterable[int | None]) -> int | None:
    """Return the value that all tell alike."""
    found = set(values)
    return found.pop() or None if len(found) == 1 else None


def _mean_step(engines: Iterable[RecordedEngine]) -> float | None:
    """Divide the seconds between tokens by their number, both as the recording saw them grow."""
    series = [engine.steps for engine in engines]
    count, total = sum(sum(one.counts) for one in series), sum(sum(one.totals) for one in series)
    return total / count if count and total > 0 else None
