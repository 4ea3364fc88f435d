"""A table of the page: what the rows are, numbers with their raw values, and how each column is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.words import both, labels

__all__ = ["Cell", "Column", "cell", "table"]


_FEW_ROWS = 6
_MANY_COLUMNS = 6


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
    """Return a table whose first column names its rows, inside a box that scrolls when it is narrow.

    On a phone a table with prose, or of a few long rows, becomes a card for each row, in which every cell has the title
    of its column.
    """
    carded = any(column.prose for column in columns) or (len(rows) <= _FEW_ROWS and len(columns) >= _MANY_COLUMNS)
    head = element("tr", *(_heading(column) for column in columns), role="row" if carded else None)
    body = [_row(columns, row, carded=carded) for row in rows]
    group = "rowgroup" if carded else None
    grid = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", head, role=group),
        element("tbody", *body, role=group),
        id=identifier,
        role="table" if carded else None,
    )
    scroller = element("div", grid, class_="scroll", tabindex=0, role="group", aria_labelledby=f"{identifier}-title")
    kind = "table cards" if carded else "table"
    return element("div", scroller, _how(columns), class_=kind, data_table=identifier)


def _heading(column: Column) -> Markup:
    swatch = element("i", class_=f"swatch s-{column.swatch}") if column.swatch else None
    return element("th", swatch, column.title, scope="col", class_="text" if column.text or column.prose else None)


def _row(columns: Sequence[Column], row: Sequence[Cell], *, carded: bool) -> Markup:
    name = element(
        "th",
        row[0].content,
        scope="row",
        role="rowheader" if carded else None,
        data_raw=row[0].raw,
        class_="prose" if columns[0].prose else None,
    )
    cells = (_data(column, item, carded=carded) for column, item in zip(columns[1:], row[1:], strict=True))
    return element("tr", name, *cells, role="row" if carded else None)


def _data(column: Column, item: Cell, *, carded: bool) -> Markup:
    kind = " ".join(
        name
        for name, on in (("text", column.text or column.prose), ("prose", column.prose), ("quiet", item.quiet))
        if on
    )
    english, chinese = labels(column.title) if carded else (None, None)
    role = "cell" if carded else None
    return element(
        "td", item.content, class_=kind or None, role=role, data_raw=item.raw, data_en=english, data_zh=chinese
    )


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
