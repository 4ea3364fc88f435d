"""How long the requests are against the sizes of blocks; the histogram needs no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from kvledger.ledger import Accuracy
from kvledger.report.html.canvas import Canvas, picture
from kvledger.report.html.figures import amount, count, percent
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.saved import SavedLengthTable, SavedReplay
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, both_in_svg

__all__ = ["length_picture", "lengths_section", "tails_table"]

_CANVASES = (Canvas(width=960, height=214, top=20, bottom=44), Canvas(width=400, height=200, top=20, bottom=44))
_MARK_WIDTH = 66
_COLUMNS = ("mean", "p50", "p90", "p99", "most")


def lengths_section(run: int, result: SavedReplay, *, name: str | None) -> Markup:
    """Return the section of one run; empty when its result does not tell lengths."""
    lengths, limit = result.trace.lengths, result.settings.get("max_model_len")
    drawn = None if lengths is None else length_picture(lengths, limit if isinstance(limit, int) else None)
    if lengths is None or drawn is None:
        return Markup("")
    known = result.accuracy.get("lengths", Accuracy.MODELLED)
    per_token = result.pool.get("bytes_per_token")
    return section(
        f"lengths-{run}",
        both("lengths.title"),
        both("lengths.note"),
        drawn,
        _statistics(run, lengths, known),
        tails_table(run, lengths, known, per_token if isinstance(per_token, int) else 0),
        run=name,
    )


def _is_drawable(lengths: SavedLengthTable) -> bool:
    edges = lengths.edges_tokens
    columns = (lengths.prompt_requests, lengths.output_requests, lengths.total_requests)
    rising = all(0 < a < b for a, b in pairwise(edges))
    return 2 <= len(edges) <= 1000 and rising and all(len(c) == len(edges) - 1 and min(c) >= 0 for c in columns)


def length_picture(lengths: SavedLengthTable, limit: int | None) -> Markup | None:
    """Draw how many requests have which length, and the longest that is allowed; None for what is no histogram."""
    if not _is_drawable(lengths):
        return None
    total = lengths.total
    told = both("lengths.chart", p50=f"{total.p50_tokens:,}", p99=f"{total.p99_tokens:,}", max=f"{total.max_tokens:,}")
    return picture(
        lambda canvas: _drawing(canvas, lengths, limit),
        _CANVASES,
        kind="histogram",
        caption=element("figcaption", told, class_="note"),
    )


def _drawing(canvas: Canvas, lengths: SavedLengthTable, limit: int | None) -> list[Markup]:
    edges, totals, prompts = lengths.edges_tokens, lengths.total_requests, lengths.prompt_requests
    longest = max(edges[-1], limit if limit is not None and limit <= 4 * edges[-1] else 1)
    first = next((edge for edge, *counts in zip(edges[:-1], totals, prompts, strict=True) if any(counts)), edges[0])
    least = math.floor(math.log2(first))
    octaves = max(1e-9, math.log2(longest) - least)
    top = max(*totals, *prompts, 1)

    def x(tokens: float) -> str:
        return f"{canvas.x(max(0.0, math.log2(tokens) - least) / octaves):.1f}"

    def y(requests: int) -> str:
        return f"{canvas.y(requests / top):.1f}"

    bins = list(pairwise(edges))
    bars = [
        f"M{x(a)} {canvas.floor}V{y(n)}H{x(b)}V{canvas.floor}z" for (a, b), n in zip(bins, totals, strict=True) if n
    ]
    outline = "".join(
        f"{'L' if i else 'M'}{x(a)} {y(n)}H{x(b)}" for i, ((a, b), n) in enumerate(zip(bins, prompts, strict=True))
    )
    every = math.ceil((octaves + 1) * _MARK_WIDTH / canvas.width)
    powers = range(least, int(least + octaves + 1e-9) + 1, every)
    drawn = [
        element("path", d="".join(bars), class_="bars"),
        element("path", d=outline, class_="prompt"),
        element("path", d=f"M0 {canvas.floor}H{canvas.width}", class_="axis"),
        *(_mark(canvas, x(2**power), f"{2**power:,}") for power in powers),
        element("text", both_in_svg("lengths.top", count=count(top)), x=0, y=12, class_="name"),
        element(
            "text", both_in_svg("lengths.axis"), x=canvas.width, y=canvas.height - 4, text_anchor="end", class_="name"
        ),
    ]
    return [*drawn, _limit(canvas, x(limit), limit)] if limit is not None and first <= limit <= longest else drawn


def _mark(canvas: Canvas, x: str, text: str) -> Markup:
    anchor = "end" if float(x) > canvas.width - 20 else "start" if float(x) < 20 else "middle"
    return element("text", text, x=x, y=canvas.floor + 17, text_anchor=anchor)


def _limit(canvas: Canvas, x: str, limit: int) -> Markup:
    line = element("path", d=f"M{x} 0V{canvas.floor}", class_="limit")
    text = element("text", f"max_model_len {limit:,}", x=f"{float(x) - 6:.1f}", y=12, text_anchor="end")
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


def tails_table(run: int, lengths: SavedLengthTable, known: str, per_token: int) -> Markup:
    """Return what the last block of a request loses by its size; in bytes where a token has a price."""
    accuracy = "modelled" if known == "modelled" else "derived"
    columns = [
        Column(title=both("lengths.block")),
        Column(title=both("lengths.tail"), accuracy=accuracy, formula="formula.tail"),
        Column(title=both("lengths.share"), accuracy=accuracy, formula="formula.tail.share"),
    ]
    rows = [
        [
            cell(count(tail.block_tokens), tail.block_tokens),
            cell(f"{tail.tail_tokens:.1f}", tail.tail_tokens),
            cell(percent(tail.tail_ratio), tail.tail_ratio),
        ]
        for tail in lengths.block_sizes
    ]
    if per_token:
        columns.insert(1, Column(title=both("lengths.bytes"), accuracy="derived", formula="formula.times"))
        columns.insert(3, Column(title=both("lengths.tail.bytes"), accuracy=accuracy, formula="formula.times"))
        for row, tail in zip(rows, lengths.block_sizes, strict=True):
            row.insert(1, _bytes(tail.block_tokens * per_token))
            row.insert(3, _bytes(tail.tail_tokens * per_token))
    identifier = f"blocks-{run}-table"
    grid = table(identifier, both("lengths.blocks"), columns, rows)
    return subsection(identifier, both("lengths.blocks"), both("lengths.blocks.note"), grid)


def _bytes(size_bytes: float) -> Cell:
    return cell(amount(size_bytes, "bytes"), round(size_bytes))
