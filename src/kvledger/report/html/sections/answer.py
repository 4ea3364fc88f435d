"""The answer in words, and the question it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from kvledger.ledger import Account
from kvledger.report.html.book import Book
from kvledger.report.html.figures import amount, count, duration, percent
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.reading import Run
from kvledger.report.html.saved import SavedReplay
from kvledger.report.html.saved_check import SavedCheck
from kvledger.report.html.saved_log import SavedLog
from kvledger.report.html.saved_measure import SavedMeasure
from kvledger.report.html.saved_prove import SavedProve
from kvledger.report.html.saved_sharing import SavedSharing
from kvledger.report.html.saved_size import SavedSize
from kvledger.report.html.saved_sweep import SavedSweep
from kvledger.report.html.saved_traffic import SavedCache, SavedTraceFile
from kvledger.report.html.sections.cache import cache_facts
from kvledger.report.html.sections.check import check_answer
from kvledger.report.html.sections.log import log_answers
from kvledger.report.html.sections.prove import prove_facts
from kvledger.report.html.sections.sharing import sharing_answer, sharing_facts
from kvledger.report.html.sections.size import size_answers
from kvledger.report.html.sections.sweep import sweep_facts
from kvledger.report.html.sections.trace import trace_answer, trace_facts
from kvledger.report.html.words import both, code, told, told_as_sentence

__all__ = ["answer_section"]

_MOST_LINES = 6


def answer_section(runs: Sequence[Run], books: Sequence[Book], *, lead: Markup | None) -> Markup:
    """Return the top of the page; ``lead`` is the sentence that compares two runs."""
    parts: list[Markup] = []
    if lead is not None:
        parts += [_facts([_name(f"{runs[0].name} → {runs[1].name}")]), element("h1", lead)]
    for number, run in enumerate(runs):
        mine = [book for book in books if book.run == number]
        label = None if lead is None else ("comparison.before", "comparison.after")[number]
        told_here = _told(run, mine)
        for question, sentence, advice in told_here:
            if question:
                parts.append(_facts([both(label), *question] if label else question))
            parts.append(element("p" if parts[1:] else "h1", sentence, class_="sentence" if parts[1:] else None))
            if advice is not None:
                parts.append(element("p", advice, class_="advice"))
    return element("section", *parts, id="answer", aria_label="answer")


_Told = tuple[list[Markup], Markup, Markup | None]


def _told(run: Run, books: Sequence[Book]) -> Iterator[_Told]:
    match run.result:
        case SavedReplay():
            yield from _replay(run, run.result, books)
        case SavedMeasure():
            yield from _measure(run, books)
        case SavedProve():
            yield prove_facts(run.result), told(run.result.answer), None
        case SavedSweep():
            first, *others = run.result.answer.splitlines() or [""]
            yield sweep_facts(run.result), told(first), None
            for line in others[:_MOST_LINES]:
                yield [], told(line), None
        case SavedSharing():
            yield sharing_facts(run.result), sharing_answer(run.result), None
        case SavedSize():
            yield from size_answers(run.result)
        case SavedCache():
            yield cache_facts(run.result, run.name), told(run.result.answer), None
        case SavedTraceFile():
            yield trace_facts(run.result, run.name), trace_answer(run.result), None
        case SavedCheck():
            sentence, doubt = check_answer(run.result)
            yield [_name(run.name)], sentence, doubt
        case SavedLog():
            yield from log_answers(run.result, run.name)
        case _:
            assert_never(run.result)


def _replay(run: Run, result: SavedReplay, books: Sequence[Book]) -> Iterator[_Told]:
    pool = result.pool
    memory = pool.get("memory_bytes")
    size = amount(memory if isinstance(memory, int) else books[0].capacity, "bytes")
    per_token = count(_integer(pool.get("bytes_per_token")))
    question = [
        both("question.requests", count=count(result.trace.requests), source=_name(result.trace.source or run.name)),
        both("question.pool", pool=size),
        both("question.token", model=_name(str(pool.get("model"))), bytes=per_token),
        both("question.length", length=count(_integer(result.settings.get("max_model_len")))),
    ]
    fallback = "; ".join(f"`{book.name}` {percent(book.ratio[Account.USED])}" for book in books)
    yield question, told(result.answer or fallback), None


def _measure(run: Run, books: Sequence[Book]) -> Iterator[_Told]:
    for book in books:
        engine = book.engine
        if engine is None:
            continue
        source, seconds = _name(run.name), _seconds(engine.traffic.get("seconds"))
        question = [
            code(book.name),
            both("question.sample", source=source)
            if engine.samples == 1
            else both("question.server", samples=count(engine.samples), seconds=seconds, source=source),
            both("question.pool", pool=amount(book.capacity, book.unit)),
        ]
        yield question, told_as_sentence(engine.verdict.get("sentence", "")), told(engine.verdict.get("advice", ""))


def _seconds(value: object) -> str:
    return duration(value if isinstance(value, (int, float)) else None)


def _facts(facts: list[Markup]) -> Markup:
    return element("p", *(element("span", fact) for fact in facts), class_="facts")


def _name(text: str) -> Markup:
    return element("bdi", text)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
