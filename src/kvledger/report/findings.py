"""Findings as text: what was found, what gives memory back and how that is known, and what gets worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvledger.findings.finding import Finding, FindingsReport, Remedy, Trade
from kvledger.measure.figure import Figure
from kvledger.report.tables import heading
from kvledger.units import counted, format_bytes

__all__ = ["TITLE", "findings_sections", "format_figure"]

MOST_SHOWN = 6
TITLE = "What would give memory back"
_NOTE = "what gives back most first; `kvledger explain CODE` says more of each"
_NONE = "-"
_AS_GOOD_AS = 1.01
"""An interval that is no wider is shown by its least."""


def findings_sections(report: FindingsReport | None) -> Iterator[RenderableType]:
    """Yield the heading and the findings, one row a code; nothing where there are none."""
    if report is None or not (report.findings or report.unproved):
        return
    yield heading(TITLE, _NOTE)
    alike = _group(report.findings)
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="underline")
    table.add_column("code", no_wrap=True)
    table.add_column("gives back", justify="right", no_wrap=True)
    table.add_column("what, and how it is known", overflow="fold")
    for group in alike[:MOST_SHOWN]:
        table.add_row(group[0].code, _given(group[0]), Text("\n".join(_words(group))))
    if alike:
        yield table
    rest = len(alike) - MOST_SHOWN
    if rest > 0:
        yield Text(f"{counted(rest, 'more finding')} in --json: {', '.join(one[0].code for one in alike[MOST_SHOWN:])}")
    if report.unproved:
        yield Text(f"not proved, because it takes further replays: {', '.join(report.unproved)} (give --findings all)")


def format_figure(figure: Figure) -> str:
    """Write the number of a finding in its unit."""
    low, high = _write(figure.low, figure.unit), _write(figure.high, figure.unit)
    return low if low == high or figure.high <= _AS_GOOD_AS * figure.low else f"{low} to {high}"


def _group(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Gather findings of one code; the order is that of the first of each."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.code, []).append(finding)
    return list(groups.values())


def _words(group: Sequence[Finding]) -> Iterator[str]:
    first, *others = group
    yield f"{first.subject}: {first.sentence}"
    if first.best is not None:
        yield _remedy_words(first.best)
    further = [f"{one.setting} ({_back(one)})" for one in first.remedies if one is not first.best]
    if further:
        yield f"or {'; '.join(further)}"
    if others:
        yield f"also {', '.join(f'{one.subject} ({_given(one)})' for one in others)}"


def _remedy_words(remedy: Remedy) -> str:
    trade = "safe" if remedy.trade is Trade.SAFE else "trade-off"
    worse = f"; what gets worse: {remedy.worse}" if remedy.worse else ""
    gain = "" if remedy.is_for_memory else f" for {remedy.gain}"
    return f"{remedy.setting}{gain} ({remedy.returned.accuracy}, {trade}): {remedy.proof}{worse}"


def _given(finding: Finding) -> str:
    return _NONE if finding.best is None else _back(finding.best)


def _back(remedy: Remedy) -> str:
    return format_figure(remedy.returned) if remedy.is_for_memory else "no memory"


def _write(value: int, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else counted(value, unit.removesuffix("s"))
