"""Two runs side by side: what was changed, and what that did to every account and to the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, count, duration, percent, points, total
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.reading import Run
from kvledger.report.html.saved import SavedLatency, SavedReplay
from kvledger.report.html.sections.balance import bar
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import account_name, both, code

__all__ = ["Pair", "compare_section", "comparison_sentence", "pair_books"]

_MOST_PAIRS = 12
_SETTINGS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "restart_every_seconds")
_POOL = ("model", "bytes_per_token", "memory_bytes", "capacity_tokens", "num_blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same policy, or the same engine, in both runs."""

    before: Book
    after: Book


def pair_books(books: Sequence[Book]) -> list[Pair]:
    """Pair the books of the first run with those of the second: by name, else in order where each has only one."""
    first, second = ([book for book in books if book.run == run] for run in (0, 1))
    by_name = {book.name: book for book in second}
    pairs = [Pair(before=book, after=by_name[book.name]) for book in first if book.name in by_name]
    if not pairs and len(first) == len(second) == 1:
        return [Pair(before=first[0], after=second[0])]
    return pairs


def comparison_sentence(pairs: Sequence[Pair]) -> Markup:
    """Say in words what changed most: the pair whose use of the pool changed by most."""
    if not pairs:
        return both("comparison.nothing")
    pair = max(pairs, key=lambda p: abs(p.after.ratio[Account.USED] - p.before.ratio[Account.USED]))
    before, after = pair.before, pair.after
    key = "comparison.sentence" if before.running is not None and after.running is not None else "comparison.short"
    name = before.name if before.name == after.name else f"{before.name} → {after.name}"
    return both(
        key,
        policy=code(name),
        before=percent(before.ratio[Account.USED]),
        after=percent(after.ratio[Account.USED]),
        ran=f"{before.running or 0:.1f}",
        runs=f"{after.running or 0:.1f}",
    )


def compare_section(runs: Sequence[Run], books: Sequence[Book]) -> Markup:
    """Return the section of two runs; empty for one."""
    if len(runs) != 2:
        return Markup("")
    pairs = pair_books(books)
    parts = [_pair(f"pair-{number}", pair, runs) for number, pair in enumerate(pairs[:_MOST_PAIRS])]
    return section("comparison", both("comparison.title"), both("comparison.note"), _changed(runs), *parts)


def _changed(runs: Sequence[Run]) -> Markup:
    rows = [
        [cell(code(name), name), cell(before, before), cell(after, after)] for name, before, after in _settings(runs)
    ]
    if not rows:
        return element("p", both("comparison.same"), class_="sentence")
    columns = [
        Column(title=both("comparison.setting"), text=True),
        Column(title=both("comparison.before"), text=True),
        Column(title=both("comparison.after"), text=True),
    ]
    title = both("comparison.changed")
    return subsection("changed", title, None, table("changed", title, columns, rows))


def _settings(runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """Yield every setting that differs, as text; two measurements have none that are known."""
    first, second = (run.result for run in runs)
    if not isinstance(first, SavedReplay) or not isinstance(second, SavedReplay):
        return
    clock = [r.settings.get("clock") for r in (first, second)]
    names = [c.get("name") if isinstance(c, dict) else None for c in clock]
    rows: list[tuple[str, object, object]] = [
        ("trace", first.trace.source, second.trace.source),
        ("requests", first.trace.requests, second.trace.requests),
        *((name, first.pool.get(name), second.pool.get(name)) for name in _POOL),
        *((name, first.settings.get(name), second.settings.get(name)) for name in _SETTINGS),
        ("clock", names[0], names[1]),
        ("kvledger", first.kvledger_version, second.kvledger_version),
    ]
    for name, before, after in rows:
        if before != after:
            yield name, _written(before), _written(after)


def _written(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,}"
    return "–" if value is None else str(value)[:120]


def _pair(identifier: str, pair: Pair, runs: Sequence[Run]) -> Markup:
    bars = [
        element(
            "div", element("span", both(f"comparison.{when}"), class_="name"), bar(book), class_="row", role="listitem"
        )
        for when, book in (("before", pair.before), ("after", pair.after))
    ]
    columns = [
        Column(title=both("comparison.what"), text=True),
        Column(title=_run_title("before", runs[0].name), accuracy="derived", formula="formula.account"),
        Column(title=_run_title("after", runs[1].name), accuracy="derived", formula="formula.account"),
        Column(title=both("comparison.change"), accuracy="derived", formula="formula.change"),
    ]
    rows = [*_accounts(pair), *_counts(pair)]
    grid = table(identifier, both("comparison.title"), columns, rows)
    return subsection(
        identifier, code(pair.after.name), None, element("div", *bars, class_="bars pair", role="list"), grid
    )


def _run_title(when: str, name: str) -> Markup:
    return join(both(f"comparison.{when}"), element("small", element("bdi", name), class_="run"))


def _accounts(pair: Pair) -> Iterator[list[Cell]]:
    before, after = pair.before, pair.after
    for account in Account:
        one, other = before.ratio[account], after.ratio[account]
        if not one and not other:
            continue
        name = join(element("i", class_=f"swatch s-{account}"), account_name(account))
        yield [
            cell(name, str(account)),
            cell(_share(one, before), one),
            cell(_share(other, after), other),
            cell(join(points(other - one), element("small", _change_of_amount(account, pair))), other - one),
        ]


def _share(ratio: float, book: Book) -> Markup:
    return join(percent(ratio), element("small", amount(ratio * book.capacity, book.unit)))


def _change_of_amount(account: Account, pair: Pair) -> str:
    if pair.before.unit != pair.after.unit:
        return "–"
    change = pair.after.ratio[account] * pair.after.capacity - pair.before.ratio[account] * pair.before.capacity
    sign = "+" if change > 0 else "\u2212" if change < 0 else ""
    return sign + amount(abs(change), pair.after.unit)


def _counts(pair: Pair) -> Iterator[list[Cell]]:
    before, after = pair.before, pair.after
    rows: list[tuple[str, float | None, float | None, Callable[[float | None], str]]] = [
        ("balance.running", before.running, after.running, _decimal)
    ]
    if before.policy and after.policy:
        p, q = before.policy, after.policy
        rows += [
            ("requests.finished", p.finished, q.finished, count),
            ("requests.rejected", total(p.rejected), total(q.rejected), count),
            ("requests.cut", p.truncated, q.truncated, count),
            ("requests.preempted", p.preemptions, q.preemptions, count),
        ]
        for name, key in (("queue", "queue"), ("first", "first_token"), ("end", "end_to_end")):
            means = [_mean(x.latency_seconds.get(key)) for x in (p, q)]
            rows.append((f"requests.{name}", means[0], means[1], duration))
        rows.append(("requests.makespan", p.makespan_seconds, q.makespan_seconds, duration))
    for name, one, other, form in rows:
        modelled = element("em", both("accuracy.modelled"), class_="known modelled") if form is duration else None
        yield [
            cell(join(both(name), " ", modelled)),
            cell(form(one), one),
            cell(form(other), other),
            cell(_times(one, other)),
        ]


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _mean(latency: SavedLatency | None) -> float | None:
    return latency.mean if latency else None


def _times(before: float | None, after: float | None) -> str:
    """Say by how much a number changed, as a share of what it was."""
    if before is None or after is None or before == after:
        return "·" if before == after and before is not None else "–"
    if not before:
        return "–"
    change = 100 * (after / before - 1)
    return f"{'+' if change > 0 else chr(0x2212)}{abs(change):.1f}\u202f%"
