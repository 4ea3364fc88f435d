"""What a trace holds: arrivals, lengths, what its requests share."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.report.html.figures import count, duration, percent
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_traffic import SavedTraceFile, SavedTraceLengths
from kvledger.report.html.sections.lengths import length_picture, tails_table
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, told

__all__ = ["trace_answer", "trace_facts", "trace_notes", "trace_sections"]


def trace_facts(result: SavedTraceFile, name: str) -> list[Markup]:
    """Return what was read, as the facts above the answer."""
    facts = [element("bdi", name), told(result.format.sentence)]
    if result.rows_read != result.requests:
        facts.append(both("trace.rows", rows=count(result.rows_read)))
    return facts


def trace_answer(result: SavedTraceFile) -> Markup:
    """Say in words what the traffic is like."""
    prompt, output = result.prompt, result.output
    words = both(
        "trace.answer",
        count=count(result.requests),
        span=duration(result.span_seconds),
        prompt=f"{prompt.mean_tokens:,.0f}",
        output=f"{output.mean_tokens:,.0f}",
        longest=count(result.total.max_tokens),
    )
    share = result.infinite_cache_prefix
    return words if share is None else join(words, " ", both("trace.shared", ratio=percent(share.ratio)))


def trace_sections(run: int, result: SavedTraceFile) -> list[Markup]:
    """Return the sections of one trace."""
    lengths = result.lengths
    parts = [_lengths(f"{run}", result)]
    if lengths is not None and (drawn := length_picture(lengths, None)) is not None:
        parts = [drawn, *parts, tails_table(run, lengths, str(result.accuracy.outputs), 0)]
    return [
        _arrivals(run, result),
        section(f"lengths-{run}", both("lengths.title"), both("lengths.note") if lengths else None, *parts),
        _shared(run, result),
    ]


def trace_notes(result: SavedTraceFile) -> Iterator[Markup]:
    """Yield what was assumed, and what was left out or changed."""
    for name, (low, high) in result.accuracy.error_band_ratio.items():
        if name in ("prompts", "outputs"):
            yield both(f"trace.band.{name}", low=f"{low:.2g}", high=f"{high:.2g}")
    for kind, rows in (("dropped", result.dropped), ("adjusted", result.adjusted)):
        for reason, number in rows.items():
            yield both(f"provenance.{kind}", count=count(number), reason=told(reason))
    yield from (told(note) for note in result.notes)


def _arrivals(run: int, result: SavedTraceFile) -> Markup:
    rate, known = result.rate_per_second, str(result.accuracy.arrivals)
    entries: list[tuple[str, str, float | None]] = [
        ("span", duration(result.span_seconds), result.span_seconds),
        *(
            (key, "–" if value is None else f"{value:,.3g}", value)
            for key, value in (
                ("rate", rate.mean),
                ("minute", rate.peak_60_seconds),
                ("seconds", rate.peak_10_seconds),
                ("gaps", result.arrival_cv),
            )
        ),
    ]
    if result.sessions:
        entries.append(("sessions", count(result.sessions), result.sessions))
    if result.answers != result.requests:
        entries.append(("answers", count(result.answers), result.answers))
    if result.beam_searches:
        entries.append(("beams", count(result.beam_searches), result.beam_searches))
    columns = [
        Column(title=both("comparison.what"), text=True),
        Column(title=both("engine.amount"), accuracy=known, formula="formula.arrivals"),
        Column(title=both("trace.means"), prose=True),
    ]
    rows = [
        [cell(both(f"trace.row.{key}"), key), cell(shown, raw, quiet=raw is None), cell(both(f"trace.why.{key}"))]
        for key, shown, raw in entries
    ]
    title = both("trace.arrivals")
    identifier = f"arrivals-{run}"
    return section(identifier, title, None, table(identifier, title, columns, rows))


def _lengths(run: str, result: SavedTraceFile) -> Markup:
    accuracy = result.accuracy
    columns = [
        Column(title=both("lengths.column"), text=True),
        Column(title=both("engine.known"), text=True),
        Column(title=both("lengths.mean"), accuracy=str(accuracy.outputs), formula="formula.lengths"),
        *(
            Column(title=Markup(p), accuracy=str(accuracy.outputs), formula="formula.rank")
            for p in ("p50", "p90", "p95", "p99")
        ),
        Column(title=both("lengths.most")),
        Column(title=both("trace.sum")),
    ]
    kinds = [("prompt", result.prompt, accuracy.prompts), ("output", result.output, accuracy.outputs)]
    kinds.append(("total", result.total, max(accuracy.prompts, accuracy.outputs, key=_certainty)))
    if result.declared_max_tokens is not None:
        kinds.append(("declared", result.declared_max_tokens, accuracy.outputs))
    rows = [_length(key, lengths, str(known)) for key, lengths, known in kinds]
    identifier = f"columns-{run}-table"
    heading = element("h3", both("lengths.statistics"), id=f"{identifier}-title")
    return join(heading, table(identifier, both("lengths.statistics"), columns, rows))


def _certainty(known: str) -> int:
    return ("measured", "derived", "modelled").index(known)


def _length(key: str, lengths: SavedTraceLengths, known: str) -> list[Cell]:
    ranks = (lengths.p50_tokens, lengths.p90_tokens, lengths.p95_tokens, lengths.p99_tokens, lengths.max_tokens)
    return [
        cell(both(f"lengths.{key}"), key),
        cell(element("em", both(f"accuracy.{known}"), class_=f"known {known}"), known),
        cell(f"{lengths.mean_tokens:,.1f}", lengths.mean_tokens),
        *(cell(count(rank), rank) for rank in ranks),
        cell(count(lengths.sum_tokens), lengths.sum_tokens),
    ]


def _shared(run: int, result: SavedTraceFile) -> Markup:
    """Say what a prefix cache could find; where the trace does not tell, say that."""
    share = result.infinite_cache_prefix
    if share is None:
        return section(f"shared-{run}", both("trace.prefix"), both("trace.prefix.unknown"))
    words = both(
        "trace.prefix.sentence",
        ratio=percent(share.ratio),
        shared=count(share.shared_tokens),
        prompt=count(share.prompt_tokens),
    )
    rule = element("rect", x=0, y=0, width=f"{100 * share.ratio:.2f}%", height="100%", class_="s-cached")
    drawn = element("svg", rule, class_="bar", aria_hidden="true", focusable="false")
    return section(f"shared-{run}", both("trace.prefix"), words, drawn)
