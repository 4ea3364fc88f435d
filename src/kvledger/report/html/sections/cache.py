"""What a prefix cache of every size would find, and how far its eviction is from the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvledger.report.html.canvas import Canvas, picture
from kvledger.report.html.figures import amount, count, percent, points, short_amount
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_traffic import SavedCache, SavedLiveCache
from kvledger.report.html.scale import Scale
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, both_in_svg, code, told

__all__ = ["cache_facts", "cache_notes", "cache_sections"]

_CANVASES = (
    Canvas(width=960, height=340, left=74, right=120, top=18, bottom=52),
    Canvas(width=400, height=280, left=48, right=66, top=14, bottom=52),
)
_SHAPES = ("solid", "dashed", "dotted")
_MOST_LIVE = 400


def cache_facts(result: SavedCache, name: str) -> list[Markup]:
    """Return what was asked, as the facts above the answer."""
    return [
        both("question.requests", count=count(result.trace.requests), source=element("bdi", name)),
        both("question.token", model=element("bdi", result.model), bytes=count(result.bytes_per_token)),
        both("cache.block", tokens=count(result.block_tokens), bytes=amount(result.block_bytes, "bytes")),
        both(
            "cache.distinct",
            blocks=count(result.distinct_blocks),
            bytes=amount(result.distinct_blocks * result.block_bytes, "bytes"),
        ),
    ]


def cache_sections(run: int, result: SavedCache) -> list[Markup]:
    """Return the sections of one answer."""
    found = section(
        f"hits-{run}",
        both("cache.title"),
        _window(result),
        _picture(result),
        _table(f"hits-{run}", result),
        _unfilled(result),
    )
    return [found, _live(f"live-{run}", result)]


def cache_notes(result: SavedCache) -> Iterator[Markup]:
    """Yield the rules of the replay, and what was assumed."""
    yield both("cache.rule.alone")
    yield both("cache.rule.evictions")
    if result.live:
        yield both("cache.rule.live")
    for reason, number in result.trace.dropped.items():
        yield both("provenance.dropped", count=count(number), reason=told(reason))
    yield from (told(note) for note in (*result.trace.notes, *result.notes))


def _window(result: SavedCache) -> Markup:
    first, total = result.first_measured_request, result.trace.requests
    if first == 0:
        return both("cache.all", count=count(total))
    return both("cache.window", first=count(first + 1), last=count(total))


def _unfilled(result: SavedCache) -> Markup:
    if all(one.filled for budget in result.budgets for one in budget.evictions):
        return Markup("")
    return element("p", both("cache.unfilled"), class_="note")


def _picture(result: SavedCache) -> Markup:
    """Draw the share found by the size of the cache, a line for each eviction; the lines end in their names."""
    names = [one.eviction for one in result.budgets[0].evictions]
    legend = [element("span", _key(number), code(name)) for number, name in enumerate(names)]
    words = both("cache.picture", ceiling=percent(result.ceiling.hit_ratio))
    caption = element("figcaption", *legend, element("p", words), class_="note keys")
    return picture(lambda canvas: _drawing(canvas, result), _CANVASES, kind="histogram scatter", caption=caption)


def _key(number: int) -> Markup:
    line = element("path", d="M0 5H28", class_=f"curve {_SHAPES[number % len(_SHAPES)]}")
    return element("svg", line, class_="key", aria_hidden="true")


def _drawing(canvas: Canvas, result: SavedCache) -> list[Markup]:
    sizes = [float(max(1, budget.budget_bytes)) for budget in result.budgets]
    across = Scale(low=min(sizes), high=max(*sizes, 2 * min(sizes)), is_logarithmic=True)
    ceiling = result.ceiling.hit_ratio
    highest = max(ceiling, *(one.hit_ratio for budget in result.budgets for one in budget.evictions))
    up = Scale(low=0.0, high=highest or 1.0, is_logarithmic=False)
    places = [canvas.x(across.place(size)) for size in sizes]
    limit = canvas.y(up.place(ceiling))
    drawn = [*_axes(canvas, across, up), element("path", d=f"M{canvas.left} {limit:.1f}H{canvas.end}", class_="limit")]
    ends: list[tuple[str, float]] = []
    for number, eviction in enumerate(result.budgets[0].evictions):
        line = [
            (place, canvas.y(up.place(budget.evictions[number].hit_ratio)))
            for place, budget in zip(places, result.budgets, strict=True)
        ]
        path = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(line))
        drawn.append(element("path", d=path, class_=f"curve {_SHAPES[number % len(_SHAPES)]}"))
        drawn += [element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2.5, class_="front") for x, y in line]
        ends.append((eviction.eviction, line[-1][1]))
    return [*drawn, *_names(canvas, ends, limit)]


def _axes(canvas: Canvas, across: Scale, up: Scale) -> Iterator[Markup]:
    for mark in up.marks(10):
        y = canvas.y(up.place(mark))
        yield element("path", d=f"M{canvas.left} {y:.1f}H{canvas.end}", class_="grid")
        yield element("text", f"{100 * mark:g}\u202f%", x=canvas.left - 8, y=f"{y + 4:.1f}", text_anchor="end")
    for mark in across.marks(2):
        x = f"{canvas.x(across.place(mark)):.1f}"
        yield element("text", short_amount(mark), x=x, y=canvas.floor + 18, text_anchor="middle")
    name = both_in_svg("cache.axis")
    yield element("text", name, x=canvas.end, y=canvas.height - 4, text_anchor="end", class_="name")


def _names(canvas: Canvas, ends: Sequence[tuple[str, float]], ceiling: float) -> Iterator[Markup]:
    """Yield the names at the ends of the lines, moved apart where they would overlap."""
    last = -1e9
    named = [(text, place, False) for text, place in ends]
    for text, place, is_limit in sorted([*named, ("", ceiling, True)], key=lambda one: (one[1], not one[2])):
        last = max(place, last + 15)
        shown: str | Markup = both_in_svg("cache.limit") if is_limit else text[:14]
        kind = None if is_limit else "name"
        yield element("text", shown, x=canvas.end + 8, y=f"{last + 4:.1f}", class_=kind)


def _table(identifier: str, result: SavedCache) -> Markup:
    names = [one.eviction for one in result.budgets[0].evictions]
    columns = [
        Column(title=both("cache.budget")),
        Column(title=both("cache.blocks")),
        *(Column(title=code(name), accuracy="derived", formula="formula.hits") for name in names),
    ]
    rows: list[list[Cell]] = [
        [
            cell(amount(budget.budget_bytes, "bytes"), budget.budget_bytes),
            cell(count(budget.blocks), budget.blocks),
            *(cell(f"{percent(o.hit_ratio)}{'' if o.filled else '*'}", o.hit_ratio) for o in budget.evictions),
        ]
        for budget in result.budgets
    ]
    whole = cell(percent(result.ceiling.hit_ratio), result.ceiling.hit_ratio)
    last = cell(count(result.distinct_blocks), result.distinct_blocks)
    rows.append([cell(both("cache.limitless"), "no limit"), last, *(whole for _ in names)])
    return table(identifier, both("cache.title"), columns, rows)


def _live(identifier: str, result: SavedCache) -> Markup:
    if not result.live:
        return Markup("")
    columns = [
        Column(title=both("cache.budget")),
        Column(title=both("cache.eviction"), text=True),
        Column(title=both("cache.alone"), accuracy="derived", formula="formula.hits"),
        Column(title=both("cache.live"), accuracy="modelled", formula="formula.live"),
        Column(title=both("cache.points"), accuracy="modelled", formula="formula.points"),
        Column(title=both("balance.running"), accuracy="modelled", formula="formula.running"),
        Column(title=both("requests.preempted"), accuracy="modelled", formula="formula.count"),
    ]
    rows = [_live_row(one) for one in result.live[:_MOST_LIVE]]
    title = both("cache.live.title")
    return section(identifier, title, both("cache.live.note"), table(identifier, title, columns, rows))


def _live_row(one: SavedLiveCache) -> list[Cell]:
    head = [
        cell(amount(one.budget_bytes, "bytes"), one.budget_bytes),
        cell(code(one.eviction), one.eviction),
        cell(percent(one.alone_hit_ratio), one.alone_hit_ratio),
    ]
    if one.live_hit_ratio is None:
        return [*head, *(cell("–", quiet=True) for _ in range(4))]
    change = one.live_hit_ratio - one.alone_hit_ratio
    return [
        *head,
        cell(percent(one.live_hit_ratio), one.live_hit_ratio),
        cell(join(points(change)), change),
        cell("–" if one.mean_running is None else f"{one.mean_running:.1f}", one.mean_running),
        cell(count(one.preemptions), one.preemptions, quiet=not one.preemptions),
    ]
