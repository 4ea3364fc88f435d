"""The whole page: one file that asks for nothing, with its data, its style and its script inside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

import kvledger
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.report.html.book import Book, books_of
from kvledger.report.html.markup import Markup, data_script, element
from kvledger.report.html.phrases import read_asset
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
from kvledger.report.html.sections.answer import answer_section
from kvledger.report.html.sections.balance import balance_section
from kvledger.report.html.sections.cache import cache_sections
from kvledger.report.html.sections.charts import time_section
from kvledger.report.html.sections.check import check_section
from kvledger.report.html.sections.comparison import compare_section, comparison_sentence, pair_books
from kvledger.report.html.sections.engine import engine_section
from kvledger.report.html.sections.findings import findings_section
from kvledger.report.html.sections.lengths import lengths_section
from kvledger.report.html.sections.log import log_section
from kvledger.report.html.sections.mitigations import mitigations_section, what_if_section
from kvledger.report.html.sections.pool import pool_section
from kvledger.report.html.sections.prove import prove_section
from kvledger.report.html.sections.provenance import provenance_section
from kvledger.report.html.sections.requests import requests_section
from kvledger.report.html.sections.sharing import sharing_section
from kvledger.report.html.sections.size import size_sections
from kvledger.report.html.sections.sweep import sweep_sections, sweep_shown
from kvledger.report.html.sections.trace import trace_sections
from kvledger.report.html.style import account_style, hatches
from kvledger.report.html.words import both, script_phrases

__all__ = ["Language", "render_page"]

SCHEMA = "kvledger/report"
SCHEMA_VERSION = 1
_SECTION = re.compile(r'<section id="([a-z]+[-0-9]*)"')
_CONTENTS = (
    "memory", "load", "groups", "cost", "prints", "engines", "refused", "hits", "live",
    "limits", "arrivals", "shared",
    "balance", "comparison", "ways", "sharing", "trade", "grid", "failures", "log", "findings", "time", "pool",
    "engine", "requests", "mitigations", "whatif", "lengths", "provenance",
)  # fmt: skip


class Language(StrEnum):
    """The language a page opens in; a reader can change it."""

    ENGLISH = "en"
    CHINESE = "zh"


def render_page(runs: Sequence[Run], *, language: Language = Language.ENGLISH) -> str:
    """Return the page of one run, or of two to compare; the same runs give the same bytes.

    Raises:
        SourceError: No engine of a measurement has a ledger, or one of two results has nothing to compare.
    """
    books = books_of(runs)
    for number, run in enumerate(runs):
        _check_books(run, any(book.run == number for book in books), alone=len(runs) == 1)
    style = account_style() + read_asset("page.css")
    script = read_asset("page.js")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'sha256-{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = f"{runs[-1].name} · kvledger"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="generator", content=f"kvledger {kvledger.__version__}"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    )
    sections = _sections(runs, books)
    body = element(
        "body",
        element("a", both("skip"), href="#answer", class_="skip"),
        hatches(),
        _header(sections),
        element("main", *sections),
        element("footer", f"kvledger {kvledger.__version__}"),
        data_script("kvledger-data", _data(runs, books)),
        Markup(f"<script>{script}</script>"),
    )
    root = element("html", head, body, lang="zh-Hans" if language is Language.CHINESE else "en")
    return f"<!doctype html>\n{root}\n"


def _check_books(run: Run, has_books: bool, *, alone: bool) -> None:
    if isinstance(run.result, SavedMeasure) and not has_books:
        raise SourceError("no sample has a ledger, so there is nothing to draw", hint="measure a server while it works")
    if not isinstance(run.result, (SavedReplay, SavedMeasure, SavedProve)) and not alone:
        kind = run.result.schema.removeprefix("kvledger/")
        raise SourceError(
            f"`{run.name}` is of `{kind}`, which has no ledgers to compare",
            hint="give it alone, or two results of `replay`, `measure` or `prove`",
        )


def _header(sections: Sequence[Markup]) -> Markup:
    found = [match[1] for s in sections if (match := _SECTION.match(s))]
    links = [
        element("a", both(f"nav.{name}"), href=f"#{identifier}")
        for name in _CONTENTS
        if (identifier := next((i for i in found if i.rstrip("-0123456789") == name), None))
    ]
    return element(
        "header",
        element("a", "kvledger", href="#answer", class_="brand"),
        element("nav", *links, id="contents", aria_label="contents"),
        element("div", id="tools"),
    )


def _sections(runs: Sequence[Run], books: Sequence[Book]) -> list[Markup]:
    names = [run.name for run in runs]
    several = len(runs) > 1
    replays = [(number, run.result) for number, run in enumerate(runs) if isinstance(run.result, SavedReplay)]
    seconds = replays[-1][1].accuracy.get("seconds", Accuracy.MODELLED) if replays else Accuracy.MEASURED
    parts = [
        answer_section(runs, books, lead=comparison_sentence(pair_books(books)) if len(runs) == 2 else None),
        compare_section(runs, books),
        balance_section(books, names) if books else Markup(""),
    ]
    for number, run in enumerate(runs):
        parts += _of_kind(number, run, name=run.name if several else None)
    return [
        *parts,
        time_section(books, seconds),
        pool_section(books, names),
        engine_section(books, names),
        requests_section(books, names, seconds),
        *(mitigations_section(number, result, name=names[number] if several else None) for number, result in replays),
        *(what_if_section(number, result, name=names[number] if several else None) for number, result in replays),
        *(lengths_section(number, result, name=names[number] if several else None) for number, result in replays),
        provenance_section(runs, kvledger.__version__),
    ]


def _of_kind(number: int, run: Run, *, name: str | None) -> list[Markup]:
    """Return what only this kind of result has; of replays and measurements, their findings."""
    match run.result:
        case SavedReplay() | SavedMeasure():
            return [findings_section(number, run.result.findings, name=name)]
        case SavedProve():
            return [prove_section(number, run.result, name=name)]
        case SavedSweep():
            return sweep_sections(number, run.result, name=name)
        case SavedSharing():
            return [sharing_section(number, run.result, name=name)]
        case SavedLog():
            return [
                log_section(number, run.result, name=name),
                findings_section(number, run.result.findings, name=name),
            ]
        case SavedSize():
            return [
                *size_sections(number, run.result, name=name),
                findings_section(number, run.result.findings, name=name),
            ]
        case SavedCache():
            return cache_sections(number, run.result)
        case SavedTraceFile():
            return trace_sections(number, run.result)
        case SavedCheck():
            return [check_section(number, run.result)]
        case _:
            assert_never(run.result)


def _data(runs: Sequence[Run], books: Sequence[Book]) -> dict[str, Any]:
    """Return what the script draws, and the results themselves without what stands in ``books`` already."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "phrases": script_phrases(),
        "books": [
            {
                "key": book.key,
                "run": book.run,
                "name": book.name,
                "capacity": book.capacity,
                "unit": book.unit,
                "timeline": asdict(book.timeline) if book.timeline else None,
                "layouts": msgspec.to_builtins(list(book.layouts)),
            }
            for book in books
        ],
        "runs": [{"name": run.name, "result": _without_series(msgspec.to_builtins(_shown(run)))} for run in runs],
    }


def _shown(run: Run) -> Any:
    """Return a result as far as it stands on the page: of a sweep, the rows that are listed."""
    result = run.result
    return replace(result, rows=sweep_shown(result)) if isinstance(result, SavedSweep) else result


def _without_series(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: [] if k in ("timeline", "layouts") else _without_series(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_series(item) for item in value]
    return value


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
