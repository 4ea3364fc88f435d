"""What sharing blocks among several answers to one prompt saves, beside the figure of the PagedAttention paper."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.report.html.figures import amount, count, percent
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_sharing import SavedSharing, SavedSharingRow
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, code

__all__ = ["sharing_answer", "sharing_facts", "sharing_section"]


def sharing_facts(result: SavedSharing) -> list[Markup]:
    """Return what was replayed, as the facts above the answer."""
    return [
        both("sharing.requests", count=count(result.requests)),
        element("bdi", result.model),
        both("question.pool", pool=amount(result.memory_bytes, "bytes")),
        both("sharing.block", tokens=count(result.block_size)),
    ]


def sharing_answer(result: SavedSharing) -> Markup:
    """Say in words what sharing saves most, and how many more answers run because of it."""
    answers = max(result.rows[0].block_saving_ratio, key=int)
    row = max(result.rows, key=lambda one: one.block_saving_ratio[answers])
    return both(
        "sharing.answer",
        answers=answers,
        how=both("sharing.samples" if row.beam_turnover is None else "sharing.beams"),
        workload=code(row.workload),
        saved=percent(row.block_saving_ratio[answers]),
        forked=f"{row.running_forked[answers]:,.0f}",
        alone=f"{row.running_alone[answers]:,.0f}",
    )


def sharing_section(run: int, result: SavedSharing, *, name: str | None) -> Markup:
    """Return the section of one result."""
    answers = list(result.rows[0].block_saving_ratio)
    return section(
        f"sharing-{run}",
        both("sharing.title"),
        both("sharing.note"),
        _savings(run, result.rows, answers),
        _running(run, result.rows, answers),
        element("p", both("sharing.modelled"), class_="note"),
        run=name,
    )


def _savings(run: int, rows: Sequence[SavedSharingRow], answers: Sequence[str]) -> Markup:
    columns = [
        Column(title=both("sharing.workload"), text=True),
        Column(title=both("sharing.how"), text=True),
        Column(title=both("sharing.picture"), text=True),
        *(
            Column(title=both("sharing.answers", count=n), accuracy="derived", formula="formula.saving")
            for n in answers
        ),
        Column(title=both("sharing.paper"), accuracy="measured", formula="formula.published"),
    ]
    top = max(1e-9, *(n for row in rows for n in (*row.block_saving_ratio.values(), row.published_high_ratio)))
    body = [
        [
            *_name(row),
            cell(_picture(row, top)),
            *(cell(percent(row.block_saving_ratio[n]), row.block_saving_ratio[n]) for n in answers),
            cell(
                both("between", low=percent(row.published_low_ratio), high=percent(row.published_high_ratio)),
                row.published_high_ratio,
            ),
        ]
        for row in rows
    ]
    identifier = f"saving-{run}-table"
    grid = table(identifier, both("sharing.saved"), columns, body)
    return subsection(identifier, both("sharing.saved"), both("sharing.saved.note"), grid)


def _picture(row: SavedSharingRow, top: float) -> Markup:
    """Draw the span of the paper as a band, and each number of answers as a mark on it."""
    scale = 96 / top
    left = scale * row.published_low_ratio
    width = max(0.5, scale * row.published_high_ratio - left)
    band = element("rect", x=f"{left:.1f}%", y="20%", width=f"{width:.1f}%", height="60%", class_="band")
    marks = [
        element("circle", cx=f"{scale * saved:.1f}%", cy="50%", r=2 + 0.5 * number, class_="dot")
        for number, saved in enumerate(row.block_saving_ratio.values(), start=1)
    ]
    axis = element("rect", x=0, y="48%", width="100%", height="4%", class_="axis")
    return element("svg", axis, band, *marks, class_="strip", aria_hidden="true", focusable="false")


def _running(run: int, rows: Sequence[SavedSharingRow], answers: Sequence[str]) -> Markup:
    columns = [
        Column(title=both("sharing.workload"), text=True),
        Column(title=both("sharing.how"), text=True),
        *(
            Column(
                title=join(both("sharing.answers", count=n), element("small", both(f"sharing.{kind}"), class_="run")),
                accuracy="derived",
                formula="formula.running",
            )
            for n in answers
            for kind in ("forked", "alone")
        ),
    ]
    body = []
    for row in rows:
        pairs = [(row.running_forked[n], row.running_alone[n]) for n in answers]
        numbers = [
            cell(element("b", f"{value:,.1f}") if number == 0 else f"{value:,.1f}", value)
            for pair in pairs
            for number, value in enumerate(pair)
        ]
        body.append([*_name(row), *numbers])
    identifier = f"alone-{run}-table"
    grid = table(identifier, both("sharing.running"), columns, body)
    return subsection(identifier, both("sharing.running"), both("sharing.running.note"), grid)


def _name(row: SavedSharingRow) -> list[Cell]:
    how = (
        both("sharing.samples")
        if row.beam_turnover is None
        else join(both("sharing.beams"), f" ({row.beam_turnover:g})")
    )
    return [
        cell(code(row.workload), row.workload),
        cell(how, "samples" if row.beam_turnover is None else f"beams {row.beam_turnover:g}"),
    ]
