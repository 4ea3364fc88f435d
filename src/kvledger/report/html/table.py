"""A table of the page: what the rows are, numbers with their raw values, and how each column is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.words import both

__all__ = ["Cell", "Column", "cell", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading; ``accuracy`` and ``formula`` say how its numbers are known (a phrase each).

    ``text`` stands to the left; ``prose`` is text that may wrap.
    """

    title: Markup
    accuracy: str = ""
    formula: str = ""
    text: bool = False
    prose: bool = False
    swatch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell; ``raw`` is what a copy as CSV holds."""

    content: Markup
    raw: str | int | float | None = None
    quiet: bool = False


def cell(content: str | Markup, raw: str | int | float | None = None, *, quiet: bool = False) -> Cell:
    """Return a cell."""
    return Cell(content=join(content), raw=raw, quiet=quiet)


def table(identifier: str, caption: Markup, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Markup:
    """Return a table whose first column names its rows, inside a region that scrolls when it is narrow."""
    head = element("tr", *(_heading(column) for column in columns))
    body = [
        element(
            "tr",
            element(
                "th", row[0].content, scope="row", data_raw=row[0].raw, class_="prose" if columns[0].prose else None
            ),
            *(_data(column, item) for column, item in zip(columns[1:], row[1:], strict=True)),
        )
        for row in rows
    ]
    grid = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", head),
        element("tbody", *body),
        id=identifier,
    )
    scroller = element("div", grid, class_="scroll", tabindex=0, role="region", aria_labelledby=f"{identifier}-title")
    return element("div", scroller, _how(columns), class_="table", data_table=identifier)


def _heading(column: Column) -> Markup:
    swatch = element("i", class_=f"swatch s-{column.swatch}") if column.swatch else None
    return element("th", swatch, column.title, scope="col", class_="text" if column.text or column.prose else None)


def _data(column: Column, item: Cell) -> Markup:
    kind = " ".join(
        name
        for name, on in (("text", column.text or column.prose), ("prose", column.prose), ("quiet", item.quiet))
        if on
    )
    return element("td", item.content, class_=kind or None, data_raw=item.raw)


def _how(columns: Sequence[Column]) -> Markup:
    known = [
        element(
            "li",
            element("b", column.title),
            " ",
            element("em", both(f"accuracy.{column.accuracy}"), class_=f"known {column.accuracy}"),
            " ",
            both(column.formula),
        )
        for column in columns
        if column.accuracy
    ]
    if not known:
        return Markup("")
    return element("details", element("summary", both("how")), element("ul", *known), class_="how")
