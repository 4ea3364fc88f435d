"""Plain tables for terminals, and how numbers are written in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from kvledger.report.chips import paint_accounts
from kvledger.units import percent

__all__ = ["Heading", "heading", "new_table", "percent", "printable", "render", "signed_points"]


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[KMGTP]i)?B\b|m?s\b)")
_STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""What would steer a terminal: names and labels of servers come from outside."""
_BOUND = "\ue000"
"""Stands for such a blank while lines are broken: of the private use area, and one column wide."""
_GAP = 2
_LEAST_SENTENCE = 24
_LEAST_NAME = 12


def new_table(first: str, *columns: str | Text, price: bool = False) -> Table:
    """Return an empty table: a name to the left, numbers to the right, and at most a sentence at the end.

    No number and no word of a heading is ever broken: headings wrap between words, and where the columns do not fit
    side by side they are printed as several tables, each with the names.
    """
    table = _WholeCells(box=None, pad_edge=False, padding=(0, 1), header_style="underline")
    table.add_column(first, no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    if price:
        table.add_column("price", justify="left", overflow="fold", ratio=1)
    return table


class _WholeCells(Table):
    """A table whose numbers stay on one line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names, *others = self.columns
        if not others or self.__rich_measure__(console, options.update(width=10**6)).maximum <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        sized = [(column, *_widths(column, console, options)) for column in others]
        most = max(_LEAST_NAME, options.max_width // 2, options.max_width - sum(least + _GAP for _, least, _ in sized))
        name_width = names.width or min(_widths(names, console, options)[1], most)
        room = options.max_width - name_width
        for number, group in enumerate(_groups(sized, room)):
            if number:
                yield Text("")
            yield self._part(names, name_width, group, room)

    def _part(self, names: Column, name_width: int, group: Sequence[tuple[Column, int, int]], room: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style=self.header_style)
        table.add_column(names.header, no_wrap=True, overflow="ellipsis", width=name_width)
        spare = room - sum(least + _GAP for _, least, _ in group)
        for column, least, natural in group:
            more = max(0, min(spare, natural - least))
            spare -= more
            table.add_column(column.header, justify=column.justify, overflow="fold", width=least + more)
        for row in zip(names.cells, *(column.cells for column, _, _ in group), strict=True):
            table.add_row(*row)
        return table


def _widths(column: Column, console: Console, options: ConsoleOptions) -> tuple[int, int]:
    """Return the least width of a column, which breaks only its heading or its sentences, and that of one line."""
    wide = options.update(width=10**6)
    cells = [Measurement.get(console, wide, cell).maximum for cell in column.cells]
    header = Measurement.get(console, wide, column.header)
    natural = max(header.maximum, *cells, 0)
    is_sentence = column.ratio is not None
    least = min(natural, _LEAST_SENTENCE) if is_sentence else max(header.minimum, *cells, 0)
    return least, natural


def _groups(columns: Sequence[tuple[Column, int, int]], room: int) -> list[Sequence[tuple[Column, int, int]]]:
    """Divide columns into as few runs of about the same number as fit the room."""
    for parts in range(1, len(columns)):
        edges = [len(columns) * part // parts for part in range(parts + 1)]
        groups = [columns[start:end] for start, end in pairwise(edges)]
        if all(sum(least + _GAP for _, least, _ in group) <= room for group in groups):
            return groups
    return [[column] for column in columns]


class Heading(Text):
    """A heading with what the numbers below it are."""

    def __init__(self, title: str, note: str = "") -> None:
        super().__init__(f"\n{title}", style="bold")
        self.title, self.note = title, note
        if note:
            self.append(f"\n{note}", style="not bold dim")


def heading(title: str, note: str = "") -> Heading:
    """Return a heading with what the numbers below it are."""
    return Heading(title, note)


def signed_points(ratio: float) -> str:
    """Write a change of a share in points; what rounds to nothing is a dot.

    >>> signed_points(-0.1234), signed_points(0.0001)
    ('-12.3', '.')
    """
    points = 100 * ratio
    return "." if abs(points) < 0.05 else f"{points:+.1f}"


def printable(text: str) -> str:
    r"""Replace what would steer a terminal.

    >>> printable("a\x1b[31mb")
    'a?[31mb'
    """
    return _STEERING.sub("?", text)


def render(renderable: RenderableType, *, width: int, color: bool) -> str:
    """Return what a console of that width would print."""
    stream = StringIO()
    console = _WholeAmounts(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False)
    paint_accounts(console, os.environ)
    console.print(renderable)
    printed = stream.getvalue().replace(_BOUND, " ")
    return "\n".join(line.rstrip() for line in printed.splitlines()) + "\n"


class _WholeAmounts(Console):
    """A console that ends no line between a number and its unit."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as any console does, the blank before a unit taken for a letter, and what steers as `?`."""
        shown = self.render_str(renderable) if isinstance(renderable, str) else renderable
        if isinstance(shown, Text) and _BEFORE_UNIT.search(shown.plain):
            shown = shown.copy()
            shown.plain = _BEFORE_UNIT.sub(_BOUND, shown.plain)
        for segment in super().render(shown, options):
            steers = not segment.control and _STEERING.search(segment.text)
            yield Segment(printable(segment.text), segment.style) if steers else segment
