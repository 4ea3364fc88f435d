"""What each policy did with the requests, and why: the three factors and the categories of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.report.html.book import Book
from kvledger.report.html.figures import count, duration, percent, total
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.saved import SavedLatency, SavedPolicy
from kvledger.report.html.sections.balance import name_of
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both

__all__ = ["requests_section"]


def requests_section(books: Sequence[Book], names: Sequence[str], seconds: str) -> Markup:
    """Return the section of all policies; ``seconds`` is how their times are known."""
    policies = [(book, book.policy) for book in books if book.policy is not None]
    if not policies:
        return Markup("")
    rows = {book.key: cell(name_of(book, books, names), book.name) for book, _ in policies}
    return section(
        "requests",
        element("span", both("requests.title"), id="requests-table-title"),
        None,
        _counts(policies, rows, seconds),
        _factors(policies, rows),
        _paper(policies, rows),
    )


_Policies = Sequence[tuple[Book, SavedPolicy]]


def _counts(policies: _Policies, rows: dict[str, Cell], seconds: str) -> Markup:
    columns = [
        Column(title=both("balance.policy"), text=True),
        *(
            Column(title=both(f"requests.{name}"), accuracy="derived", formula="formula.count")
            for name in ("finished", "rejected", "cut")
        ),
        Column(title=both("requests.refused"), accuracy="derived", formula="formula.refused"),
        Column(title=both("requests.preempted"), accuracy="derived", formula="formula.count"),
        *(
            Column(title=both(f"requests.{name}"), accuracy=seconds, formula="formula.seconds")
            for name in ("queue", "first", "end", "p99", "makespan")
        ),
    ]
    body = []
    for book, p in policies:
        counts = (p.finished, total(p.rejected), p.truncated, p.refused_while_free, p.preemptions)
        end = p.latency_seconds.get("end_to_end")
        times = (
            _mean(p.latency_seconds.get("queue")),
            _mean(p.latency_seconds.get("first_token")),
            _mean(end),
            end.p99 if end else None,
            p.makespan_seconds,
        )
        body.append(
            [
                rows[book.key],
                *(cell(count(n), n, quiet=n == 0) for n in counts),
                *(cell(duration(t), t) for t in times),
            ]
        )
    return table("requests-table", both("requests.title"), columns, body)


def _mean(latency: SavedLatency | None) -> float | None:
    return latency.mean if latency else None


def _factors(policies: _Policies, rows: dict[str, Cell]) -> Markup:
    names = ("length", "block", "usable", "product", "never")
    columns = [
        Column(title=both("balance.policy"), text=True),
        *(Column(title=both(f"why.{n}"), accuracy="derived", formula=f"formula.{n}") for n in names),
    ]
    body = []
    for book, p in policies:
        f = p.factors
        never = p.memo.get("saturated_reserved_never_used" if book.waiting else "reserved_never_used") or 0.0
        body.append(
            [
                rows[book.key],
                *(
                    cell(f"{f.get(n) or 0.0:.3f}", f.get(n))
                    for n in ("length_ratio", "block_efficiency", "usable_share")
                ),
                cell(percent(f.get("product") or 0.0), f.get("product")),
                cell(percent(never), never, quiet=never == 0),
            ]
        )
    return subsection(
        "why-table", both("why.title"), both("why.note"), table("why-table", both("why.title"), columns, body)
    )


def _paper(policies: _Policies, rows: dict[str, Cell]) -> Markup:
    fields = {
        "states": "token_states",
        "reservation": "reservation",
        "internal": "internal_fragmentation",
        "others": "external_and_others",
    }
    if any(p.paper_ratio.get("kept_for_reuse") for _, p in policies):
        fields["kept"] = "kept_for_reuse"
    columns = [
        Column(title=both("balance.policy"), text=True),
        *(Column(title=both(f"paper.{n}"), accuracy="derived", formula="formula.paper") for n in fields),
    ]
    body = [
        [rows[book.key], *(cell(percent(p.paper_ratio.get(f) or 0.0), p.paper_ratio.get(f)) for f in fields.values())]
        for book, p in policies
    ]
    grid = table("paper-table", both("paper.title"), columns, body)
    return subsection("paper-table", both("paper.title"), both("paper.note"), grid)
