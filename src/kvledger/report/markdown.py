"""A report as Markdown, for tickets and pull requests: the same headings, sentences and tables as in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvledger.report.tables import Heading, printable

__all__ = ["markdown"]


def markdown(report: RenderableType) -> str:
    """Return a report as Markdown; tables are whole, however wide."""
    return printable("\n\n".join(part for part in _parts(report) if part)) + "\n"


def _parts(item: RenderableType) -> Iterator[str]:
    match item:
        case Group():
            for part in item.renderables:
                yield from _parts(part)
        case Padding():
            yield from _parts(item.renderable)
        case Heading():
            yield f"### {_line(item.title)}"
            if item.note:
                yield f"_{_line(item.note)}_"
        case Table():
            yield "\n".join(_rows(item))
        case Text():
            yield _paragraph(item.plain, bold=item.style == "bold")
        case str():
            yield _paragraph(item, bold=False)
        case _:
            raise TypeError(f"{type(item).__name__} has no form in Markdown")


def _rows(table: Table) -> Iterator[str]:
    columns = table.columns
    yield _row([_cell(column.header) for column in columns])
    yield _row(["---:" if column.justify == "right" else "---" for column in columns])
    for cells in zip(*(list(column.cells) for column in columns), strict=True):
        yield _row([_cell(cell) for cell in cells])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: RenderableType) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return "<br>".join(_line(line) for line in text.strip().splitlines())


def _paragraph(text: str, *, bold: bool) -> str:
    """Keep line breaks, which carry meaning in a report."""
    lines = [_line(line) for line in text.strip().splitlines()]
    return "  \n".join(f"**{line}**" if bold else line for line in lines if line)


def _line(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
