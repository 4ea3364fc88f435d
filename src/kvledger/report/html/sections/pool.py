"""The pool at its fullest and most wasteful moments; the script draws the map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, count, duration
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved import SavedLayout
from kvledger.report.html.sections.balance import name_of
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both

__all__ = ["Holes", "find_holes", "pool_section"]

_HELD = (Account.USED, Account.RESERVED, Account.INTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holes:
    """How many runs of memory nobody holds, and the largest of them."""

    count: int
    largest_bytes: int


def find_holes(layout: SavedLayout) -> Holes | None:
    """Count the holes between pieces; None where places mean nothing, or pieces were joined over holes."""
    pieces = layout.pieces
    if pieces is None or pieces.joined > 1 or layout.order not in ("addresses", "segments"):
        return None
    capacity = sum(layout.accounts_bytes.values())
    starts, ends = [*pieces.start_bytes, capacity], [0, *pieces.end_bytes]
    sizes = [start - end for start, end in zip(starts, ends, strict=True) if start > end]
    return Holes(count=len(sizes), largest_bytes=max(sizes, default=0))


def pool_section(books: Sequence[Book], names: Sequence[str]) -> Markup:
    """Return the section of all maps; empty when no book has one."""
    drawn = [book for book in books if book.layouts]
    if not drawn:
        return Markup("")
    columns = [
        Column(title=both("balance.policy"), text=True),
        Column(title=both("pool.moment"), text=True),
        *(
            Column(title=both(f"pool.{name}"), accuracy="derived", formula="formula.instant")
            for name in ("at", "running", "waiting", "used", "held", "free")
        ),
        Column(title=both("pool.holes"), accuracy="derived", formula="formula.holes"),
        Column(title=both("pool.largest"), accuracy="derived", formula="formula.holes"),
        Column(title=both("pool.asked"), accuracy="derived", formula="formula.instant"),
    ]
    rows = [_row(book, books, names, layout) for book in drawn for layout in book.layouts]
    title = element("h3", both("pool.table"), id="pool-table-title")
    return section(
        "pool",
        both("pool.title"),
        both("pool.note.blocks" if all(one.blocks for book in drawn for one in book.layouts) else "pool.note"),
        element("div", id="map", hidden=True),
        join(title, table("pool-table", both("pool.table"), columns, rows)),
    )


def _row(book: Book, books: Sequence[Book], names: Sequence[str], layout: SavedLayout) -> list[Cell]:
    accounts = layout.accounts_bytes
    held = sum(accounts.get(a, 0) for a in _HELD)
    free = sum(accounts.values()) - held
    holes = find_holes(layout)
    return [
        cell(name_of(book, books, names), book.name),
        cell(both(f"pool.moment.{layout.moment}"), layout.moment),
        cell(duration(layout.time_seconds), layout.time_seconds),
        cell(count(layout.running), layout.running),
        cell(count(layout.waiting), layout.waiting, quiet=not layout.waiting),
        *(cell(amount(n, "bytes"), n) for n in (accounts.get(Account.USED, 0), held, free)),
        cell(count(holes.count), holes.count) if holes else cell("–", quiet=True),
        cell(amount(holes.largest_bytes, "bytes"), holes.largest_bytes) if holes else cell("–", quiet=True),
        cell(amount(layout.asked_bytes, "bytes") if layout.asked_bytes else "–", layout.asked_bytes),
    ]
