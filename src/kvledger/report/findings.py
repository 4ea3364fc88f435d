"""Findings as text: what was found, what gives memory back and how that is known, and what gets worse."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvledger.findings.finding import FindingsReport, Remedy
from kvledger.measure.figure import Figure
from kvledger.report.tables import heading
from kvledger.units import counted, format_bytes

__all__ = ["findings_sections", "format_figure", "unproved_words"]

MOST_SHOWN = 5
TITLE = "What would give memory back"
NOTE = "what gives back most first; `kvledger explain CODE` says more of each"


def findings_sections(report: FindingsReport | None) -> Iterator[RenderableType]:
    """Yield the heading and the findings; nothing where there are none."""
    if report is None or not (report.findings or report.unproved):
        return
    yield heading(TITLE, NOTE)
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report.findings[:MOST_SHOWN]:
        table.add_row(finding.code, Text(f"{finding.subject}: {finding.sentence}"))
        if finding.best is not None:
            table.add_row("", Text(remedy_words(finding.best)))
        others = [short_words(remedy) for remedy in finding.remedies if remedy is not finding.best]
        if others:
            table.add_row("", Text(f"or {'; '.join(others)}"))
    if report.findings:
        yield table
    rest = len(report.findings) - MOST_SHOWN
    if rest > 0:
        yield Text(f"{counted(rest, 'more finding')} in --json")
    if report.unproved:
        yield Text(unproved_words(report))


def remedy_words(remedy: Remedy) -> str:
    """Say what a change gives back, by which proof, and what gets worse."""
    returned = remedy.returned
    given = f"gives back {format_figure(returned)} ({returned.accuracy})" if returned.high else "gives back nothing"
    worse = f"; what gets worse: {remedy.worse}" if remedy.worse else "; safe: nothing gets worse"
    return f"{remedy.setting} {given}: {remedy.proof}{worse}"


def short_words(remedy: Remedy) -> str:
    """Say in a few words what a change gives back."""
    return f"{remedy.setting}: {format_figure(remedy.returned)}"


def unproved_words(report: FindingsReport) -> str:
    """Say what has the signs, and was not replayed."""
    return f"not proved, because it takes further replays: {', '.join(report.unproved)} (give --findings all)"


def format_figure(figure: Figure) -> str:
    """Write the number of a finding in its unit."""
    return _write(figure.low, figure.unit) if figure.is_exact else _between(figure)


def _between(figure: Figure) -> str:
    return f"{_write(figure.low, figure.unit)} to {_write(figure.high, figure.unit)}"


def _write(value: int, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else counted(value, unit.removesuffix("s"))
