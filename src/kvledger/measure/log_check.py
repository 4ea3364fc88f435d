"""What a log alone tells: the pool from the start-up lines, and the three-minute check from the periodic ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvledger.engines.facts import Engine, EngineLog, NoticeKind, PeriodicSample, StartupFacts
from kvledger.engines.quantity import Quantity, add
from kvledger.ledger import Accuracy
from kvledger.measure.log_capacity import capacity_note
from kvledger.measure.pool_verdict import in_settings_of
from kvledger.measure.verdict import Signs, Verdict, judge
from kvledger.units import counted

__all__ = ["LogCheck", "LogLoad", "LogPool", "check_log"]

_MOST_ERRORS = 5
_PARTS = ("full", "swa", "index")
"""Pools of attention layers, where there is not one for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLoad:
    """The busiest periodic line, and the whole of them; ratios are of the pool, as (least, most)."""

    lines: int
    running: int
    waiting: int | None
    """None where no line tells it."""
    held_ratio: tuple[float, float]
    """At the busiest line: what the engine prints, with its rounding."""
    used_ratio: tuple[float, float] | None
    """Held less at most one block but a slot for each running request; None where the block size is not known."""
    mean_held_ratio: float
    reserved_ratio: float | None
    """What reserving the longest length for each running request would take, of the pool."""
    preemptions: int | None
    """None where no line tells them."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPool:
    """One of several pools: of layers with a window, of states, of a draft; None is what the log does not say."""

    name: str
    size_bytes: Quantity | None
    tokens: Quantity | None
    slots: Quantity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """One engine of one start."""

    engine: Engine
    engine_index: int
    version: str | None
    model: str | None
    tokens: Quantity | None
    """Slots of the pool: blocks times block size where both are known, else what the engine prints."""
    tokens_source: str
    size_bytes: Quantity | None
    blocks: Quantity | None
    block_tokens: Quantity | None
    max_model_len: Quantity | None
    concurrency: Quantity | None
    pools: tuple[LogPool, ...]
    """Pools beside the one for all attention layers, or what there is instead of it."""
    preemptions: int | None
    """Preemptions (retractions) that lines tell; None where none does."""
    load: LogLoad | None
    errors: tuple[str, ...]
    notes: tuple[str, ...]


def check_log(log: EngineLog) -> tuple[LogCheck, ...]:
    """Return what the log says about each engine of its last start; empty when it says nothing about a pool."""
    startup = log.startups[-1] if log.startups else None
    begins = startup.first_line if startup else 0
    samples = [sample for sample in log.samples if sample.line >= begins]
    indices = set(startup.engine_indices if startup else ()) | {sample.engine_index for sample in samples}
    if startup is not None and not indices and (startup.errors or _tells_limits(startup)):
        indices = {0}
    restarts = len(log.startups) - 1
    return tuple(_check(log, startup, samples, index, restarts) for index in sorted(indices))


def _second_pool(startup: StartupFacts | None) -> tuple[str, ...]:
    """Say that the figures are those of one pool of two, where a smaller one follows a larger one."""
    notices = startup.notices if startup is not None else ()
    second = next((notice for notice in notices if notice.kind is NoticeKind.SECOND_POOL), None)
    if second is None:
        return ()
    return (
        f"a pool of {second.asked:,} tokens was allocated before this one of {second.count:,}: an encoder-decoder "
        "model "
        "has one for its own tokens and one for those of the encoder, and the figures here are of the second alone",
    )


def _tells_limits(startup: StartupFacts) -> bool:
    """Tell whether a start without a size says how far a request reaches, or what a block holds."""
    forgets = any(notice.kind is NoticeKind.PREFIX_FORGOTTEN for notice in startup.notices)
    return startup.max_model_len is not None or startup.block_tokens is not None or forgets


def _check(
    log: EngineLog, startup: StartupFacts | None, samples: Sequence[PeriodicSample], index: int, restarts: int
) -> LogCheck:
    def find(name: str) -> Quantity | None:
        return startup.find_smallest(name, engine_index=index) if startup else None

    forced = startup is not None and any(notice.kind is NoticeKind.BLOCKS_FORCED for notice in startup.notices)
    blocks = find("blocks")
    block_tokens = find("block_tokens") or (startup.block_tokens if startup else None)
    tokens, source = _tokens(startup, find("tokens"), blocks, block_tokens)
    notes = [f"{counted(restarts, 'earlier start')} in this log left out"] if restarts > 0 else []
    if forced:
        notes.append("the number of blocks was forced, so the printed memory is not the pool's size")
    notes += _second_pool(startup)
    mine = [s for s in samples if s.engine_index == index]
    if tokens is None:
        notes += capacity_note(mine)
    told = [s for s in mine if s.usage_ratio is not None]
    longest = (startup.max_model_len if startup else None) or find("longest_tokens")
    preemptions = _count_preemptions(mine)
    size = _Size(tokens=tokens, block_tokens=block_tokens, longest=longest)
    return LogCheck(
        engine=log.engine,
        engine_index=index,
        version=startup.version.value if startup and startup.version else None,
        model=startup.model.value.rpartition("/")[2] if startup and startup.model else None,
        tokens=tokens,
        tokens_source=source,
        size_bytes=None if forced else _size(startup, index),
        blocks=blocks,
        block_tokens=block_tokens,
        max_model_len=longest,
        concurrency=find("concurrency"),
        pools=_pools(startup, index),
        preemptions=preemptions,
        load=_load(log.engine, told, size, preemptions) if told else None,
        errors=_write_errors(startup),
        notes=tuple(notes),
    )


def _size(startup: StartupFacts | None, index: int) -> Quantity | None:
    """Return the bytes of all attention layers: as told, of all blocks, or of the pools they are split into."""
    if startup is None:
        return None
    told = startup.find_smallest("size_bytes", engine_index=index)
    if told is not None:
        return told
    blocks, one = (startup.find_smallest(name, engine_index=index) for name in ("blocks", "block_bytes"))
    if blocks is not None and one is not None:
        low, value, high = (int(blocks.value * bound) for bound in (one.low, one.value, one.high))
        return Quantity(value=value, low=low, high=high, accuracy=Accuracy.DERIVED, line=blocks.line)
    there = {pool.name for pool in startup.find_pools(engine_index=index)}
    names = [name for name in _PARTS if name in there]
    return add(startup.find_smallest("size_bytes", name, engine_index=index) for name in names)


def _pools(startup: StartupFacts | None, index: int) -> tuple[LogPool, ...]:
    if startup is None:
        return ()
    names = dict.fromkeys(pool.name for pool in startup.find_pools(engine_index=index) if pool.name != "kv")

    def find(field_name: str, name: str) -> Quantity | None:
        return startup.find_smallest(field_name, name, engine_index=index)

    return tuple(
        LogPool(
            name=name,
            size_bytes=find("size_bytes", name),
            tokens=find("tokens", name) or find("cells", name),
            slots=find("slots", name) if name == "state" else None,
        )
        for name in names
    )


def _tokens(
    startup: StartupFacts | None, printed: Quantity | None, blocks: Quantity | None, block_tokens: Quantity | None
) -> tuple[Quantity | None, str]:
    if blocks is not None and block_tokens is not None and blocks.is_exact and block_tokens.is_exact:
        value = int(blocks.value * block_tokens.value)
        return Quantity(value=value, low=value, high=value, line=blocks.line), "blocks * block size"
    if printed is None:
        return None, ""
    # only the size line of vLLM may be the concurrency times the longest length, by its version
    counts_requests = startup is not None and startup.engine is Engine.VLLM and _has_concurrency(startup)
    return printed, "as printed, at the longest length" if counts_requests else "as printed"


def _has_concurrency(startup: StartupFacts) -> bool:
    return any(pool.concurrency is not None for pool in startup.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What ratios of the pool are made with."""

    tokens: Quantity | None
    block_tokens: Quantity | None
    longest: Quantity | None


def _count_preemptions(samples: Sequence[PeriodicSample]) -> int | None:
    """Sum the preemptions that lines tell; ranks of one engine repeat them, so the rank that tells most counts."""
    counts: dict[str, int] = {}
    for sample in samples:
        if sample.preemptions is not None:
            counts[sample.origin] = counts.get(sample.origin, 0) + _count(sample.preemptions)
    return max(counts.values(), default=None)


def _write_errors(startup: StartupFacts | None) -> tuple[str, ...]:
    """Return the errors, each wording once, and how many more there are."""
    texts = tuple(dict.fromkeys(notice.text for notice in startup.errors)) if startup else ()
    more = len(texts) - _MOST_ERRORS
    return texts if more <= 0 else (*texts[:_MOST_ERRORS], f"({more:,} more errors with other numbers)")


def _load(engine: Engine, samples: Sequence[PeriodicSample], pool: _Size, preemptions: int | None) -> LogLoad:
    tokens = pool.tokens
    null_ratio = 0.0
    if engine is Engine.VLLM and pool.block_tokens is not None and tokens is not None and tokens.value:
        null_ratio = pool.block_tokens.value / tokens.value
    usage = [_of_pool(sample.usage_ratio, null_ratio) for sample in samples if sample.usage_ratio is not None]
    at = max(range(len(samples)), key=lambda n: usage[n].value)
    busiest, ratio = samples[at], usage[at]
    running = _count(busiest.running)
    held = (float(ratio.low), min(1.0, float(ratio.high)))
    used = None
    if tokens is not None and pool.block_tokens is not None and tokens.value:
        tails = running * (pool.block_tokens.value - 1) / tokens.value
        used = (max(0.0, held[0] - tails), held[1])
    reserved = None
    if tokens is not None and pool.longest is not None and tokens.value:
        reserved = running * pool.longest.value / tokens.value
    return LogLoad(
        lines=len(samples),
        running=running,
        waiting=_count(busiest.waiting) if any(s.waiting is not None for s in samples) else None,
        held_ratio=held,
        used_ratio=used,
        mean_held_ratio=math.fsum(one.value for one in usage) / len(usage),
        reserved_ratio=reserved,
        preemptions=preemptions,
        verdict=in_settings_of(engine, judge(_signs(samples, usage, held, used, preemptions), is_log=True)),
    )


def _of_pool(usage: Quantity, null_ratio: float) -> Quantity:
    """Return what is held of the whole pool: a gauge of vLLM leaves out the null block or counts it, by release."""
    low = max(0.0, usage.low - null_ratio)
    return replace(usage, value=min(max(low, usage.value * (1 - null_ratio)), usage.high), low=low)


def _signs(
    samples: Sequence[PeriodicSample],
    usage: Sequence[Quantity],
    held: tuple[float, float],
    used: tuple[float, float] | None,
    preemptions: int | None,
) -> Signs:
    waiting = [_count(sample.waiting) for sample in samples]
    while_waiting = [float(u.value) for u, w in zip(usage, waiting, strict=True) if w]
    times = [sample.seconds for sample in samples if sample.seconds is not None]
    rates = [s.generation_tokens_per_second for s in samples]
    generated = None
    if len(samples) > 1 and all(rate is not None for rate in rates):
        generated = math.ceil(sum(rate.value for rate in rates if rate is not None))
    return Signs(
        samples=len(samples),
        peak_held_ratio=held[1],
        peak_used_ratio=used[0] if used is not None else held[0],
        peak_used_high_ratio=used[1] if used is not None else held[1],
        is_used_told=used is not None,
        peak_waiting=max(waiting) if any(s.waiting is not None for s in samples) else None,
        peak_running=max(_count(sample.running) for sample in samples),
        waiting_ratio=sum(w > 0 for w in waiting) / len(waiting),
        held_ratio_while_waiting=max(while_waiting, default=None),
        preemptions=preemptions,
        finished=None,
        generated_tokens=generated,
        seconds=max(times) - min(times) if len(times) > 1 else 0.0,
    )


def _count(quantity: Quantity | None) -> int:
    return 0 if quantity is None else int(quantity.value)
