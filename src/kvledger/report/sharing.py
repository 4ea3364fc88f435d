"""What sharing blocks among answers saves, beside Figure 15 of the PagedAttention paper, as text and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

import kvledger
from kvledger.report.tables import heading, new_table, percent

__all__ = ["SharingReport", "SharingRow", "sharing_json", "sharing_text"]

SCHEMA = "kvledger/sharing"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRow:
    """One way to decode several answers of one workload, for every number of answers.

    ``beam_turnover`` is None for samples. ``block_saving_ratio``: blocks saved over blocks without sharing.
    ``running_forked`` and ``running_alone``: answers at a time while requests wait, with and without sharing.
    ``published_low_ratio`` and ``published_high_ratio``: the savings in the paper, at 2 and 6 answers.
    """

    workload: str
    beam_turnover: float | None
    block_saving_ratio: Mapping[int, float]
    running_forked: Mapping[int, float]
    running_alone: Mapping[int, float]
    published_low_ratio: float
    published_high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingReport:
    """All rows, and what they have in common."""

    model: str
    memory_bytes: int
    block_size: int
    requests: int
    seed: int
    rows: Sequence[SharingRow]


def sharing_json(report: SharingReport) -> dict[str, Any]:
    """Return the object that ``demo --case sharing --json`` prints."""
    rows = []
    for row in report.rows:
        record = asdict(row)
        for name in ("block_saving_ratio", "running_forked", "running_alone"):
            record[name] = {str(answers): value for answers, value in record[name].items()}
        rows.append(record)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvledger_version": kvledger.__version__,
        **{name: getattr(report, name) for name in ("model", "memory_bytes", "block_size", "requests", "seed")},
        "rows": rows,
    }


def sharing_text(report: SharingReport) -> RenderableType:
    """Return the tables, ready to print with rich."""
    answers = list(report.rows[0].block_saving_ratio)
    saved = new_table("workload", "how", *(f"{n} answers" for n in answers), "the paper")
    running = new_table("workload", "how", *(f"{n} answers" for n in answers))
    for row in report.rows:
        how = "samples" if row.beam_turnover is None else f"beams, {row.beam_turnover:g}"
        saved.add_row(
            row.workload,
            how,
            *(percent(row.block_saving_ratio[n]) for n in answers),
            f"{percent(row.published_low_ratio)} to {percent(row.published_high_ratio)}",
        )
        running.add_row(
            row.workload, how, *(f"{row.running_forked[n]:.0f} / {row.running_alone[n]:.0f}" for n in answers)
        )
    return Group(
        Text(_HEAD.format(count=report.requests, model=report.model, block=report.block_size)),
        heading("Blocks saved by sharing", "of those needed without; the paper: at 2 to 6 answers"),
        saved,
        heading("Answers that run at a time", "sharing blocks / each alone, while requests wait"),
        running,
        heading("How these numbers are known"),
        Text(_TAIL),
    )


_HEAD = """\
Several answers to one prompt, as forks of one request that share its blocks and copy them on write:
Figure 15 of the PagedAttention paper; {model} in 12 GiB, blocks of {block}, {count:,} requests at once."""
_TAIL = """\
- blocks and answers: derived, step by step, and checked to sum to the pool
- lengths: modelled; only their means are published. Every answer is as long as its
  request says
- which candidates fork and die: modelled. After a step, with the chance that stands
  behind `beams`, each continues one of the living ones, drawn evenly. It is the one
  free number: 0.1 is the default and was not fitted; 0.25 (Alpaca) and 0.05
  (ShareGPT) were chosen to come near the figure"""
