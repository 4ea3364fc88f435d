"""One instant of the servers that are exported: what each pool of each engine says, whichever engine it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvledger.engines.facts import Engine, EngineSnapshot
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.balance import Balance
from kvledger.measure.counterfactual import Counterfactual, Lengths, compare_reservations
from kvledger.measure.meter import Reading, shown_name
from kvledger.measure.pool import Structure
from kvledger.measure.sheet import Sheet
from kvledger.measure.snapshots import draw_snapshots

__all__ = ["PoolInstant", "SourceInstant", "lengths_of", "pool_of_reading", "pools_of_snapshots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInstant:
    """One pool of one engine; None where the engine does not tell."""

    engine: str
    """Its index; with the rank behind it where several ranks of one index speak."""
    pool: str
    server: Engine
    model: str | None
    running: int | None
    waiting: int | None
    preemptions: int | None = None
    """Counted by the engine since it started."""
    restarts: int = 0
    """Restarts of the engine that were seen."""
    structure: str = ""
    scheduling: str = ""
    sheet: Sheet | None = None
    balance: Balance | None = None
    """Tokens of the pool, where the counters give them."""
    counterfactual: Counterfactual | None = None
    problem: str = ""
    """Why there is no sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInstant:
    """One server; ``pools`` is empty while it is down."""

    name: str
    is_up: bool
    seconds: float
    """How long it took to ask the server and to draw up its sheets."""
    failures: int
    """Samples that failed so far."""
    pools: tuple[PoolInstant, ...] = ()
    error: str = ""


def pool_of_reading(reading: Reading, engine: VllmEngine) -> PoolInstant:
    """Return the pool of one reading; ``engine`` is the scrape it was read from, for its lengths."""
    shape, balance = reading.shape, reading.balance
    comparison = None
    if shape is not None and balance is not None and shape.structure is not Structure.GROUPS:
        comparison = compare_reservations(shape, balance, reading.running or 0, lengths_of(engine))
    return PoolInstant(
        engine=str(reading.engine_index),
        pool="kv",
        server=Engine.VLLM,
        model=reading.model,
        running=reading.running,
        waiting=reading.waiting,
        preemptions=reading.preemptions,
        restarts=reading.epoch,
        structure="" if shape is None else shape.structure.value,
        scheduling=reading.scheduling.value,
        sheet=reading.sheet,
        balance=balance,
        counterfactual=comparison,
        problem=reading.problem,
    )


def lengths_of(engine: VllmEngine) -> Lengths:
    """Return the lengths of the requests that ended since the engine started."""
    found = engine.histograms
    return Lengths(
        prompt=found.get("request_prompt_tokens"),
        output=found.get("request_generation_tokens"),
        max_tokens=found.get("request_params_max_tokens"),
    )


def pools_of_snapshots(snapshots: Sequence[EngineSnapshot]) -> tuple[PoolInstant, ...]:
    """Return the pools of an engine that tells them itself; no two have the same engine and pool."""
    found = [(one, pool) for one in snapshots for pool in _pools_of(one)]
    several = Counter((pool.engine, pool.pool) for _, pool in found)
    return tuple(
        pool if several[pool.engine, pool.pool] == 1 else replace(pool, engine=_name_rank(one)) for one, pool in found
    )


def _pools_of(snapshot: EngineSnapshot) -> list[PoolInstant]:
    preemptions = snapshot.preemptions_total
    return [
        PoolInstant(
            engine=str(drawn.engine_index),
            pool=drawn.pool,
            server=drawn.engine,
            model=None if drawn.model is None else shown_name(drawn.model),
            running=drawn.running,
            waiting=drawn.waiting,
            preemptions=None if preemptions is None else int(preemptions.value),
            sheet=drawn.sheet,
            problem=drawn.problem,
        )
        for drawn in draw_snapshots((snapshot,))
    ]


def _name_rank(snapshot: EngineSnapshot) -> str:
    told = ",".join(f"{name}={shown_name(value)}" for name, value in sorted(snapshot.labels.items()))
    return f"{snapshot.engine_index}/{told}"
