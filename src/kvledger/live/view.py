"""What `watch` shows, as plain data: lines made from the last readings, without a terminal."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvledger.live.pool_view import PoolView, format_time, legend_lines, pool_lines
from kvledger.measure.balance import Unsure
from kvledger.measure.figure import Span
from kvledger.measure.meter import Reading
from kvledger.measure.pool_meter import PoolKey, PoolMoment
from kvledger.measure.sheet import Sheet
from kvledger.report.measure_sheet import format_amount, format_span, share_of
from kvledger.units import counted

__all__ = ["KEYS", "LEGEND", "EngineView", "WatchModel", "line_of"]

KEYS = "q quit   p pause   t tokens or bytes"
_HISTORY = 3600
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#@"
LEGEND = "u used   i internal   ? held, not told apart   . free or cached"


@dataclass(slots=True)
class EngineView:
    """One engine: its last reading, and what came before; bounded."""

    name: str
    last: Reading
    before: Reading | None = None
    held: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    missed: int = 0

    @property
    def preempted_since(self) -> int | None:
        """Preemptions since the sample before."""
        if self.before is None or self.before.preemptions is None or self.last.preemptions is None:
            return None
        return max(0, self.last.preemptions - self.before.preemptions)


class WatchModel:
    """Takes readings and gives the lines of a screen; :meth:`add` mutates."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._engines: dict[tuple[int, int], EngineView] = {}
        self._pools: dict[tuple[int, PoolKey], PoolView] = {}
        self._bars = _ASCII_BARS if ascii_only else _BARS
        self._failures = 0
        self._failure = ""

    def add(self, source: str, number: int, reading: Reading | PoolMoment) -> None:
        """Take one reading of an engine, or one moment of a pool."""
        if isinstance(reading, PoolMoment):
            self._pools.setdefault((number, reading.key), PoolView(name=source, last=reading)).add(reading)
            return
        key = (number, reading.engine_index)
        view = self._engines.get(key)
        if view is None:
            view = self._engines[key] = EngineView(name=source, last=reading)
        else:
            view.before, view.last = view.last, reading
        if reading.sheet is not None:
            view.held.append(reading.sheet.share("held")[0])

    def fail(self, message: str) -> None:
        """Note a sample that failed."""
        self._failures, self._failure = self._failures + 1, message

    def lines(self, *, width: int, show_tokens: bool = False) -> list[str]:
        """Return the lines of a screen of ``width`` columns."""
        out: list[str] = []
        for view in self._engines.values():
            out += self._engine(view, width=width, show_tokens=show_tokens)
            out.append("")
        for pool in self._pools.values():
            out += pool_lines(pool, width=width, spark=self._spark(pool.held, width - 17))
            out.append("")
        if self._failures:
            out.append(f"{counted(self._failures, 'sample')} failed; last: {self._failure}"[:width])
        out.append(KEYS)
        return out

    def _engine(self, view: EngineView, *, width: int, show_tokens: bool) -> list[str]:
        reading = view.last
        title = f"{reading.model or view.name}, engine {reading.engine_index}"
        load = f"{_or(reading.running)} running   {_or(reading.waiting)} waiting   {_preemptions(view)}"
        if reading.epoch:
            load += f"   {counted(reading.epoch, 'restart')}"
        lines = [title[:width], load[:width]]
        if reading.sheet is None or reading.balance is None:
            return [*lines, f"no ledger: {reading.problem}"[:width]]
        sheet = reading.sheet
        lines += [_strip(sheet, width - 2), *legend_lines(LEGEND, width)]
        unit = "tokens" if show_tokens else sheet.unit
        for name in ("used", "internal", "held"):
            span = sheet.figure(name).span
            if show_tokens:
                span = {
                    "used": reading.balance.used,
                    "internal": reading.balance.internal,
                    "held": Span.exact(reading.balance.held),
                }[name]
            lines.append(f"{name:10}{format_span(span, unit):>28}  {share_of(sheet, name):>16}"[:width])
        lines.append(f"{'available':10}{format_amount(sheet.available, sheet.unit):>28}"[:width])
        lines.append(f"internal for each running request: {_per_request(reading)} tokens"[:width])
        lines.append(f"held over time |{self._spark(view.held, width - 17)}|")
        return lines

    def _spark(self, held: deque[float], width: int) -> str:
        recent = list(held)[-max(1, width) :]
        top = len(self._bars) - 1
        return "".join(self._bars[min(top, max(0, round(value * top)))] for value in recent)


def line_of(source: str, reading: Reading) -> str:
    """Return one reading as one line, for output that is no terminal."""
    head = f"{format_time(reading.seconds)} {source} engine {reading.engine_index} "
    head += f"running {_or(reading.running)} waiting {_or(reading.waiting)}"
    if reading.sheet is None or reading.balance is None:
        return f"{head} no ledger: {reading.problem}"
    parts = [f"{name} {share_of(reading.sheet, name)}" for name in ("held", "used", "internal")]
    return f"{head} {' '.join(parts)} internal/request {_per_request(reading)} preemptions {_or(reading.preemptions)}"


def _strip(sheet: Sheet, width: int) -> str:
    """Return the pool as a strip of letters: a partition of ``width`` cells, largest remainders first."""
    ledger, width = sheet.ledger, max(10, width)
    amounts = {"u": ledger.used, "i": ledger.internal, ".": sheet.available}
    amounts["?"] = max(0, ledger.capacity - sum(amounts.values()))
    exact = {letter: amounts[letter] * width / max(1, ledger.capacity) for letter in "ui?."}
    cells = {letter: int(value) for letter, value in exact.items()}
    for letter in sorted(exact, key=lambda one: cells[one] - exact[one])[: width - sum(cells.values())]:
        cells[letter] += 1
    return "[" + "".join(letter * count for letter, count in cells.items()) + "]"


def _per_request(reading: Reading) -> str:
    if reading.balance is None or not reading.running or Unsure.GROUPS in reading.balance.causes:
        return "-"
    internal = reading.balance.internal
    low, high = internal.low / reading.running, internal.high / reading.running
    return f"{low:.1f}" if high - low < 0.05 else f"{low:.1f} - {high:.1f}"


def _preemptions(view: EngineView) -> str:
    since = view.preempted_since
    return f"{_or(view.last.preemptions)} preemptions" + (f" (+{since})" if since else "")


def _or(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
