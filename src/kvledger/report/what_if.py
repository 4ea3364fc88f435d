"""What-ifs as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvledger.ledger import Account
from kvledger.replay.outcome import Latency, Outcome
from kvledger.replay.what_if import WhatIf, losses, weigh
from kvledger.report.chips import account_chip
from kvledger.report.tables import heading, new_table

__all__ = ["what_if_json", "what_if_sections"]

AS_IT_IS = "(as it is)"
_SHOWN_RATIO = 0.0005


def what_if_sections(
    base: Outcome, changes: Sequence[WhatIf], *, content_known: bool = True
) -> Iterator[RenderableType]:
    """Yield the verdict and the table."""
    yield heading(
        f"What if: `{base.policy}` with one setting changed",
        "mean % of the pool and requests at a time, while requests run; seconds in the queue, to the end",
    )
    yield Text(weigh(base, changes, content_known=content_known).sentence)
    yield _table(base, changes)


def _table(base: Outcome, changes: Sequence[WhatIf]) -> Table:
    rows = [(AS_IT_IS, base), *((what.change, what.outcome) for what in changes)]
    shown = [a for a in Account if any(outcome.mean_ratio[a] >= _SHOWN_RATIO for _, outcome in rows)]
    caching = any(outcome.prefix for _, outcome in rows)
    cutting = any(outcome.truncated for _, outcome in rows)
    hits, cut = ("hits",) if caching else (), ("cut",) if cutting else ()
    table = new_table(
        "change", *map(account_chip, shown), "running", "rejected", *cut, "preempted", *hits, "queue", "end"
    )
    for name, o in rows:
        hit = ("-" if o.prefix is None else f"{100 * o.prefix.hit_ratio:.1f}",) if caching else ()
        table.add_row(
            name,
            *(f"{100 * o.mean_ratio[a]:.1f}" if o.busy_seconds else "-" for a in shown),
            f"{o.mean_running:.1f}" if o.busy_seconds else "-",
            f"{sum(o.rejected.values()):,}",
            *((f"{o.truncated:,}",) if cutting else ()),
            f"{o.preemptions:,}",
            *hit,
            _seconds(o.queue),
            _seconds(o.end_to_end),
        )
    return table


def _seconds(latency: Latency | None) -> str:
    return "-" if latency is None else f"{latency.mean:,.2f}" if latency.mean < 100 else f"{latency.mean:,.0f}"


def what_if_json(base: Outcome, changes: Sequence[WhatIf], *, content_known: bool = True) -> dict[str, Any]:
    """Return the object under ``what_ifs``."""
    verdict = weigh(base, changes, content_known=content_known)
    return {
        "policy": base.policy,
        "best": verdict.best,
        "sentence": verdict.sentence,
        "changes": [_row(base, what) for what in changes],
    }


def _row(base: Outcome, what: WhatIf) -> dict[str, Any]:
    after, pool = what.outcome, what.scenario.pool
    return {
        "change": what.change,
        "price": "; ".join([*losses(base, after), *([what.price] if what.price else [])]),
        "bytes_per_token": pool.bytes_per_token,
        "capacity_bytes": after.capacity_bytes,
        "capacity_tokens": after.capacity_bytes // pool.bytes_per_token,
        "mean_ratio": {str(k): v for k, v in after.mean_ratio.items()},
        "effect": {str(k): v - base.mean_ratio[k] for k, v in after.mean_ratio.items()},
        "mean_running": after.mean_running,
        "peak_running": after.peak_running,
        "finished": after.finished,
        "rejected": after.rejected,
        "truncated": after.truncated,
        "preemptions": after.preemptions,
        "prefix_hit_ratio": after.prefix.hit_ratio if after.prefix else None,
        "queue_seconds": after.queue.mean if after.queue else None,
        "first_token_seconds": after.first_token.mean if after.first_token else None,
        "end_to_end_seconds": after.end_to_end.mean if after.end_to_end else None,
        "makespan_seconds": after.makespan_seconds,
    }
