"""One instant of the servers that are exported: what each pool of each engine says, whichever engine it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvledger.engines.facts import Engine
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.balance import Balance
from kvledger.measure.counterfactual import Counterfactual, Lengths, compare_reservations
from kvledger.measure.meter import Reading
from kvledger.measure.pool import Structure
from kvledger.measure.pool_meter import PoolMoment
from kvledger.measure.sheet import Sheet

__all__ = ["PoolInstant", "SourceInstant", "lengths_of", "pool_of_moment", "pool_of_reading", "tell_apart"]


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


def pool_of_moment(moment: PoolMoment) -> PoolInstant:
    """Return one pool of an engine that tells it itself."""
    key = moment.key
    return PoolInstant(
        engine=f"{key.index}/{key.rank}" if key.rank else str(key.index),
        pool=key.pool,
        server=key.engine,
        model=moment.model,
        running=moment.running,
        waiting=moment.waiting,
        preemptions=moment.preemptions,
        restarts=moment.epoch,
        structure="" if moment.layout is None else moment.layout.value,
        sheet=moment.sheet,
        problem=moment.problem,
    )


def tell_apart(pools: Sequence[PoolInstant]) -> tuple[PoolInstant, ...]:
    """Return the pools, numbered where two have one name: a Prometheus refuses all series of a scrape for that."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for one in pools:
        seen[one.engine, one.pool] += 1
        number = seen[one.engine, one.pool]
        found.append(one if number == 1 else replace(one, engine=f"{one.engine} #{number}"))
    return tuple(found)
