"""What several answers to a prompt share, and what swapping moved, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from kvledger.replay.clock import Clock
from kvledger.replay.outcome import Outcome
from kvledger.report.tables import heading, new_table, percent
from kvledger.units import format_bytes

__all__ = ["moving", "samples_sections", "what_runs"]


def what_runs(outcome: Outcome) -> str:
    """Name what `running` counts: requests, or answers where a request has several."""
    return "requests" if outcome.sequences == outcome.requests else "answers"


def moving(outcomes: Sequence[Outcome], clock: Clock) -> str:
    """Return the term of the clock that only swapping has."""
    return f" + {clock.d:.3g} a token moved to the host or back" if any(o.swap for o in outcomes) else ""


def samples_sections(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    """Yield a table of what answers share, and one of what was swapped, where there is any."""
    yield from _sharing(outcomes)
    yield from _swapping(outcomes)


def _sharing(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    known = [(o, o.sharing) for o in outcomes if o.sharing and o.sequences > o.requests]
    if not known:
        return
    yield heading(
        "What the answers to one prompt share",
        "blocks saved of those needed without sharing; tokens saved, share of the pool",
    )
    table = new_table("policy", "answers are", "answers", "blocks saved", "tokens saved", "blocks copied on write")
    for o, sharing in known:
        saved = sharing.block_saving_ratio
        table.add_row(
            o.policy,
            str(sharing.samples_as),
            f"{o.sequences:,}",
            "-" if saved is None else percent(saved),
            percent(o.shared_saving_ratio),
            "-" if saved is None else f"{sharing.copied_blocks:,}",
        )
    yield table


def _swapping(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    known = [(o, o.swap) for o in outcomes if o.swap]
    if not known:
        return
    yield heading("What was swapped to the host", "whole blocks; victims without room there are computed again")
    table = new_table("policy", "preempted", "swapped", "no room", "moved out", "moved back", "host at most", "host")
    for o, swap in known:
        table.add_row(
            o.policy,
            f"{o.preemptions:,}",
            f"{swap.swapped:,}",
            f"{swap.no_room:,}",
            *(format_bytes(size) for size in (swap.out_bytes, swap.in_bytes, swap.peak_host_bytes, swap.host_bytes)),
        )
    yield table
