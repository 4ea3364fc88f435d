"""The balance sheet: every book as one bar, then every account with its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, percent, share_cell
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import account_name, both, code, told

__all__ = ["account_bar", "balance_section", "bar", "name_of", "shown_accounts"]

_ALWAYS = (Account.USED, Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.FREE)


def balance_section(books: Sequence[Book], names: Sequence[str]) -> Markup:
    """Return the section of all books; ``names`` are those of the runs."""
    accounts = shown_accounts(books)
    return section(
        "balance",
        both("balance.title"),
        both(_when(books)),
        element("div", *(_row(book, books, names) for book in books), class_="bars", role="list"),
        _legend(accounts),
        _meanings(books),
        _table(books, names, accounts),
    )


def shown_accounts(books: Sequence[Book]) -> tuple[Account, ...]:
    """Return the accounts that any book has, and those that are always shown."""
    always = _ALWAYS if any(book.policy or book.side for book in books) else (Account.USED, Account.FREE)
    return tuple(a for a in Account if a in always or any(book.ratio[a] for book in books))


def name_of(book: Book, books: Sequence[Book], names: Sequence[str]) -> Markup:
    """Return what a book is called beside the others: of several runs, with the run."""
    star = "*" if not book.waiting and any(other.waiting for other in books) else ""
    run = element("small", element("bdi", names[book.run]), class_="run") if len(names) > 1 else None
    return join(code(book.name), star, run)


def bar(book: Book) -> Markup:
    """Return the pool of a book as one bar of accounts."""
    return account_bar(book.ratio)


def account_bar(ratio: Mapping[Account, float]) -> Markup:
    """Return a pool as one bar of accounts; without any, the bar is empty."""
    parts, left = [], 0.0
    for account in Account:
        share = ratio.get(account, 0.0)
        if share <= 0:
            continue
        title = element("title", f"{account} {percent(share)}")
        shape = element(
            "rect", x=f"{100 * left:.3f}%", y=0, width=f"{100 * share:.3f}%", height="100%", class_=f"s-{account}"
        )
        parts.append(Markup(shape.replace("</rect>", f"{title}</rect>")))
        left += share
    told = ", ".join(f"{a} {percent(ratio[a])}" for a in Account if ratio.get(a))
    return element("svg", *parts, class_="bar", role="img", aria_label=told or "–", focusable="false")


def _when(books: Sequence[Book]) -> str:
    if any(book.engine for book in books):
        return "balance.window"
    waited = [book.waiting for book in books]
    return "balance.waiting" if all(waited) else "balance.mixed" if any(waited) else "balance.busy"


def _row(book: Book, books: Sequence[Book], names: Sequence[str]) -> Markup:
    share = percent(book.ratio[Account.USED]) if book.ran else "–"
    used = join(element("b", share), " ", account_name(Account.USED))
    running = (
        join(element("b", f"{book.running:.1f}"), " ", both("balance.running")) if book.running is not None else ""
    )
    return element(
        "div",
        element("span", name_of(book, books, names), class_="name"),
        bar(book),
        element("span", used, class_="of"),
        element("span", running, class_="at"),
        class_="row",
        role="listitem",
    )


def _legend(accounts: Sequence[Account]) -> Markup:
    rows = [
        element(
            "div",
            element("dt", element("i", class_=f"swatch s-{a}"), account_name(a)),
            element("dd", both(f"meaning.{a}")),
        )
        for a in accounts
    ]
    return element("dl", *rows, class_="legend")


def _meanings(books: Sequence[Book]) -> Markup:
    """Return what each policy does; every name once."""
    meanings = {book.name: book.meaning for book in books if book.meaning}
    if not meanings:
        return Markup("")
    rows = [element("div", element("dt", code(name)), element("dd", told(text))) for name, text in meanings.items()]
    return element(
        "details", element("summary", both("balance.meanings")), element("dl", *rows, class_="facts-list"), class_="how"
    )


def _table(books: Sequence[Book], names: Sequence[str], accounts: Sequence[Account]) -> Markup:
    kind = "engine" if any(book.engine for book in books) else "way" if all(book.side for book in books) else "policy"
    known, formula = ("measured", "formula.tensors") if kind == "way" else ("derived", "formula.account")
    columns = [
        Column(title=both(f"balance.{kind}"), text=True),
        *(Column(title=account_name(a), accuracy=known, formula=formula, swatch=str(a)) for a in accounts),
        Column(title=both("balance.running"), accuracy=known, formula="formula.running"),
        Column(
            title=both("balance.pool"), accuracy=known, formula="formula.given" if kind == "way" else "formula.pool"
        ),
    ]
    rows: list[list[Cell]] = []
    for book in books:
        shares = [
            cell(share_cell(book.ratio[a], book.capacity, book.unit), round(book.ratio[a] * book.capacity))
            if book.ran
            else cell("–")
            for a in accounts
        ]
        running = cell("–") if book.running is None else cell(f"{book.running:.1f}", book.running)
        pool = cell(amount(book.capacity, book.unit), book.capacity)
        rows.append([cell(name_of(book, books, names), book.name), *shares, running, pool])
    title = element("h3", both("balance.table"), id="balance-table-title")
    return join(
        title,
        table("balance-table", both("balance.table"), columns, rows),
        element("p", both("balance.sum"), class_="note"),
    )
