"""What a prefix cache serves by its size: the record, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import kvledger
from kvledger.ledger import Accuracy
from kvledger.replay.cache import CachePoint, Eviction
from kvledger.replay.clock import Clock
from kvledger.replay.outcome import Outcome
from kvledger.report.tables import heading, new_table, signed_points
from kvledger.traces.record import Trace
from kvledger.units import counted, format_bytes

__all__ = ["CacheReport", "LivePoint", "cache_json", "cache_text"]

SCHEMA = "kvledger/cache"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePoint:
    """One budget and eviction with live requests: what the cache alone would find under the same rules, and the replay.

    ``outcome`` is None where the largest request does not fit, so that not all of the traffic could be served.
    """

    budget_bytes: int
    blocks: int
    eviction: Eviction
    alone_ratio: float
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Hit ratios by budget and eviction. ``points`` go by budget, then by eviction; ``ceiling`` has room for all."""

    source: str
    trace: Trace
    model: str
    bytes_per_token: int
    block_size: int
    distinct_blocks: int
    warm_up_ratio: float
    budgets: Sequence[int]
    evictions: Sequence[Eviction]
    points: Sequence[CachePoint]
    ceiling: CachePoint
    live: Sequence[LivePoint] = ()
    clock: Clock | None = None
    notes: tuple[str, ...] = ()

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.bytes_per_token

    @property
    def window(self) -> str:
        """Which requests the ratios are of."""
        total = len(self.trace)
        if self.ceiling.first == 0:
            return f"all {counted(total, 'request')}, from an empty cache"
        return f"requests {self.ceiling.first + 1:,} to {total:,}; those before only fill the cache"

    def row(self, index: int) -> Sequence[CachePoint]:
        """Return the points of one budget."""
        count = len(self.evictions)
        return self.points[index * count : (index + 1) * count]


def cache_text(report: CacheReport) -> RenderableType:
    """Return the whole report, ready to print with rich."""
    return Group(*_sections(report))


def _sections(report: CacheReport) -> Iterator[RenderableType]:
    whole = report.distinct_blocks * report.block_bytes
    yield Text(
        f"{counted(len(report.trace), 'request')} from {report.source} ({report.trace.format.sentence})\n"
        f"{report.model}: {report.bytes_per_token:,} bytes per token; a block of "
        f"{counted(report.block_size, 'token')} is {format_bytes(report.block_bytes)}\n"
        f"all {counted(report.distinct_blocks, 'distinct block')} take {format_bytes(whole)}\n"
    )
    yield Text(cache_answer(report), style="bold")
    yield heading("Share of the prompt tokens found in the cache, %", report.window)
    yield _table(report)
    if not all(point.filled for point in report.points):
        yield Text("* not yet full when measuring began", style="dim")
    if report.live:
        yield heading(
            "What live requests change, %",
            "all requests; full blocks only, and the last token of a prompt is always computed, as engines do",
        )
        yield _live(report)
    yield heading("How these numbers are known")
    yield _provenance(report)


def cache_answer(report: CacheReport) -> str:
    """Say in words what more memory, or a better choice of what goes, would give."""
    ceiling = report.ceiling.hit_ratio
    text = f"A cache that forgets nothing would find {100 * ceiling:.1f} % of the prompt tokens."
    if ceiling == 0:
        return text
    by = {(point.eviction, budget): point for budget, row in _rows(report) for point in row}
    real = next((e for e in report.evictions if e is not Eviction.BELADY), None)
    if real is None:
        return text
    for budget in report.budgets:
        if by[real, budget].hit_ratio >= 0.9 * ceiling:
            text += f" `{real}` reaches nine tenths of that with {format_bytes(budget)}."
            break
    else:
        largest = max(report.budgets)
        text += f" `{real}` finds {100 * by[real, largest].hit_ratio:.1f} % with {format_bytes(largest)}."
    if Eviction.BELADY in report.evictions:
        budget = max(report.budgets, key=lambda b: by[Eviction.BELADY, b].hit_ratio - by[real, b].hit_ratio)
        bound, found = by[Eviction.BELADY, budget].hit_ratio, by[real, budget].hit_ratio
        if bound > found + 0.001:
            text += (
                f" What is evicted matters most at {format_bytes(budget)}: {100 * found:.1f} % with `{real}`, "
                f"{100 * bound:.1f} % for one who knew the future."
            )
    return text


def _rows(report: CacheReport) -> Iterator[tuple[int, Sequence[CachePoint]]]:
    return ((budget, report.row(i)) for i, budget in enumerate(report.budgets))


def _table(report: CacheReport) -> Table:
    table = new_table("budget", "blocks", *(str(e) for e in report.evictions))
    for budget, row in _rows(report):
        cells = (f"{100 * p.hit_ratio:.1f}{'' if p.filled else '*'}" for p in row)
        table.add_row(format_bytes(budget), f"{row[0].blocks:,}", *cells)
    found = f"{100 * report.ceiling.hit_ratio:.1f}"
    table.add_row("no limit", f"{report.distinct_blocks:,}", *(found for _ in report.evictions))
    return table


def _live(report: CacheReport) -> Table:
    table = new_table("budget", "evicting", "cache alone", "live", "points", "running", "preempted")
    for point in report.live:
        outcome = point.outcome
        if outcome is None or outcome.prefix is None:
            cells = ["-", "-", "-", "-"]
        else:
            ratio = outcome.prefix.hit_ratio
            change = signed_points(ratio - point.alone_ratio)
            cells = [f"{100 * ratio:.1f}", change, f"{outcome.mean_running:.1f}", f"{outcome.preemptions:,}"]
        alone = f"{100 * point.alone_ratio:.1f}"
        table.add_row(format_bytes(point.budget_bytes), str(point.eviction), alone, *cells)
    return table


_RULES = (
    "the cache alone: derived. Requests come one after the other, without time and without answers; each finds its "
    "longest run of cached leading blocks, then the rest of its prompt is cached as far as blocks of others can go. "
    "The last, partial block of a prompt counts, and a whole prompt can be found",
    "`lru` evicts the block used longest ago that no cached block follows, `fifo` the one that came first, `belady` "
    "the one needed furthest in the future: no eviction finds more blocks than that",
)


def _provenance(report: CacheReport) -> Text:
    lines = [*_RULES]
    if report.live and report.clock:
        lines.append(
            f"live: modelled, with the scheduler of `replay` and the clock {report.clock.name}. Live requests keep "
            "their blocks from eviction, their answers take room, and what is still being computed is not there yet; "
            "a dash where the largest request does not fit"
        )
    lines += [*report.trace.notes, *report.notes]
    lines += [f"dropped {count:,}: {reason}" for reason, count in report.trace.dropped.items()]
    return Text("\n".join(f"- {line}" for line in lines))


def cache_json(report: CacheReport) -> dict[str, Any]:
    """Return the object that ``cache --json`` prints."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvledger_version": kvledger.__version__,
        "trace": {
            "format": report.trace.format.name,
            "requests": len(report.trace),
            "rows_read": report.trace.rows_read,
            "dropped": dict(report.trace.dropped),
            "notes": list(report.trace.notes),
        },
        "model": report.model,
        "bytes_per_token": report.bytes_per_token,
        "block_tokens": report.block_size,
        "block_bytes": report.block_bytes,
        "distinct_blocks": report.distinct_blocks,
        "warm_up_ratio": report.warm_up_ratio,
        "first_measured_request": report.ceiling.first,
        "answer": cache_answer(report),
        "accuracy": {"alone": str(Accuracy.DERIVED), "live": str(Accuracy.MODELLED)},
        "ceiling": {"hit_ratio": report.ceiling.hit_ratio, "whole_hit_ratio": report.ceiling.whole_hit_ratio},
        "budgets": [
            {
                "budget_bytes": budget,
                "blocks": row[0].blocks,
                "evictions": [
                    {
                        "eviction": str(p.eviction),
                        "hit_ratio": p.hit_ratio,
                        "whole_hit_ratio": p.whole_hit_ratio,
                        "filled": p.filled,
                    }
                    for p in row
                ],
            }
            for budget, row in _rows(report)
        ],
        "live": [_live_json(point) for point in report.live],
        "notes": list(report.notes),
    }


def _live_json(point: LivePoint) -> dict[str, Any]:
    outcome = point.outcome
    return {
        "budget_bytes": point.budget_bytes,
        "blocks": point.blocks,
        "eviction": str(point.eviction),
        "alone_hit_ratio": point.alone_ratio,
        "live_hit_ratio": outcome.prefix.hit_ratio if outcome and outcome.prefix else None,
        "mean_running": outcome.mean_running if outcome else None,
        "preemptions": outcome.preemptions if outcome else None,
        "makespan_seconds": outcome.makespan_seconds if outcome else None,
    }
