"""What a log alone tells: the pool from the start-up lines, and how full it was from the periodic ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvledger.ledger import Account
from kvledger.report.html.figures import amount, count, fine_amount, percent
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_log import SavedLoad, SavedLog, SavedLogEngine, SavedQuantity
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import account_name, both, engine_name, prose, told, told_as_sentence

__all__ = ["log_answers", "log_section"]


def log_answers(result: SavedLog, name: str) -> Iterator[tuple[list[Markup], Markup, Markup | None]]:
    """Yield facts, answer and advice of each engine."""
    for engine in result.engines:
        version = f" {engine.version}" if engine.version else ""
        facts = [
            both(
                "log.of",
                engine=element("bdi", f"{engine_name(engine.engine)}{version}"),
                source=element("bdi", name),
            )
        ]
        if engine.model:
            facts.append(element("bdi", engine.model))
        if len(result.engines) > 1:
            facts.append(both("log.engine", index=count(engine.engine_index)))
        if engine.tokens is not None:
            facts.append(both("log.tokens", tokens=_number(engine.tokens)))
        if engine.load is None:
            yield facts, _pool_answer(engine), both("log.idle")
        else:
            verdict = engine.load.verdict
            yield facts, told_as_sentence(verdict.get("sentence", "")), told(verdict.get("advice", ""))


def log_section(run: int, result: SavedLog, *, name: str | None) -> Markup:
    """Return the section of one log."""
    parts = [part for engine in result.engines for part in _engine(f"{run}-{engine.engine_index}", engine, result)]
    return section(f"log-{run}", both("log.title"), both("log.note"), *parts, run=name)


def _pool_answer(engine: SavedLogEngine) -> Markup:
    """Say what the start-up lines alone tell."""
    if engine.errors:
        return both("log.errors", error=prose(engine.errors[0]))
    if engine.tokens is None:
        return both("log.slots")
    if engine.concurrency is not None and engine.max_model_len is not None:
        return both(
            "log.holds.longest",
            tokens=_number(engine.tokens),
            requests=_number(engine.concurrency),
            longest=_number(engine.max_model_len),
        )
    return both("log.holds", tokens=_number(engine.tokens))


def _engine(identifier: str, engine: SavedLogEngine, result: SavedLog) -> Iterator[Markup]:
    several = len(result.engines) > 1
    if engine.load is not None:
        yield _load(f"load-{identifier}", engine.load, engine if several else None)
    yield _pool(f"start-{identifier}", engine, several=several)
    told_here = [both("log.says", error=prose(error)) for error in engine.errors] + [
        told(note) for note in engine.notes
    ]
    if told_here:
        yield element("ul", *(element("li", one) for one in told_here), class_="notes")


def _load(identifier: str, load: SavedLoad, engine: SavedLogEngine | None) -> Markup:
    held, used = load.held_ratio, load.used_ratio
    columns = [
        Column(title=both("comparison.what"), text=True),
        Column(title=both("engine.amount")),
        Column(title=both("engine.known"), text=True),
        Column(title=both("engine.from"), prose=True),
    ]
    rows = [
        _row("running", count(load.running), load.running, "measured", "log.running"),
        _row("waiting", count(load.waiting), load.waiting, "measured", "log.running"),
        _row("held", _share(held), held[0], "measured", "log.rounded"),
    ]
    if used is not None:
        rows.append(_row("used", _share(used), used[0], "derived", "log.tails"))
    if load.reserved_ratio is not None:
        rows.append(_row("reserved", percent(load.reserved_ratio), load.reserved_ratio, "derived", "log.longest"))
    rows.append(_row("mean", percent(load.mean_held_ratio), load.mean_held_ratio, "measured", "log.lines"))
    if load.preemptions is not None:
        rows.append(_row("preemptions", count(load.preemptions), load.preemptions, "measured", "log.all"))
    title = both("log.load", lines=count(load.lines))
    where = both("log.engine", index=count(engine.engine_index)) if engine else None
    return subsection(
        identifier, join(title, ", ", where) if where else title, None, _bars(load), _legend(load),
        table(identifier, title, columns, rows),
    )  # fmt: skip


def _row(key: str, shown: str | Markup, raw: float | None, known: str, how: str) -> list[Cell]:
    return [
        cell(both(f"log.row.{key}"), key),
        cell(shown, raw),
        cell(element("em", both(f"accuracy.{known}"), class_=f"known {known}"), known),
        cell(both(how)),
    ]


def _share(span: tuple[float, float]) -> Markup:
    low, high = percent(span[0]), percent(span[1])
    return join(low) if low == high else both("between", low=low, high=high)


def _bars(load: SavedLoad) -> Markup:
    """Draw the pool at its busiest line, and what reservation would take of it."""
    sure = load.used_ratio[0] if load.used_ratio is not None else 0.0
    parts = [(Account.USED, sure), (Account.UNATTRIBUTED, load.held_ratio[1] - sure)]
    bars = [_bar(both("log.block"), parts, _share(load.held_ratio))]
    if load.reserved_ratio is not None:
        reserved = [(Account.RESERVED, min(1.0, load.reserved_ratio))]
        bars.append(_bar(both("log.reservation"), reserved, join(percent(load.reserved_ratio))))
    return element("div", *bars, class_="bars log", role="list")


def _bar(name: Markup, parts: Sequence[tuple[Account, float]], value: Markup) -> Markup:
    left, shapes = 0.0, []
    for account, ratio in parts:
        if ratio > 0:
            width = f"{100 * ratio:.3f}%"
            shapes.append(
                element("rect", x=f"{100 * left:.3f}%", y=0, width=width, height="100%", class_=f"s-{account}")
            )
            left += ratio
    drawn = element("svg", *shapes, class_="bar", aria_hidden="true", focusable="false")
    return element(
        "div",
        element("span", name, class_="name"),
        drawn,
        element("span", value, class_="of"),
        class_="row",
        role="listitem",
    )


def _legend(load: SavedLoad) -> Markup:
    entries = [(Account.USED, "log.sure")] if load.used_ratio is not None else []
    entries += [(Account.UNATTRIBUTED, "log.unsure"), (Account.FREE, "log.rest")]
    entries += [(Account.RESERVED, "log.longest")] if load.reserved_ratio is not None else []
    rows = [
        element("div", element("dt", element("i", class_=f"swatch s-{a}"), account_name(a)), element("dd", both(key)))
        for a, key in entries
    ]
    return element("dl", *rows, class_="legend")


def _pool(identifier: str, engine: SavedLogEngine, *, several: bool) -> Markup:
    columns = [
        Column(title=both("comparison.what"), text=True),
        Column(title=both("engine.amount")),
        Column(title=both("log.bounds")),
        Column(title=both("engine.known"), text=True),
        Column(title=both("engine.from"), prose=True),
    ]
    source = told(engine.tokens_source) if engine.tokens_source else None
    entries: list[tuple[str, SavedQuantity | None, Markup | None]] = [
        ("bytes", engine.size_bytes, both("log.least")),
        ("tokens", engine.tokens, source),
        ("blocks", engine.blocks, None),
        ("block", engine.block_tokens, None),
        ("longest", engine.max_model_len, None),
        ("concurrency", engine.concurrency, both("log.none.shared")),
    ]
    rows = [_quantity(key, one, note) for key, one, note in entries if one is not None]
    title = both("log.start")
    where = both("log.engine", index=count(engine.engine_index)) if several else None
    if not rows:
        return element("p", both("log.untold"), class_="note")
    return subsection(
        identifier, join(title, ", ", where) if where else title, None, table(identifier, title, columns, rows)
    )


def _quantity(key: str, one: SavedQuantity, note: Markup | None) -> list[Cell]:
    bounds, shown = cell("–", quiet=True), _written(one.value)
    if key == "bytes":
        shown = amount(one.value, "bytes")
    if one.low != one.high:
        low, high = (fine_amount(one.low), fine_amount(one.high)) if key == "bytes" else _span(one)
        bounds = cell(both("between", low=low, high=high))
    return [
        cell(both(f"log.row.{key}"), key),
        cell(shown, one.value),
        bounds,
        cell(element("em", both(f"accuracy.{one.accuracy}"), class_=f"known {one.accuracy}"), str(one.accuracy)),
        cell(note or both("log.printed")),
    ]


def _span(one: SavedQuantity) -> tuple[str, str]:
    return _written(one.low), _written(one.high)


def _number(one: SavedQuantity) -> str:
    return _written(one.value)


def _written(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
