"""The pool at its fullest and most wasteful moments; the script draws the map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, count, duration, percent
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
    """Return the section of all maps, and why some policies have none; empty when no map was asked for."""
    drawn = [book for book in books if book.layouts]
    missing = [(book, kind) for book in books if (kind := _without_map(book))]
    if not drawn and not (missing and len(missing) == len(books)):
        return Markup("")
    reasons = [
        element("p", both(f"pool.none.{kind}", policy=name_of(book, books, names)), class_="note")
        for book, kind in missing
    ]
    parts = [*reasons, _pools(books, names)]
    if not drawn:
        return section("pool", both("pool.title"), None, *parts)
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
        *parts,
    )


def _without_map(book: Book) -> str | None:
    """Return the index of a policy whose pages are counted and not numbered, so that none has a place."""
    index = book.policy.policy.partition(":")[2].partition("@")[0] if book.policy is not None else ""
    return index if index in ("radix", "pools") else None


def _pools(books: Sequence[Book], names: Sequence[str]) -> Markup:
    """Return how full each of two pools was that are sized apart."""
    rows = [
        [
            cell(join(name_of(book, books, names), element("small", both(f"pools.{pool.name}"))), pool.name),
            cell(count(pool.tokens), pool.tokens),
            cell(amount(pool.tokens * pool.token_bytes, "bytes"), pool.tokens * pool.token_bytes),
            *(cell(percent(n), n) for n in (pool.mean_held_ratio, pool.saturated_held_ratio, pool.peak_held_ratio)),
            cell(count(pool.refused), pool.refused, quiet=not pool.refused),
        ]
        for book in books
        if book.policy is not None
        for pool in book.policy.pools or ()
    ]
    if not rows:
        return Markup("")
    columns = [
        Column(title=both("pools.pool"), text=True),
        *(Column(title=both(f"pools.{name}")) for name in ("tokens", "bytes")),
        *(
            Column(title=both(f"pools.{name}"), accuracy="derived", formula="formula.pools")
            for name in ("mean", "saturated", "peak")
        ),
        Column(title=both("pools.refused"), accuracy="derived", formula="formula.pools.refused"),
    ]
    title = element("h3", both("pools.title"), id="pools-table-title")
    return join(title, table("pools-table", both("pools.title"), columns, rows))


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
