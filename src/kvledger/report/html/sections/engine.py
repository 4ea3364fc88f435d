"""One sample of each engine in full: bounds, accuracy and formula of every account, and the same under reservation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, count, percent
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_measure import (
    SavedEngine,
    SavedReservation,
    SavedSheet,
    SavedSheetFigure,
    SavedSpan,
    SavedTables,
)
from kvledger.report.html.sections.balance import name_of
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import account_name, both, code, prose, told

__all__ = ["engine_section"]

_TRAFFIC = {
    "finished": "{:,.0f}",
    "finished_per_second": "{:.2f}",
    "prompt_tokens": "{:,.0f}",
    "cached_prompt_tokens": "{:,.0f}",
    "generated_tokens": "{:,.0f}",
    "preemptions": "{:,.0f}",
    "evicted_tokens": "{:,.0f}",
    "reserved_used_ratio": "{:.1%}",
    "hit_ratio": "{:.1%}",
    "mean_step_seconds": "{:.4f}",
}


def engine_section(books: Sequence[Book], names: Sequence[str]) -> Markup:
    """Return the section of all engines; empty when there is none."""
    parts = [
        _engine(f"engine-{number}", book.engine, name_of(book, books, names))
        for number, book in enumerate(books)
        if book.engine is not None
    ]
    if not parts:
        return Markup("")
    return section("engine", both("engine.title"), both("engine.note"), *parts)


def _engine(identifier: str, engine: SavedEngine, name: Markup) -> Markup:
    reading = engine.peak if engine.peak is not None and engine.peak.ledger is not None else engine.last
    sheet = reading.ledger
    parts = [
        subsection(f"{identifier}-sheet", name, None, _sheet(f"{identifier}-sheet", sheet) if sheet else Markup(""))
    ]
    if sheet and sheet.unattributed:
        parts.append(_causes(f"{identifier}-why", sheet))
    if engine.reservation is not None and engine.reservation.policies:
        parts.append(_reservation(f"{identifier}-reservation", engine.reservation))
    if engine.samples > 1:
        parts.append(_traffic(f"{identifier}-traffic", engine.traffic))
    return join(*parts)


def _sheet(identifier: str, sheet: SavedSheet) -> Markup:
    columns = [
        Column(title=both("engine.account"), text=True),
        Column(title=both("engine.amount")),
        Column(title=both("engine.share")),
        Column(title=both("engine.known"), text=True),
        Column(title=both("engine.from"), prose=True),
    ]
    figures = {figure.name: figure for figure in sheet.figures}
    rows = [
        _account(account, sheet, figures.get(str(account)))
        for account in Account
        if sheet.accounts.get(account) or str(account) in figures
    ]
    return table(identifier, both("engine.title"), columns, rows)


def _account(account: Account, sheet: SavedSheet, figure: SavedSheetFigure | None) -> list[Cell]:
    low = figure.low if figure else sheet.accounts.get(account, 0)
    high = (figure.high if figure else None) or low
    swatch = element("i", class_=f"swatch s-{account}")
    known = str(figure.accuracy) if figure else "derived"
    formula = prose(figure.formula) if figure else both(f"meaning.{account}")
    return [
        cell(join(swatch, account_name(account)), str(account)),
        cell(_between(amount(low, sheet.unit), amount(high, sheet.unit)), low),
        cell(_between(percent(low / sheet.capacity), percent(high / sheet.capacity)), low / sheet.capacity),
        cell(element("em", both(f"accuracy.{known}"), class_=f"known {known}"), known),
        cell(formula, figure.formula if figure else None),
    ]


def _between(low: str, high: str) -> Markup:
    return join(low) if low == high else both("between", low=low, high=high)


def _causes(identifier: str, sheet: SavedSheet) -> Markup:
    columns = [Column(title=both("engine.cause"), prose=True), Column(title=both("engine.amount"))]
    rows = [
        [cell(told(part.cause), part.cause), cell(amount(part.amount, sheet.unit), part.amount)]
        for part in sheet.unattributed
    ]
    return subsection(identifier, both("engine.why"), None, table(identifier, both("engine.why"), columns, rows))


def _reservation(identifier: str, found: SavedReservation) -> Markup:
    columns = [
        Column(title=both("balance.policy"), text=True),
        Column(title=both("engine.holds")),
        Column(title=both("engine.ofit")),
        Column(title=both("engine.admits")),
        Column(title=both("engine.known"), text=True),
        Column(title=both("engine.from"), prose=True),
    ]
    rows: list[Sequence[Cell]] = []
    for item in found.policies:
        low, high = min(item.used_ratio, default=0.0), max(item.used_ratio, default=0.0)
        rows.append(
            [
                cell(code(item.policy), item.policy),
                cell(_tokens(item.reserved_tokens), item.reserved_tokens.low),
                cell(_between(percent(low), percent(high)), low),
                cell(_span(item.admitted), item.admitted.low),
                cell(element("em", both(f"accuracy.{item.accuracy}"), class_=f"known {item.accuracy}"), item.accuracy),
                cell(prose(item.formula), item.formula),
            ]
        )
    rows += [] if found.block_tables is None else [_tables(found, found.block_tables)]
    notes = [element("p", told(text), class_="note") for text in found.missing]
    title = both("engine.reservation", count=count(found.running))
    grid = table(identifier, title, columns, rows)
    return subsection(identifier, title, both("engine.reservation.note"), grid, *notes)


def _tables(found: SavedReservation, tables: SavedTables) -> list[Cell]:
    """Return the row of the blocks that hold the same requests at the same sample."""
    low, high = min(tables.used_ratio, default=0.0), max(tables.used_ratio, default=0.0)
    return [
        cell(both("engine.tables"), "block tables"),
        cell(both("engine.tokens", low=count(tables.held_tokens)), tables.held_tokens),
        cell(_between(percent(low), percent(high)), low),
        cell(count(found.block_tables_admit), found.block_tables_admit),
        cell(element("em", both(f"accuracy.{tables.accuracy}"), class_=f"known {tables.accuracy}"), tables.accuracy),
        cell(prose(tables.formula), tables.formula),
    ]


def _tokens(span: SavedSpan) -> Markup:
    if span.high is None or span.high == span.low:
        return both("engine.tokens", low=count(span.low))
    return both("engine.tokens.between", low=count(span.low), high=count(span.high))


def _span(span: SavedSpan) -> Markup:
    if span.high is None:
        return both("engine.least", low=count(span.low))
    return _between(count(span.low), count(span.high))


def _traffic(identifier: str, traffic: Mapping[str, object]) -> Markup:
    facts = [
        element("div", element("dt", both(f"traffic.{name}")), element("dd", form.format(value)))
        for name, form in _TRAFFIC.items()
        if isinstance(value := traffic.get(name), (int, float))
    ]
    return subsection(identifier, both("engine.traffic"), None, element("dl", *facts, class_="facts-list"))
