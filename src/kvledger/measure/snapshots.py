"""One instant of an engine that tells its pool itself (SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy): its sheet.

These engines say what is held, kept and free; what they do not say stays an interval or unattributed:

* SGLang holds whole pages; tokens of the decode batch (``decode_sum_seq_lens``, 0.5.9+) bound the tails from above;
* llama.cpp tells the tokens of each slot; a slot of a split pool owns its strip, running or not;
* TGI takes prompt + max_new_tokens at admission and does not tell how much of that is there;
* TensorRT-LLM and LMDeploy count blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity
from kvledger.ledger import Accuracy, Ledger
from kvledger.measure.figure import Figure, Span
from kvledger.measure.sheet import Sheet, Unexplained

__all__ = ["SnapshotSheet", "draw_snapshots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSheet:
    """One pool of one engine at one instant; ``problem`` says why there is no sheet."""

    engine: Engine
    engine_index: int
    model: str | None
    pool: str
    running: int | None
    waiting: int | None
    sheet: Sheet | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The pool in grains of one unit: what is held, stored and kept."""

    capacity: int
    held: Span
    stored: Span
    reserved: Span
    cached: Span
    why_stored: str
    why_cached: str


def draw_snapshots(snapshots: Sequence[EngineSnapshot]) -> tuple[SnapshotSheet, ...]:
    """Draw the sheet of every pool of every snapshot that speaks of one."""
    return tuple(_draw(one, pool) for one in snapshots for pool in one.pools if pool.name != "host")


def _draw(snapshot: EngineSnapshot, pool: PoolReading) -> SnapshotSheet:
    found = _find_parts(snapshot, pool)
    running, waiting = _whole(snapshot.running), _whole(snapshot.waiting)
    problem = found if isinstance(found, str) else ""
    return SnapshotSheet(
        engine=snapshot.engine,
        engine_index=snapshot.engine_index,
        model=snapshot.model,
        pool=pool.name,
        running=running,
        waiting=waiting,
        sheet=None if isinstance(found, str) else _sheet(found, pool),
        problem=problem,
    )


def _find_parts(snapshot: EngineSnapshot, pool: PoolReading) -> _Parts | str:
    grain = _whole(pool.block_tokens) if pool.unit == "blocks" else 1
    factor = grain or 1
    if pool.capacity is None or not pool.capacity.is_exact:
        return "the size of the pool is not told: give the start-up log to `kvledger measure` for it"
    capacity = int(pool.capacity.value) * factor
    held = _held(pool, capacity, factor)
    if held is None:
        return "what running requests hold is not told"
    if snapshot.slots:
        return _slot_parts(snapshot, capacity, held)
    cached = _cached(pool, capacity, held, factor)
    stored, why = _stored(snapshot, pool, held, factor)
    return _Parts(
        capacity=capacity,
        held=held,
        stored=stored,
        reserved=held - held if snapshot.reserved_tokens is None else Span(0, held.high - stored.low),
        cached=cached,
        why_stored=why,
        why_cached="the engine does not tell what of the rest is kept for reuse",
    )


def _held(pool: PoolReading, capacity: int, factor: int) -> Span | None:
    if pool.used is not None:
        return Span(int(pool.used.low) * factor, int(pool.used.high) * factor).clip(0, capacity)
    if pool.free is not None and pool.cached is not None:
        free, cached = (Span(int(q.low) * factor, int(q.high) * factor) for q in (pool.free, pool.cached))
        return (Span.exact(capacity) - free - cached).clip(0, capacity)
    if pool.usage_ratio is not None:
        return Span(int(pool.usage_ratio.low * capacity), int(-(-pool.usage_ratio.high * capacity // 1))).clip(
            0, capacity
        )
    return None


def _cached(pool: PoolReading, capacity: int, held: Span, factor: int) -> Span:
    rest = Span(capacity - held.high, capacity - held.low)
    if pool.cached is not None:
        return Span(int(pool.cached.low) * factor, int(pool.cached.high) * factor).clip(0, rest.high)
    if pool.free is not None:
        return (rest - Span(int(pool.free.low) * factor, int(pool.free.high) * factor)).clip(0, rest.high)
    return Span(0, rest.high)


def _stored(snapshot: EngineSnapshot, pool: PoolReading, held: Span, factor: int) -> tuple[Span, str]:
    if snapshot.reserved_tokens is not None:
        return Span(0, held.high), "tokens are reserved at admission, and how many are there is not told"
    running, page = _whole(snapshot.running), _whole(pool.block_tokens) or factor
    known = pool.block_tokens is not None or snapshot.engine is Engine.LLAMACPP
    tails = held.high if running is None or not known else running * max(0, page - 1)
    low = max(0, held.low - tails)
    if snapshot.live_tokens is not None:
        low = max(low, min(int(snapshot.live_tokens.low), held.high))
    return Span(low, held.high), "held in whole pages, and the tokens of prefill batches are not told"


def _slot_parts(snapshot: EngineSnapshot, capacity: int, held: Span) -> _Parts | str:
    """A split pool: each slot owns its strip; a unified one: cells are taken as tokens come."""
    if any(slot.tokens is None for slot in snapshot.slots):
        return "this build does not tell the tokens of each slot (`n_prompt_tokens`)"
    busy = [slot for slot in snapshot.slots if slot.is_processing]
    kept = sum(int(slot.tokens.value) for slot in snapshot.slots if slot.tokens is not None and not slot.is_processing)
    strips = [int(slot.capacity_tokens.value) for slot in busy if slot.capacity_tokens is not None]
    everything = sum(int(s.capacity_tokens.value) for s in snapshot.slots if s.capacity_tokens is not None)
    reserved = max(0, sum(strips) - held.low) if everything == capacity and len(snapshot.slots) > 1 else 0
    return _Parts(
        capacity=capacity,
        held=held + Span.exact(reserved),
        stored=held,
        reserved=Span.exact(reserved),
        cached=Span.exact(kept),
        why_stored="",
        why_cached="",
    )


def _sheet(parts: _Parts, pool: PoolReading) -> Sheet:
    size = int(pool.size_bytes.value) if pool.size_bytes is not None and pool.size_bytes.is_exact else 0
    unit = "bytes" if size >= parts.capacity > 0 else "tokens"
    cost, rest = divmod(size, parts.capacity) if unit == "bytes" else (1, 0)
    internal = (parts.held - parts.stored - parts.reserved).clip(0, parts.held.high)
    internal_low = max(0, parts.held.low - parts.stored.high - parts.reserved.high)
    reserved_low = parts.reserved.low if parts.stored.is_exact else 0
    free_low = max(0, parts.capacity - parts.held.high - parts.cached.high)
    known = parts.stored.low + internal_low + reserved_low + parts.cached.low + free_low
    held_open = max(0, parts.held.high - parts.stored.low - internal_low - reserved_low)
    rows = [
        (held_open * cost, parts.why_stored or "held, and not told apart"),
        ((parts.capacity - known - held_open) * cost, parts.why_cached),
        (rest, "remainder: less than a byte a slot"),
    ]
    ledger = Ledger(
        capacity=parts.capacity * cost + rest,
        used=parts.stored.low * cost,
        cached=parts.cached.low * cost,
        reserved=reserved_low * cost,
        internal=internal_low * cost,
        free=free_low * cost,
        unattributed=sum(amount for amount, _ in rows),
    ).check()
    spans = {
        "held": parts.held,
        "used": parts.stored,
        "reserved": parts.reserved,
        "internal": Span(internal_low, internal.high),
        "cached": parts.cached,
        "free": (Span.exact(parts.capacity) - parts.held - parts.cached).clip(free_low, parts.capacity),
    }
    return Sheet(
        ledger=ledger,
        unit=unit,
        unattributed=tuple(Unexplained(amount=amount, cause=cause) for amount, cause in rows if amount > 0),
        figures=tuple(_figure(name, span.scale(cost), unit, parts, pool) for name, span in spans.items()),
        available=max(0, parts.capacity - parts.held.high) * cost,
    )


def _figure(name: str, span: Span, unit: str, parts: _Parts, pool: PoolReading) -> Figure:
    source = {"held": pool.used, "cached": pool.cached, "free": pool.free}.get(name)
    cause = parts.why_cached if name in ("cached", "free") else parts.why_stored
    return Figure(
        name=name,
        span=span,
        unit=unit,
        accuracy=source.accuracy if source is not None else Accuracy.DERIVED,
        formula=source.source if source is not None and source.source else "from the pool's own counts",
        cause="" if span.is_exact else cause,
    )


def _whole(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(quantity.value)
