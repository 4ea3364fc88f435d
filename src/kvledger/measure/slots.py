"""llama.cpp's slots: whether they share the cells, what each holds, and what of that is reserved.

``/slots`` tells the tokens of each slot and the context of a slot, not whether slots share one pool of cells
(``--kv-unified``, automatic with an automatic number of slots) or own a strip each (``-np N``): the context is the same
number in both. So the layout is given, or proved by what is seen (:class:`LayoutProof`), or left open, and then only
what is true of both is told.

A request that is run several times at once (``n`` above 1) computes its prompt once, and in a unified pool the slots
share those cells. The slots do not say so; slots with equal prompts and consecutive task numbers may be such a family
(b11434 ``handle_completions_impl`` numbers a task and its children one after the other).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.engines.facts import EngineSnapshot, PoolReading, SlotReading
from kvledger.ledger import Accuracy
from kvledger.measure.figure import Span
from kvledger.measure.parts import Known, Parts
from kvledger.units import counted

__all__ = ["Cells", "Layout", "LayoutProof", "count_cells", "explain_layout", "split_gauge", "split_slots"]


_PRINTED = 1e-6
"""Gauges are printed with six digits."""
_NOT_KEPT = "this build does not tell what idle slots keep"


class Layout(StrEnum):
    """How slots hold cells."""

    UNKNOWN = "unknown"
    STRIPS = "strips"
    """Each slot owns a strip as long as its context."""
    SHARED = "shared"
    """All slots take cells of one pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """What is known about the cells of a server beside its slots."""

    layout: Layout = Layout.UNKNOWN
    source: str = ""
    counts: Mapping[Layout, int] = field(default_factory=dict)
    """All cells of the pool in each layout, from the start-up log or the plan."""
    is_windowed: bool = False
    """The pool holds only what layers with a window need."""
    window_tokens: int | None = None


@dataclass(slots=True)
class LayoutProof:
    """Finds the layout from samples; :meth:`take` mutates.

    More tokens than one slot's context cannot be in a shared pool of that many cells. An idle slot that loses its
    tokens without having had another request was cleared for the others, which happens in a shared pool only
    (b11434 ``server-context.cpp``: ``try_clear_idle_slots``, and idle slots when a task starts).
    """

    layout: Layout = Layout.UNKNOWN
    source: str = ""
    _before: dict[int, SlotReading] = field(default_factory=dict)

    def take(self, slots: Sequence[SlotReading]) -> None:
        """Look at one sample."""
        total = sum(_tokens(slot).low for slot in slots)
        longest = max((_context(slot) for slot in slots), default=0)
        if longest and total > longest and not _families(slots):
            self._conclude(
                Layout.STRIPS, f"{counted(total, 'token')} were in the slots at once, more than the {longest:,} of one"
            )
        for slot in slots:
            before = self._before.get(slot.slot_id)
            if before is not None and _was_cleared(before, slot):
                self._conclude(
                    Layout.SHARED, f"idle slot {slot.slot_id} was cleared of its tokens to make room for another"
                )
        self._before = {slot.slot_id: slot for slot in slots}

    def _conclude(self, layout: Layout, source: str) -> None:
        if self.layout is Layout.UNKNOWN:
            self.layout, self.source = layout, source


def _was_cleared(before: SlotReading, now: SlotReading) -> bool:
    same = before.task_id is not None and before.task_id == now.task_id
    idle = not before.is_processing and not now.is_processing
    return same and idle and _tokens(before).low > 0 and _tokens(now).high == 0


def count_cells(slots: Sequence[SlotReading], cells: Cells, layout: Layout) -> int | None:
    """Return the cells of the pool in a layout; None when that is not known, or no slot tells its context."""
    contexts = [_context(slot) for slot in slots]
    if layout in cells.counts:
        return cells.counts[layout]
    if not contexts or not all(contexts) or cells.is_windowed:
        return None
    if len(contexts) == 1:
        return contexts[0]
    return {Layout.STRIPS: sum(contexts), Layout.SHARED: max(contexts)}.get(layout)


def split_slots(snapshot: EngineSnapshot, cells: Cells, layout: Layout) -> Parts | str:
    """Split the pool into what its slots say in one layout, or return why that is not possible."""
    slots, window = snapshot.slots, cells.window_tokens
    if cells.is_windowed and window is None:
        return "the window of these layers is not told: give --model, or a log written with `-lv 4`"
    capacity = count_cells(slots, cells, layout)
    if capacity is None:
        return "`/slots` does not tell the context of each slot (`n_ctx`)"
    busy = [slot for slot in slots if slot.is_processing]
    stored, cached = _sum(busy, window), _sum([slot for slot in slots if not slot.is_processing], window)
    occupied = None if cells.is_windowed else _occupied(snapshot, capacity)
    if occupied is not None:
        kept = cached
        cached = Span(max(cached.low, occupied.low - stored.high), min(cached.high, occupied.high - stored.low))
        stored = Span(max(stored.low, occupied.low - kept.high), min(stored.high, occupied.high - kept.low))
    if layout is Layout.STRIPS:
        return _own_strips(snapshot, cells, capacity, stored, cached)
    shared = _shareable(busy)
    physical = Span(max(0, stored.low - shared), stored.high).clip(0, capacity)
    return Parts(
        capacity=Span.exact(capacity),
        held=physical,
        stored=physical,
        reserved=Span(0, 0),
        internal=Span(0, 0),
        cached=cached,
        shared=Span(0, min(shared, stored.high)),
        why_stored=_why_stored(busy, shared),
        why_cached="" if cached.is_exact else _NOT_KEPT,
        known=_known(layout, cells),
    )


def split_gauge(snapshot: EngineSnapshot, pool: PoolReading, capacity: int) -> Parts | str:
    """Split the pool by the gauge of builds before May 2025, without ``/slots``: it counts kept cells too."""
    found = _count_occupied(pool, capacity)
    if found is None:
        return "what running requests hold is not told: `/slots` tells it"
    occupied = found.clip(0, capacity)
    running = None if snapshot.running is None else int(snapshot.running.value)
    held = Span(0, 0) if running == 0 else Span(min(running or 0, occupied.high), occupied.high)
    return Parts(
        capacity=Span.exact(capacity),
        held=held,
        stored=held,
        reserved=Span(0, 0),
        internal=Span(0, 0),
        cached=occupied if running == 0 else Span(0, occupied.high - held.low),
        free=Span(capacity - occupied.high, capacity - occupied.low),
        why_stored="of requests that run, or kept by idle slots: the gauge counts both, and `/slots` does not answer",
        why_cached="the gauge is rounded",
        known={
            "held": Known(Accuracy.DERIVED, "at most the cells that the gauge counts"),
            "used": Known(Accuracy.DERIVED, "at most the cells that the gauge counts"),
            "reserved": Known(Accuracy.DERIVED, "0: cells are taken as tokens come"),
            "internal": Known(Accuracy.DERIVED, "0: a cell is one token"),
            "free": Known(Accuracy.DERIVED, "capacity - cells that the gauge counts"),
        },
    )


def _own_strips(snapshot: EngineSnapshot, cells: Cells, capacity: int, stored: Span, cached: Span) -> Parts:
    """Split a pool of which each slot owns a strip; a strip for a window is longer than the window."""
    slots, window = snapshot.slots, cells.window_tokens
    busy = [slot for slot in slots if slot.is_processing]
    strip = capacity // len(slots)
    held = sum(strip if window is not None else _context(slot) for slot in busy)
    promised = held if window is None else len(busy) * min(strip, window)
    beyond = capacity - sum(_context(slot) for slot in slots) if window is None else 0
    return Parts(
        capacity=Span.exact(capacity),
        held=Span.exact(held),
        stored=stored,
        reserved=(Span.exact(promised) - stored).clip(0, held),
        internal=Span.exact(held - promised),
        cached=cached,
        lost=((beyond, "cells of a strip beyond the training context: no slot can use them"),) if beyond > 0 else (),
        why_stored=_why_stored(busy, 0),
        why_cached="" if cached.is_exact else _NOT_KEPT,
        known=_known(Layout.STRIPS, cells),
    )


def explain_layout(slots: Sequence[SlotReading]) -> str:
    """Say what is not known while the layout is not."""
    return (
        f"there only if each of the {len(slots):,} slots owns a strip of cells (-np N), or free only if "
        "they share them: "
        "/slots does not tell; say --kv-unified or --no-kv-unified, or give the start-up log with --log"
    )


def _known(layout: Layout, cells: Cells) -> dict[str, Known]:
    tokens, derived = "sum of /slots n_prompt_tokens of the slots that work", Accuracy.DERIVED
    window = f", at most the {cells.window_tokens:,} of the window" if cells.window_tokens is not None else ""
    read = derived if window else Accuracy.MEASURED
    owns = layout is Layout.STRIPS
    return {
        "used": Known(read, tokens + window),
        "held": Known(derived, "strips of the slots that work" if owns else tokens + window),
        "internal": Known(derived, "strips beyond the window" if window and owns else "0: a cell is one token"),
        "cached": Known(read, "sum of /slots n_prompt_tokens of idle slots" + window),
        "reserved": Known(derived, "held - used - internal" if owns else "0: cells are taken as tokens come"),
        "shared_saving": Known(derived, "prompt tokens of slots that may run the same request"),
    }


def _why_stored(busy: Sequence[SlotReading], shared: int) -> str:
    if any(slot.tokens is None for slot in busy):
        return "this build does not tell the tokens of each slot (`n_prompt_tokens`), only what was generated"
    return "slots with equal prompts may run one request several times (`n`) and share its cells" if shared else ""


def _tokens(slot: SlotReading) -> Span:
    """Return what a slot holds; a build that does not tell it leaves everything from the generated tokens on open."""
    if slot.tokens is not None:
        return Span(int(slot.tokens.low), int(slot.tokens.high))
    decoded = 0 if slot.decoded_tokens is None or not slot.is_processing else int(slot.decoded_tokens.value)
    return Span(max(0, decoded - 1), max(_context(slot), decoded))


def _context(slot: SlotReading) -> int:
    return 0 if slot.capacity_tokens is None else int(slot.capacity_tokens.value)


def _sum(slots: Sequence[SlotReading], window: int | None) -> Span:
    total = Span(0, 0)
    for slot in slots:
        held = _tokens(slot)
        total = total + (held if window is None else Span(min(held.low, window), min(held.high, window)))
    return total


def _occupied(snapshot: EngineSnapshot, capacity: int) -> Span | None:
    """Return the cells that the gauges of builds before May 2025 count, those of idle slots included."""
    pool = snapshot.pools[0] if snapshot.pools else None
    if pool is None or any(slot.tokens is not None for slot in snapshot.slots):
        return None
    return _count_occupied(pool, capacity)


def _count_occupied(pool: PoolReading, capacity: int) -> Span | None:
    if pool.occupied is not None:
        return Span(int(pool.occupied.low), int(pool.occupied.high))
    if pool.usage_ratio is None:
        return None
    exact = pool.usage_ratio.value * capacity
    return Span(math.floor(exact * (1 - _PRINTED)), math.ceil(exact * (1 + _PRINTED)))


def _families(slots: Sequence[SlotReading]) -> list[list[SlotReading]]:
    """Return working slots that may run one request several times: equal prompts, consecutive tasks."""
    busy = [
        slot for slot in slots if slot.is_processing and slot.task_id is not None and slot.prompt_tokens is not None
    ]
    families: list[list[SlotReading]] = []
    for slot in sorted(busy, key=lambda one: one.task_id or 0):
        last = families[-1][-1] if families else None
        if last is not None and slot.task_id == (last.task_id or 0) + 1 and _prompt(last) == _prompt(slot) != (0, 0):
            families[-1].append(slot)
        else:
            families.append([slot])
    return [family for family in families if len(family) > 1]


def _prompt(slot: SlotReading) -> tuple[int, int]:
    told = slot.prompt_tokens, slot.reused_tokens
    return int(told[0].value) if told[0] else 0, int(told[1].value) if told[1] else 0


def _shareable(busy: Sequence[SlotReading]) -> int:
    """Return the most cells that slots can share: the prompt of each of a family but the first."""
    return sum(_prompt(family[0])[0] * (len(family) - 1) for family in _families(busy))
