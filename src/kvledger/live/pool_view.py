"""Pools of engines that tell them themselves in `watch`, as plain data: lines made from the last moments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kvledger.measure.pool_meter import PoolMoment
from kvledger.measure.sheet import Sheet
from kvledger.report.measure_pools import name_pool
from kvledger.report.measure_sheet import format_amount, format_span, share_of

__all__ = ["POOL_LEGEND", "PoolView", "format_time", "legend_lines", "moment_line", "pool_lines"]

POOL_LEGEND = "u used   c cached   r reserved   i internal   ? not told apart   . free"
_HISTORY = 3600
_SHOWN = ("used", "cached", "reserved", "internal", "held")
_MOST_SLOTS = 16


@dataclass(slots=True)
class PoolView:
    """One pool: its last moment, and what was held before; bounded."""

    name: str
    last: PoolMoment
    held: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def add(self, moment: PoolMoment) -> None:
        """Take one moment."""
        self.last = moment
        if moment.sheet is not None:
            self.held.append(moment.sheet.share("held")[0])


def format_time(seconds: float) -> str:
    """Return a moment as ISO 8601 in UTC; seconds that are no date stay as they are.

    >>> format_time(1796006748.424)
    '2026-11-30T02:45:48.424Z'
    """
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return f"{seconds:.3f}"


def legend_lines(legend: str, width: int) -> list[str]:
    """Break a legend between its entries, which are three blanks apart."""
    lines = [""]
    for entry in legend.split("   "):
        longer = f"{lines[-1]}   {entry}" if lines[-1] else entry
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(entry)
    return [line[:width] for line in lines]


def pool_lines(view: PoolView, *, width: int, spark: str) -> list[str]:
    """Return the lines of one pool for a screen of ``width`` columns; ``spark`` is what was held over time."""
    moment = view.last
    place = name_pool(moment.key, several=False)
    load = f"{moment.key.engine}: {_or(moment.running)} running   {_or(moment.waiting)} waiting"
    if moment.epoch:
        load += f"   {moment.epoch} restart{'s' * (moment.epoch > 1)}"
    lines = [f"{moment.model or view.name}{f', {place}' if place else ''}"[:width], load[:width]]
    if moment.sheet is None:
        return [*lines, f"no ledger: {moment.problem}"[:width]]
    sheet = moment.sheet
    lines += [_strip(sheet, width - 2), *legend_lines(POOL_LEGEND, width)]
    for name in _SHOWN:
        span = sheet.figure(name).span
        if span.high or name == "used":
            lines.append(f"{name:10}{format_span(span, sheet.unit):>28}  {share_of(sheet, name):>16}"[:width])
    lines.append(f"{'available':10}{format_amount(sheet.available, sheet.unit):>28}"[:width])
    lines += [line[:width] for line in _slot_lines(moment)]
    lines.append(f"held over time |{spark}|"[:width])
    return lines


def _slot_lines(moment: PoolMoment) -> list[str]:
    """Return what each slot holds, a few on a line."""
    cells = []
    for slot in moment.snapshot.slots[:_MOST_SLOTS]:
        tokens = "?" if slot.tokens is None else f"{int(slot.tokens.value):,}"
        cells.append(f"{slot.slot_id}:{tokens}{'*' if slot.is_processing else ''}")
    more = len(moment.snapshot.slots) - _MOST_SLOTS
    return ["slots " + "  ".join(cells) + (f"  and {more} more" if more > 0 else "")] if cells else []


def moment_line(source: str, moment: PoolMoment) -> str:
    """Return one moment as one line, for output that is no terminal."""
    place = name_pool(moment.key, several=False)
    head = f"{format_time(moment.seconds)} {source} {moment.key.engine}{f' {place}' if place else ''} "
    head += f"running {_or(moment.running)} waiting {_or(moment.waiting)}"
    if moment.sheet is None:
        return f"{head} no ledger: {moment.problem}"
    parts = [f"{name} {share_of(moment.sheet, name)}" for name in ("held", *_SHOWN[:-1])]
    return f"{head} {' '.join(parts)}"


def _strip(sheet: Sheet, width: int) -> str:
    """Return the pool as a strip of letters: a partition of ``width`` cells, largest remainders first."""
    ledger, width = sheet.ledger, max(10, width)
    amounts = {
        "u": ledger.used,
        "c": ledger.cached,
        "r": ledger.reserved,
        "i": ledger.internal + ledger.external,
        "?": ledger.unattributed,
        ".": ledger.free,
    }
    exact = {letter: amount * width / max(1, ledger.capacity) for letter, amount in amounts.items()}
    cells = {letter: int(value) for letter, value in exact.items()}
    for letter in sorted(exact, key=lambda one: cells[one] - exact[one])[: width - sum(cells.values())]:
        cells[letter] += 1
    return "[" + "".join(letter * count for letter, count in cells.items()) + "]"


def _or(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
