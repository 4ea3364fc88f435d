"""The parts of a pool that an engine tells, as intervals, and the balance sheet that follows from them.

What an engine leaves open stays an interval; the ledger takes the least of each account and puts the rest into
``unattributed``, row by row with its cause, so that it balances whatever is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvledger.ledger import Account, Accuracy, Ledger, Memo
from kvledger.measure.figure import Figure, Span
from kvledger.measure.sheet import Sheet, Unexplained

__all__ = ["CellPrice", "Known", "Parts", "draw_either", "draw_parts"]


@dataclass(frozen=True, slots=True)
class Known:
    """How a number is known: its accuracy and the formula or the series it follows from."""

    accuracy: Accuracy
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPrice:
    """What one slot of a pool costs in bytes, what is left over of the pool's bytes, and how that is known."""

    cell_bytes: int
    rest_bytes: int = 0
    rest_cause: str = "remainder of the memory: less than one slot"
    source: str
    accuracy: Accuracy = Accuracy.DERIVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One pool in its slots of one token (or one state)."""

    capacity: Span
    """An interval where the engine does not tell which of two layouts it has."""
    held: Span
    """Kept from others by running requests."""
    stored: Span
    """Of ``held``: tokens that are there, a shared one counted once."""
    reserved: Span
    cached: Span
    internal: Span | None = None
    """None: what is left of ``held``."""
    free: Span | None = None
    """None: what is left of the capacity."""
    lost: tuple[tuple[int, str], ...] = ()
    """Slots that nobody can use, each with the reason: they are ``unattributed``."""
    shared: Span = field(default_factory=lambda: Span(0, 0))
    """Slots saved because several requests use one."""
    stale: int = 0
    """Slots still held for tokens outside every window."""
    why_capacity: str = ""
    why_stored: str = ""
    why_cached: str = ""
    known: Mapping[str, Known] = field(default_factory=dict)
    """By name of the figure; figures that are not named are derived from the pool's own counts."""
    extra: Mapping[str, Span] = field(default_factory=dict)
    """Further figures in slots, shown beside the sheet."""


_PLAIN = Known(Accuracy.DERIVED, "from the pool's own counts")


def draw_parts(parts: Parts, price: CellPrice | None, *, unit: str = "tokens") -> Sheet:
    """Draw the sheet of one pool; without a price it is in slots, named ``unit``."""
    cost = price.cell_bytes if price is not None else 1
    rest = price.rest_bytes if price is not None else 0
    capacity = parts.capacity.high
    lost = sum(amount for amount, _ in parts.lost)
    held = parts.held.clip(0, capacity - lost)
    stored = parts.stored.clip(0, held.high)
    reserved = parts.reserved.clip(0, held.high - stored.low)
    cached = parts.cached.clip(0, capacity - lost - held.low)
    cached_low = min(cached.low, capacity - lost - held.high)
    internal = (held - stored - reserved).clip(0, held.high) if parts.internal is None else parts.internal
    internal_low = max(internal.low, held.low - stored.high - reserved.high, 0)
    reserved_low = min(reserved.low, max(0, held.low - stored.low - internal_low))
    rest_low = max(0, parts.capacity.low - lost - held.high - cached.high)
    free_low = rest_low if parts.free is None else parts.free.low
    open_held = held.high - stored.low - internal_low - reserved_low
    open_rest = capacity - lost - held.high - cached_low - free_low
    doubtful = min(parts.capacity.width, open_rest)
    rows = [
        *((amount * cost, cause) for amount, cause in parts.lost),
        (open_held * cost, parts.why_stored or "held, and not told apart"),
        (doubtful * cost, parts.why_capacity),
        ((open_rest - doubtful) * cost, parts.why_cached or "free or kept, and not told apart"),
        (rest, price.rest_cause if price is not None else ""),
    ]
    ledger = Ledger(
        capacity=capacity * cost + rest,
        used=stored.low * cost,
        cached=cached_low * cost,
        reserved=reserved_low * cost,
        internal=internal_low * cost,
        free=free_low * cost,
        unattributed=sum(amount for amount, _ in rows),
        memo=Memo(shared_saving=parts.shared.low * cost, stale=parts.stale * cost),
    ).check()
    spans = {
        "held": held,
        "used": stored,
        "reserved": Span(reserved_low, reserved.high),
        "internal": Span(internal_low, max(internal_low, internal.high)),
        "cached": Span(cached_low, cached.high),
        "free": parts.free or Span(free_low, max(free_low, capacity - lost - held.low - cached.low)),
        **({} if parts.capacity.is_exact else {"capacity": parts.capacity}),
        **({} if parts.shared == Span(0, 0) else {"shared_saving": parts.shared}),
        **({} if not parts.stale else {"stale": Span.exact(parts.stale)}),
        **parts.extra,
    }
    shown = "bytes" if price is not None else unit
    return Sheet(
        ledger=ledger,
        unit=shown,
        unattributed=tuple(Unexplained(amount=amount, cause=cause) for amount, cause in rows if amount > 0),
        figures=tuple(_figure(name, span, cost, shown, parts, price) for name, span in spans.items()),
        available=max(0, parts.capacity.low - lost - held.high) * cost,
        size_accuracy=Accuracy.MEASURED if price is None else price.accuracy,
    )


def draw_either(one: Sheet, other: Sheet, why: str) -> Sheet:
    """Return what two sheets of one pool both say, of which only one is true; the rest is unattributed."""
    capacity = max(one.ledger.capacity, other.ledger.capacity)
    both = {account: min(one.ledger[account], other.ledger[account]) for account in Account}
    rest = capacity - sum(both.values()) + both[Account.UNATTRIBUTED]
    figures = {figure.name: figure for figure in other.figures}
    sizes = Span(min(one.ledger.capacity, other.ledger.capacity), capacity)
    size = Figure(
        name="capacity", span=sizes, unit=one.unit, accuracy=Accuracy.DERIVED, formula="one of two sizes", cause=why
    )
    return Sheet(
        ledger=Ledger(
            capacity=capacity,
            used=both[Account.USED],
            cached=both[Account.CACHED],
            reserved=both[Account.RESERVED],
            internal=both[Account.INTERNAL],
            external=both[Account.EXTERNAL],
            free=both[Account.FREE],
            unattributed=rest,
        ).check(),
        unit=one.unit,
        unattributed=(Unexplained(amount=rest, cause=why),) if rest else (),
        figures=(*(_either(figure, figures.get(figure.name, figure), why) for figure in one.figures), size),
        available=min(one.available, other.available),
        size_accuracy=one.size_accuracy,
    )


def _either(one: Figure, other: Figure, why: str) -> Figure:
    span = Span(min(one.low, other.low), max(one.high, other.high))
    formula = one.formula if one.formula == other.formula else f"{one.formula}, or {other.formula}"
    return replace(one, span=span, formula=formula, cause="" if span.is_exact else one.cause or other.cause or why)


def _priced(formula: str, cost: int) -> str:
    if formula.startswith("0") or cost == 1:
        return formula
    whole = f"({formula})" if " - " in formula or "," in formula else formula
    return f"{whole} * {cost:,} bytes"


def _figure(name: str, span: Span, cost: int, unit: str, parts: Parts, price: CellPrice | None) -> Figure:
    known = parts.known.get(name, _PLAIN)
    unsure = parts.why_capacity if name in ("capacity", "free") and not parts.capacity.is_exact else ""
    cause = unsure or (parts.why_cached if name in ("cached", "free") else parts.why_stored)
    accuracy = known.accuracy
    if price is not None and accuracy is not Accuracy.MODELLED:
        accuracy = price.accuracy
    return Figure(
        name=name,
        span=span.scale(cost),
        unit=unit,
        accuracy=accuracy,
        formula=known.formula if price is None else _priced(known.formula, cost),
        cause="" if span.is_exact else cause or parts.why_capacity,
    )
