"""How long the requests are against the sizes of blocks; the histogram needs no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from kvledger.ledger import Accuracy
from kvledger.report.html.figures import amount, count, percent
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.saved import SavedLengthTable, SavedReplay
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both

__all__ = ["lengths_section"]

_WIDTH, _HEIGHT, _BOTTOM = 960, 190, 24
_COLUMNS = ("mean", "p50", "p90", "p99", "most")


def lengths_section(run: int, result: SavedReplay, *, name: str | None) -> Markup:
    """Return the section of one run; empty when its result does not tell lengths."""
    lengths = result.trace.lengths
    if lengths is None or not _is_drawable(lengths):
        return Markup("")
    known = result.accuracy.get("lengths", Accuracy.MODELLED)
    per_token = result.pool.get("bytes_per_token")
    return section(
        f"lengths-{run}",
        both("lengths.title"),
        both("lengths.note"),
        _picture(lengths, result),
        _statistics(run, lengths, known),
        _blocks(run, lengths, known, per_token if isinstance(per_token, int) else 0),
        run=name,
    )


def _is_drawable(lengths: SavedLengthTable) -> bool:
    edges = lengths.edges_tokens
    columns = (lengths.prompt_requests, lengths.output_requests, lengths.total_requests)
    rising = all(0 < a < b for a, b in pairwise(edges))
    return 2 <= len(edges) <= 1000 and rising and all(len(c) == len(edges) - 1 and min(c) >= 0 for c in columns)


def _picture(lengths: SavedLengthTable, result: SavedReplay) -> Markup:
    edges = lengths.edges_tokens
    limit = result.settings.get("max_model_len")
    longest = max(edges[-1], limit if isinstance(limit, int) and limit <= 4 * edges[-1] else 1)
    octaves = math.log2(longest)

    def x(tokens: float) -> float:
        return _WIDTH * math.log2(tokens) / octaves

    top = max(*lengths.total_requests, *lengths.prompt_requests, 1)

    def y(requests: int) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - requests / top * 0.92)

    bars = [
        f"M{x(a):.1f} {_HEIGHT - _BOTTOM}V{y(n):.1f}H{x(b):.1f}V{_HEIGHT - _BOTTOM}z"
        for (a, b), n in zip(pairwise(edges), lengths.total_requests, strict=True)
        if n
    ]
    outline = "".join(
        f"{'L' if i else 'M'}{x(a):.1f} {y(n):.1f}H{x(b):.1f}"
        for i, ((a, b), n) in enumerate(zip(pairwise(edges), lengths.prompt_requests, strict=True))
    )
    marks = [_mark(x(n), f"{n:,}") for n in (2**k for k in range(2, int(octaves + 1e-9) + 1, 2))]
    if isinstance(limit, int) and 2 <= limit <= longest:
        marks.append(_limit(x(limit), limit))
    total = lengths.total
    told = both("lengths.chart", p50=f"{total.p50_tokens:,}", p99=f"{total.p99_tokens:,}", max=f"{total.max_tokens:,}")
    drawing = element(
        "svg",
        element("path", d="".join(bars), class_="bars"),
        element("path", d=outline, class_="prompt"),
        element("path", d=f"M0 {_HEIGHT - _BOTTOM}H{_WIDTH}", class_="axis"),
        *marks,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        class_="histogram",
        aria_hidden="true",
    )
    return element("figure", element("div", drawing, class_="scroll"), element("figcaption", told, class_="note"))


def _mark(x: float, text: str) -> Markup:
    anchor = "end" if x > _WIDTH - 20 else "middle"
    return element("text", text, x=f"{x:.1f}", y=_HEIGHT - 6, text_anchor=anchor)


def _limit(x: float, limit: int) -> Markup:
    line = element("path", d=f"M{x:.1f} 0V{_HEIGHT - _BOTTOM}", class_="limit")
    text = element("text", f"max_model_len {limit:,}", x=f"{x - 6:.1f}", y=12, text_anchor="end")
    return Markup(line + text)


def _statistics(run: int, lengths: SavedLengthTable, known: str) -> Markup:
    columns = [
        Column(title=both("lengths.column"), text=True),
        Column(title=both("lengths.mean"), accuracy=known, formula="formula.lengths"),
        *(Column(title=Markup(p), accuracy=known, formula="formula.rank") for p in ("p50", "p90", "p99")),
        Column(title=both("lengths.most"), accuracy=known, formula="formula.lengths"),
    ]
    rows: list[Sequence[Cell]] = []
    for name, column in (("prompt", lengths.prompt), ("output", lengths.output), ("total", lengths.total)):
        values = (column.p50_tokens, column.p90_tokens, column.p99_tokens, column.max_tokens)
        mean = cell(f"{column.mean_tokens:,.1f}", column.mean_tokens)
        rows.append([cell(both(f"lengths.{name}"), name), mean, *(cell(count(v), v) for v in values)])
    identifier = f"lengths-{run}-table"
    return subsection(
        identifier, both("lengths.statistics"), None, table(identifier, both("lengths.statistics"), columns, rows)
    )


def _blocks(run: int, lengths: SavedLengthTable, known: str, per_token: int) -> Markup:
    accuracy = "modelled" if known == "modelled" else "derived"
    columns = [
        Column(title=both("lengths.block")),
        Column(title=both("lengths.bytes"), accuracy="derived", formula="formula.times"),
        Column(title=both("lengths.tail"), accuracy=accuracy, formula="formula.tail"),
        Column(title=both("lengths.tail.bytes"), accuracy=accuracy, formula="formula.times"),
        Column(title=both("lengths.share"), accuracy=accuracy, formula="formula.tail.share"),
    ]
    rows: list[Sequence[Cell]] = [
        [
            cell(count(tail.block_tokens), tail.block_tokens),
            cell(amount(tail.block_tokens * per_token, "bytes"), tail.block_tokens * per_token),
            cell(f"{tail.tail_tokens:.1f}", tail.tail_tokens),
            cell(amount(tail.tail_tokens * per_token, "bytes"), round(tail.tail_tokens * per_token)),
            cell(percent(tail.tail_ratio), tail.tail_ratio),
        ]
        for tail in lengths.block_sizes
    ]
    identifier = f"blocks-{run}-table"
    grid = table(identifier, both("lengths.blocks"), columns, rows)
    return subsection(identifier, both("lengths.blocks"), both("lengths.blocks.note"), grid)
