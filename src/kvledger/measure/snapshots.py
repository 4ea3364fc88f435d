"""One instant of an engine that tells its pool itself (SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy): its sheet.

These engines say what is held, kept and free; what they do not say stays an interval or unattributed:

* SGLang holds whole pages. With pages of one token (its default) nothing is left open; with longer ones every held page
  has at least one token, and while only decode steps run, only the last page of a request has a tail;
* llama.cpp tells the tokens of each slot (:mod:`.slots`);
* TGI takes prompt + max_new_tokens at admission and does not tell how much of that is there;
* TensorRT-LLM and LMDeploy count blocks; TensorRT-LLM's iteration statistics count tokens too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity
from kvledger.ledger import Accuracy
from kvledger.measure.figure import Span
from kvledger.measure.parts import CellPrice, Known, Parts, draw_either, draw_parts
from kvledger.measure.sheet import Sheet
from kvledger.measure.slots import Cells, Layout, explain_layout, split_gauge, split_slots
from kvledger.units import counted

__all__ = ["Hints", "SnapshotSheet", "draw_pool", "draw_snapshots"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What is known beside one snapshot: from earlier samples, a start-up log, or the command line."""

    cells: Cells = field(default_factory=Cells)
    """Of llama.cpp's slots."""
    only_decodes: bool = False
    """SGLang: the gauges were written by a decode step, so every running request is among those counted."""
    capacity: int | None = None
    """Slots of the pool, where the engine does not export them."""
    price: CellPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSheet:
    """One pool of one engine at one instant; ``problem`` says why there is no sheet."""

    pool: str
    sheet: Sheet | None = None
    problem: str = ""


_DECODING = Known(Accuracy.MEASURED, "decode_sum_seq_lens: the decode batch, a shared prefix once for each request")


def draw_snapshots(snapshots: Sequence[EngineSnapshot]) -> tuple[SnapshotSheet, ...]:
    """Draw the sheet of every pool of every snapshot that speaks of one, from that snapshot alone."""
    return tuple(draw_pool(one, pool, Hints()) for one in snapshots for pool in one.pools if pool.name != "host")


def draw_pool(snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> SnapshotSheet:
    """Draw the sheet of one pool."""
    if snapshot.slots:
        return _draw_slots(snapshot, pool, hints)
    found = _find_parts(snapshot, pool, hints)
    if isinstance(found, str):
        return SnapshotSheet(pool=pool.name, problem=found)
    price = hints.price or (_own_price(pool, found) if len(snapshot.pools) == 1 else None)
    if pool.unit == "bytes":
        price = CellPrice(cell_bytes=1, source="counted by the engine in bytes", accuracy=Accuracy.MEASURED)
    unit = "slots" if pool.unit == "slots" else "tokens"
    return SnapshotSheet(pool=pool.name, sheet=draw_parts(found, price, unit=unit))


def _draw_slots(snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> SnapshotSheet:
    """Draw llama.cpp's slots in the layout that is known, or in both."""
    layout = Layout.STRIPS if len(snapshot.slots) == 1 else hints.cells.layout
    layouts = (Layout.SHARED, Layout.STRIPS) if layout is Layout.UNKNOWN else (layout,)
    sheets = []
    for one in layouts:
        found = split_slots(snapshot, hints.cells, one)
        if isinstance(found, str):
            return SnapshotSheet(pool=pool.name, problem=found)
        sheets.append(draw_parts(found, hints.price))
    sheet = sheets[0] if len(sheets) == 1 else draw_either(sheets[0], sheets[1], explain_layout(snapshot.slots))
    return SnapshotSheet(pool=pool.name, sheet=sheet)


def _own_price(pool: PoolReading, parts: Parts) -> CellPrice | None:
    """Return the price that follows from the bytes of SGLang's pool, which has one page more than it says."""
    size, page = pool.size_bytes, 1 if pool.block_tokens is None else int(pool.block_tokens.value)
    if size is None or not parts.capacity.is_exact or parts.capacity.high < 1 or page < 1:
        return None
    rows = parts.capacity.high + page
    low, high = -(-int(size.low) // rows), int(size.high) // rows
    is_sure = low == high and pool.block_tokens is not None
    cell = low if is_sure else round(size.value / rows)
    if cell < 1:
        return None
    rounded = "" if is_sure else ", rounded as it is told"
    return CellPrice(
        cell_bytes=cell,
        rest_bytes=page * cell,
        rest_cause="page 0: padding writes there, it holds no token of a request",
        source=f"{size.source}: {cell:,} bytes a slot{rounded}",
        accuracy=Accuracy.DERIVED if is_sure else Accuracy.MODELLED,
    )


def _find_parts(snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> Parts | str:
    told = None if pool.block_tokens is None or pool.block_tokens.value <= 0 else int(pool.block_tokens.value)
    if pool.unit == "blocks" and told is None:
        return "the tokens of a block are not told: give the start-up log with `--log`"
    factor = told or 1 if pool.unit == "blocks" else 1
    capacity = _capacity(pool, factor, hints)
    if capacity is None:
        return "the size of the pool is not told: give the start-up log with `--log`"
    if pool.unit == "cells":
        return split_gauge(snapshot, pool, capacity.high)
    held = _held(pool, capacity, factor)
    if held is None:
        return "what running requests hold is not told"
    cached, why_cached = _cached(pool, capacity, held, factor)
    stored, why_stored, known = _stored(snapshot, pool, held, hints)
    reserves = snapshot.reserved_tokens is not None
    return Parts(
        capacity=capacity,
        held=held,
        stored=stored,
        reserved=Span(0, max(0, held.high - stored.low)) if reserves else Span(0, 0),
        cached=cached,
        lost=_lost(pool),
        shared=Span(0, 0) if pool.shared_saving is None else _span(pool.shared_saving, 1),
        why_capacity="the engine does not tell its pool: this is what runs over its usage, which has two decimals",
        why_stored=why_stored,
        why_cached=why_cached,
        known={**_sources(pool), "used": known, "reserved": _reserved_source(snapshot), "decode_tokens": _DECODING},
        extra=_extra(snapshot, pool),
    )


def _lost(pool: PoolReading) -> tuple[tuple[int, str], ...]:
    if pool.lost is None or pool.lost.value <= 0:
        return ()
    return ((int(pool.lost.value), "trash sectors: padding reads and writes there"),)


def _capacity(pool: PoolReading, factor: int, hints: Hints) -> Span | None:
    if hints.capacity is not None:
        return Span.exact(hints.capacity)
    if pool.capacity is None or pool.capacity.high < 1:
        return None
    return _span(pool.capacity, factor)


def _held(pool: PoolReading, capacity: Span, factor: int) -> Span | None:
    if pool.used is not None:
        return _span(pool.used, factor).clip(0, capacity.high)
    if pool.free is not None and pool.cached is not None:
        return (capacity - _span(pool.free, factor) - _span(pool.cached, factor)).clip(0, capacity.high)
    if pool.usage_ratio is not None:
        low, high = pool.usage_ratio.low * capacity.low / factor, pool.usage_ratio.high * capacity.high / factor
        slack = 1e-6 * max(1.0, high)
        least, most = math.ceil(low - slack), math.floor(high + slack)
        if least > most:
            least, most = most, least
        return Span(least * factor, most * factor).clip(0, capacity.high)
    return None


def _cached(pool: PoolReading, capacity: Span, held: Span, factor: int) -> tuple[Span, str]:
    rest = (capacity - held).clip(0, capacity.high)
    if pool.cached is not None:
        return _span(pool.cached, factor).clip(0, rest.high), ""
    if pool.free is not None:
        return (rest - _span(pool.free, factor)).clip(0, rest.high), ""
    return Span(0, rest.high), "free or kept for reuse: the engine does not tell them apart"


def _stored(snapshot: EngineSnapshot, pool: PoolReading, held: Span, hints: Hints) -> tuple[Span, str, Known]:
    """Return the tokens in what is held, why they are an interval, and how they are known."""
    running = 0 if snapshot.running is None else int(snapshot.running.value)
    if pool.stored is not None:
        return _span(pool.stored, 1), "", Known(Accuracy.MEASURED, "counted from the block tables")
    if snapshot.reserved_tokens is not None:
        known = Known(Accuracy.DERIVED, "at most what is reserved")
        why = "tokens are reserved at admission, and how many of them are there is not told"
        return Span(0, held.high), why, known
    if pool.unit == "slots":
        return held, "", Known(Accuracy.MEASURED, "states of running requests")
    page = None if pool.block_tokens is None else int(pool.block_tokens.value)
    speculative = snapshot.others.get("sglang:spec_num_draft_tokens", 0) > 0
    if page is None or speculative:
        why = "slots for proposed tokens are held besides" if speculative else "the tokens of a page are not told"
        return Span(0, held.high), why, Known(Accuracy.DERIVED, "at most what is held")
    low = -(-held.low // page)
    formula = (
        f"held, less at most {counted(page - 1, 'slot')} of each page" if page > 1 else "held: a page is one token"
    )
    if hints.only_decodes and snapshot.running is not None:
        low = max(low, held.low - (running + 1) * (page - 1))
        formula = f"held, less at most {counted(page - 1, 'slot')} of each running request and of one in prefill"
    found = Span(low, held.high)
    if snapshot.engine is Engine.TENSORRT_LLM and snapshot.live_tokens is not None:
        found, formula = _count_live(snapshot.live_tokens, found, snapshot), "numCtxKvTokens + numGenKvTokens"
    return (
        found,
        f"held in whole pages of {counted(page, 'token')}, and their tails are not told",
        Known(Accuracy.DERIVED if page > 1 else Accuracy.MEASURED, formula),
    )


def _count_live(live: Quantity, found: Span, snapshot: EngineSnapshot) -> Span:
    """Narrow what is stored by the tokens of running requests, which count a shared one several times."""
    high = min(found.high, int(live.high))
    if snapshot.others.get("reusedBlocks", 1) == 0:
        return Span(min(max(found.low, int(live.low)), high), high)
    return Span(min(found.low, high), high)


def _sources(pool: PoolReading) -> dict[str, Known]:
    """Return how the numbers that the engine gives are known."""
    found = {}
    for name, quantity in (("held", pool.used or pool.usage_ratio), ("cached", pool.cached), ("free", pool.free)):
        if quantity is not None:
            found[name] = Known(quantity.accuracy, quantity.source or "as told")
    if pool.used is None and "held" in found:
        found["held"] = replace(found["held"], accuracy=Accuracy.DERIVED, formula=f"{found['held'].formula} * pool")
    return found


def _reserved_source(snapshot: EngineSnapshot) -> Known:
    if snapshot.reserved_tokens is not None:
        return Known(Accuracy.DERIVED, "held - used: budgets are taken at admission")
    return Known(Accuracy.DERIVED, "0: slots are taken as tokens come")


def _extra(snapshot: EngineSnapshot, pool: PoolReading) -> dict[str, Span]:
    """Return the tokens of the decode batch, which count a shared prefix once for each request."""
    if snapshot.engine is not Engine.SGLANG or snapshot.live_tokens is None or pool.name not in ("kv", "full"):
        return {}
    return {"decode_tokens": _span(snapshot.live_tokens, 1)}


def _span(quantity: Quantity, factor: int) -> Span:
    low, high = max(0, math.floor(quantity.low)), max(0, math.ceil(quantity.high))
    return Span(low * factor, high * factor)
