"""The places where the script draws: the pool over time, and its map."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.report.html.book import Book
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.words import both

__all__ = ["time_section"]


def time_section(books: Sequence[Book], seconds: str) -> Markup:
    """Return the section over time; empty when no book has a timeline. ``seconds`` is how time is known."""
    drawn = [book for book in books if book.timeline]
    if not drawn:
        return Markup("")
    joined = max(book.timeline.joined for book in drawn if book.timeline)
    before = max(
        len(book.policy.timeline if book.policy else book.engine.timeline if book.engine else ()) for book in drawn
    )
    reduced = (
        element("p", both("time.reduced", before=f"{before:,}", joined=str(joined)), class_="note")
        if joined > 1
        else Markup("")
    )
    known = []
    if any(book.policy for book in drawn):
        known.append(both("time.known", seconds=element("em", both(f"accuracy.{seconds}"), class_=f"known {seconds}")))
    if any(book.engine for book in drawn):
        known.append(both("time.sampled"))
    return section(
        "time",
        both("time.title"),
        both("time.note"),
        element("noscript", element("p", both("static"), class_="note")),
        element("div", id="charts", hidden=True),
        element("p", *known, class_="note"),
        reduced,
    )
