"""Pictures of a sweep that need no script: what is traded for what, and what each value of a setting does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvledger.report.html.canvas import Canvas, picture
from kvledger.report.html.figures import count, duration, percent, short_amount
from kvledger.report.html.frame import subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_sweep import SavedRow, Setting
from kvledger.report.html.scale import Scale, scale_of
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, both_in_svg, code

__all__ = ["scatter", "setting_table"]

_CANVASES = (
    Canvas(width=960, height=364, left=74, right=24, top=40, bottom=58),
    Canvas(width=400, height=340, left=52, right=26, top=40, bottom=58),
)
_MOST_DOTS = 2_000
_MOST_MARKS = 200


def scatter(rows: Sequence[SavedRow], front: Sequence[SavedRow]) -> Markup:
    """Draw every row by what it wastes and how long it lets requests wait; those that none beats are numbered."""
    caption = element("figcaption", both("sweep.scatter", rows=count(len(rows))), class_="note")
    return picture(lambda canvas: _drawing(canvas, rows, front), _CANVASES, kind="histogram scatter", caption=caption)


def _drawing(canvas: Canvas, rows: Sequence[SavedRow], front: Sequence[SavedRow]) -> list[Markup]:
    across = scale_of(row.wasted_bytes for row in rows)
    up = scale_of(row.queue_p99_seconds or 0.0 for row in rows)

    def x(row: SavedRow) -> float:
        return canvas.x(across.place(row.wasted_bytes))

    def y(row: SavedRow) -> float:
        return canvas.y(up.place(row.queue_p99_seconds or 0.0))

    every = max(1, -(-len(rows) // min(_MOST_DOTS, 2 * canvas.width)))
    dots = [element("circle", cx=f"{x(row):.1f}", cy=f"{y(row):.1f}", r=3, class_="row") for row in rows[::every]]
    steps = "".join(
        f"M{x(row):.1f} {y(row):.1f}" if number == 0 else f"H{x(row):.1f}V{y(row):.1f}"
        for number, row in enumerate(front)
    )
    chosen = [
        join(
            element("circle", cx=f"{x(row):.1f}", cy=f"{y(row):.1f}", r=5, class_="front"),
            element("text", str(number), x=f"{x(row) + 9:.1f}", y=f"{y(row) - 7:.1f}", class_="number"),
        )
        for number, row in enumerate(front, start=1)
    ]
    return [*_axes(canvas, across, up), *dots, element("path", d=steps, class_="steps"), *chosen]


def _axes(canvas: Canvas, across: Scale, up: Scale) -> list[Markup]:
    floor, left = canvas.floor, canvas.left
    drawn = [element("path", d=f"M{left} {canvas.top}V{floor}H{canvas.end}", class_="axis", fill="none")]
    for value in _marks_of_bytes(across):
        place = f"{canvas.x(across.place(value)):.1f}"
        drawn.append(element("text", short_amount(value), x=place, y=floor + 10, text_anchor="middle", class_="below"))
    for value in up.marks(10):
        place = f"{canvas.y(up.place(value)):.1f}"
        drawn.append(element("text", _seconds(value), x=left - 8, y=f"{float(place) + 4:.1f}", text_anchor="end"))
        drawn.append(element("path", d=f"M{left} {place}H{canvas.end}", class_="grid"))
    for key, place_x, place_y, anchor in (
        ("sweep.wasted", canvas.end, canvas.height - 6, "end"),
        ("sweep.queue", 0, 20, "start"),
    ):
        drawn.append(element("text", both_in_svg(key), x=place_x, y=place_y, text_anchor=anchor, class_="name"))
    return drawn


def _marks_of_bytes(scale: Scale) -> list[float]:
    """Return marks at round binary amounts."""
    if scale.is_logarithmic:
        return scale.marks(2)
    unit = 1024.0 ** math.floor(math.log(max(1.0, scale.high), 1024))
    inner = Scale(low=scale.low / unit, high=scale.high / unit, is_logarithmic=False)
    return [mark * unit for mark in inner.marks(2)]


def _seconds(value: float) -> str:
    return f"{value:g}\u202fs"


def setting_table(
    identifier: str, setting: str, rows: Sequence[SavedRow], *, written: Callable[[Setting], Markup]
) -> Markup:
    """Return a table of what each value of one setting comes with: every row is a mark, the best is a number."""
    values: dict[str, tuple[Setting, list[SavedRow]]] = {}
    for row in rows:
        value: Setting = row.policy if setting == "policy" else row.values.get(setting)
        values.setdefault(repr(value), (value, []))[1].append(row)
    wasted, queue = scale_of([*(r.wasted_ratio for r in rows)]), scale_of(r.queue_p99_seconds or 0.0 for r in rows)
    columns = [
        Column(title=code(setting), text=True),
        Column(title=both("sweep.count")),
        Column(title=both("sweep.spread.wasted"), text=True),
        Column(title=both("sweep.least"), accuracy="derived", formula="formula.wasted"),
        Column(title=both("sweep.spread.queue"), text=True),
        Column(title=both("sweep.shortest"), accuracy="modelled", formula="formula.seconds"),
    ]
    body: list[list[Cell]] = []
    for value, mine in sorted(values.values(), key=lambda pair: _order(pair[0])):
        least, shortest = min(r.wasted_ratio for r in mine), min(r.queue_p99_seconds or 0.0 for r in mine)
        body.append(
            [
                cell(written(value), str(value)),
                cell(count(len(mine)), len(mine)),
                cell(_strip([r.wasted_ratio for r in mine], wasted)),
                cell(percent(least), least),
                cell(_strip([r.queue_p99_seconds or 0.0 for r in mine], queue)),
                cell(duration(shortest), shortest),
            ]
        )
    title = both("sweep.by", setting=code(setting))
    return subsection(identifier, title, None, table(identifier, title, columns, body))


def _order(value: Setting) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return (0, float(value), "")
    return (1, math.inf, "") if value == "inf" else (2, 0.0, str(value))


def _strip(numbers: Sequence[float], scale: Scale) -> Markup:
    """Draw each number as a mark on a line; the least stands out."""
    ordered = sorted(numbers)
    shown = ordered[:: max(1, -(-len(ordered) // _MOST_MARKS))]
    marks = [
        element("circle", cx=f"{2 + 96 * scale.place(n):.1f}%", cy="50%", r=4 if number == 0 else 3,
                class_="dot" if number == 0 else "row")
        for number, n in reversed(list(enumerate(shown)))
    ]  # fmt: skip
    axis = element("rect", x=0, y="48%", width="100%", height="4%", class_="axis")
    return element("svg", axis, *marks, class_="strip", aria_hidden="true", focusable="false")
