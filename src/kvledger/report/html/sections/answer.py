"""The answer in words, and the question it answers."""

from __future__ import annotations

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, count, duration, percent
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.reading import Run
from kvledger.report.html.saved import SavedReplay
from kvledger.report.html.words import both, code, told

__all__ = ["answer_section"]


def answer_section(run: Run, books: list[Book]) -> Markup:
    """Return the top of the page."""
    parts = _replay(run, run.result, books) if isinstance(run.result, SavedReplay) else _measure(run, books)
    return element("section", *parts, id="answer", aria_label="answer")


def _replay(run: Run, result: SavedReplay, books: list[Book]) -> list[Markup]:
    pool = result.pool
    memory = pool.get("memory_bytes")
    size = amount(memory if isinstance(memory, int) else books[0].capacity, "bytes")
    facts = [
        both(
            "question.requests", count=count(_integer(result.trace.get("requests"))), source=_name(_source(run, result))
        ),
        both("question.pool", pool=size),
        both("question.token", model=_name(str(pool.get("model"))), bytes=count(_integer(pool.get("bytes_per_token")))),
        both("question.length", length=count(_integer(result.settings.get("max_model_len")))),
    ]
    answer = result.answer or "; ".join(f"`{b.name}` {percent(b.ratio[Account.USED])}" for b in books)
    return [_facts(facts), element("h1", told(answer))]


def _measure(run: Run, books: list[Book]) -> list[Markup]:
    parts: list[Markup] = []
    for book in books:
        engine = book.engine
        if engine is None:
            continue
        seconds = duration(engine.traffic.get("seconds"))
        facts = [
            both("question.server", samples=count(engine.samples), seconds=seconds, source=_name(run.name)),
            both("question.pool", pool=amount(book.capacity, book.unit)),
        ]
        if len(books) > 1 or engine.model:
            facts.insert(0, code(book.name))
        parts += [_facts(facts), element("h1" if not parts else "h2", told(engine.verdict.get("sentence", "")))]
        parts.append(element("p", told(engine.verdict.get("advice", "")), class_="advice"))
    return parts


def _facts(facts: list[Markup]) -> Markup:
    return element("p", *(element("span", fact) for fact in facts), class_="facts")


def _name(text: str) -> Markup:
    return element("bdi", text)


def _source(run: Run, result: SavedReplay) -> str:
    source = result.trace.get("source")
    return source if isinstance(source, str) else run.name


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
