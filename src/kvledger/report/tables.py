"""Plain tables for terminals, and how numbers are written in them."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["heading", "new_table", "percent", "render", "signed_points"]


def new_table(first: str, *columns: str, price: bool = False) -> Table:
    """Return an empty table: a name to the left, numbers to the right, and at most a sentence at the end."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="underline")
    table.add_column(first, no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    if price:
        table.add_column("price", justify="left", overflow="fold", ratio=1)
    return table


def heading(title: str, note: str = "") -> Text:
    """Return a heading with what the numbers below it are."""
    text = Text(f"\n{title}", style="bold")
    if note:
        text.append(f"\n{note}", style="not bold dim")
    return text


def percent(ratio: float) -> str:
    """Write a share as percent with one decimal.

    >>> percent(0.963)
    '96.3 %'
    """
    return f"{100 * ratio:.1f} %"


def signed_points(ratio: float) -> str:
    """Write a change of a share in points; what rounds to nothing is a dot.

    >>> signed_points(-0.1234), signed_points(0.0001)
    ('-12.3', '.')
    """
    points = 100 * ratio
    return "." if abs(points) < 0.05 else f"{points:+.1f}"


def render(renderable: RenderableType, *, width: int, color: bool) -> str:
    """Return what a console of that width would print."""
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
