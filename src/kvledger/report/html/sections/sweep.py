"""The rows of a grid: which waste least and wait least, what each setting does, and all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvledger.report.html.figures import amount, count, duration, percent
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_sweep import SavedDemand, SavedName, SavedRow, SavedRowFailure, SavedSweep, Setting
from kvledger.report.html.sections.sweep_pictures import scatter, setting_table
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, code, prose

__all__ = ["MOST_ROWS", "sweep_facts", "sweep_sections", "sweep_shown"]

MOST_ROWS = 400
_MOST_DEMANDS = 12
_MOST_FRONT = 30
_MOST_FAILURES = 50
_MOST_OPEN = 40
_BEST = ("wasted_bytes", "queue_p99_seconds", "first_token_p99_seconds", "output_tokens_per_second")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """One demand with its rows: all of them, those that serve the most of it, and those that none of these beats."""

    demand: SavedDemand
    whole: Sequence[SavedRow]
    front: Sequence[SavedRow]
    settings: Sequence[str]


def sweep_facts(result: SavedSweep) -> list[Markup]:
    """Return what was swept, as the facts above the answer."""
    facts = [
        element("bdi", result.grid),
        both("sweep.cells", count=count(result.cells)),
        both("sweep.rows", count=count(len(result.rows))),
    ]
    return [*facts, Markup(", ".join(code(name) for name in result.varying))] if result.varying else facts


def sweep_shown(result: SavedSweep) -> list[SavedRow]:
    """Return the rows that stand on the page, those that nothing beats first."""
    front = {(name.cell, name.policy) for demand in result.demands for name in demand.pareto}
    return sorted(result.rows, key=lambda row: (row.cell, row.policy) not in front)[:MOST_ROWS]


def sweep_sections(run: int, result: SavedSweep, *, name: str | None) -> list[Markup]:
    """Return the sections of one sweep."""
    found = list(_served(result))
    parts = [part for number, one in enumerate(found) for part in _demand(f"{run}-{number}", one)]
    if more := len(result.demands) - len(found):
        parts.append(element("p", both("sweep.demands", count=count(more)), class_="note"))
    sections = [section(f"trade-{run}", both("sweep.title"), both("sweep.note"), *parts, run=name)]
    if result.rows:
        sections.append(section(f"grid-{run}", both("sweep.grid"), both("sweep.grid.note"), _grid(run, result)))
    if result.failures:
        sections.append(_failures(run, result))
    return sections


def _served(result: SavedSweep) -> Iterator[_Served]:
    by_name = {(row.cell, row.policy): row for row in result.rows}
    for demand in result.demands[:_MOST_DEMANDS]:
        rows = [row for row in result.rows if all(row.values.get(n) == v for n, v in demand.values.items())]
        able = [row for row in rows if row.queue_p99_seconds is not None]
        least = min((row.rejected + row.truncated for row in able), default=0)
        yield _Served(
            demand=demand,
            whole=[row for row in able if row.rejected + row.truncated == least],
            front=[by_name[key] for one in demand.pareto if (key := (one.cell, one.policy)) in by_name],
            settings=[n for n in result.varying if n not in demand.values and n != "policy"],
        )


def _demand(identifier: str, served: _Served) -> Iterator[Markup]:
    demand = served.demand
    if demand.values:
        yield element(
            "h3", Markup(", ".join(f"{code(n)} {_written(v)}" for n, v in demand.values.items())), class_="demand"
        )
    if not served.front:
        yield element("p", both("sweep.nothing"), class_="sentence")
        return
    yield scatter(served.whole, served.front[:_MOST_FRONT])
    left_out = both("sweep.left", count=count(demand.left_out)) if demand.left_out else None
    note = join(both("sweep.front.note", count=count(demand.rows)), " ", left_out)
    front = _rows(f"front-{identifier}", served.front[:_MOST_FRONT], served.settings, numbered=True)
    yield subsection(f"front-{identifier}", both("sweep.front"), note, front)
    yield subsection(f"best-{identifier}", both("sweep.best"), None, _best(f"best-{identifier}", served))
    drawn = [
        setting_table(f"axis-{identifier}-{number}", setting, served.whole, written=_written)
        for number, setting in enumerate(("policy", *served.settings))
        if 2 <= len({str(_value(row, setting)) for row in served.whole}) <= 24
    ]
    if drawn:
        yield element("p", both("sweep.axes"), class_="note axes")
        yield from drawn


def _value(row: SavedRow, setting: str) -> Setting:
    return row.policy if setting == "policy" else row.values.get(setting)


def _rows(identifier: str, rows: Sequence[SavedRow], settings: Sequence[str], *, numbered: bool) -> Markup:
    columns = [
        *([Column(title=both("sweep.number"))] if numbered else []),
        Column(title=both("balance.policy"), text=True),
        *(Column(title=code(name), text=False) for name in settings),
        Column(title=both("sweep.wasted"), accuracy="derived", formula="formula.wasted"),
        Column(title=both("sweep.ofpool"), accuracy="derived", formula="formula.wasted"),
        *(
            Column(title=both(f"sweep.{n}"), accuracy="modelled", formula="formula.seconds")
            for n in ("queue", "first", "speed")
        ),
        Column(title=both("balance.running"), accuracy="derived", formula="formula.running"),
        Column(title=both("requests.preempted"), accuracy="derived", formula="formula.count"),
        Column(title=both("sweep.unserved"), accuracy="derived", formula="formula.count"),
    ]
    body = []
    for number, row in enumerate(rows, start=1):
        cells = [cell(str(number), number)] if numbered else []
        cells += [cell(code(row.policy), row.policy)]
        cells += [cell(_written(row.values.get(name)), str(row.values.get(name))) for name in settings]
        body.append([*cells, *_figures(row)])
    return table(identifier, both("sweep.front" if numbered else "sweep.grid"), columns, body)


def _figures(row: SavedRow) -> list[Cell]:
    unserved = row.rejected + row.truncated
    speed = row.output_tokens_per_second
    return [
        cell(amount(row.wasted_bytes, "bytes"), row.wasted_bytes),
        cell(percent(row.wasted_ratio), row.wasted_ratio),
        cell(duration(row.queue_p99_seconds), row.queue_p99_seconds),
        cell(duration(row.first_token_p99_seconds), row.first_token_p99_seconds),
        cell(count(speed), speed),
        cell(f"{row.mean_running:.1f}", row.mean_running),
        cell(count(row.preemptions), row.preemptions, quiet=not row.preemptions),
        cell(count(unserved), unserved, quiet=not unserved),
    ]


def _best(identifier: str, served: _Served) -> Markup:
    by_name: Mapping[tuple[str, str], SavedRow] = {(row.cell, row.policy): row for row in served.whole}
    columns = [
        Column(title=both("sweep.figure"), text=True),
        Column(title=both("sweep.value")),
        Column(title=both("balance.policy"), text=True),
        *(Column(title=code(name)) for name in served.settings),
    ]
    body = []
    for figure in _BEST:
        name = served.demand.best.get(figure)
        row = by_name.get((name.cell, name.policy)) if isinstance(name, SavedName) else None
        if row is None:
            continue
        value = getattr(row, figure)
        settings = [cell(_written(row.values.get(n)), str(row.values.get(n))) for n in served.settings]
        body.append([cell(both(f"sweep.best.{figure}"), figure), cell(_best_value(figure, value), value),
                     cell(code(row.policy), row.policy), *settings])  # fmt: skip
    return table(identifier, both("sweep.best"), columns, body)


def _best_value(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    if figure.endswith("_bytes"):
        return amount(value, "bytes")
    return f"{value:,.0f}" if figure.endswith("_per_second") else duration(value)


def _grid(run: int, result: SavedSweep) -> Markup:
    rows = sweep_shown(result)
    settings = [name for name in result.varying if name != "policy"]
    title = element("summary", both("sweep.all", count=count(len(rows))), id=f"grid-{run}-table-title")
    cut = len(result.rows) - len(rows)
    note = element("p", both("sweep.cut", shown=count(len(rows)), rest=count(cut)), class_="note") if cut else None
    grid = _rows(f"grid-{run}-table", rows, settings, numbered=False)
    return element("details", title, grid, note, open=len(rows) <= _MOST_OPEN, class_="more")


def _failures(run: int, result: SavedSweep) -> Markup:
    columns = [
        Column(title=both("sweep.cell"), text=True),
        Column(title=both("balance.policy"), text=True),
        Column(title=both("sweep.why"), prose=True),
    ]
    body = []
    for failure in _every_reason_first(result.failures)[:_MOST_FAILURES]:
        values = Markup(", ".join(f"{code(n)} {_written(v)}" for n, v in failure.values.items()))
        policy = cell(code(failure.policy), failure.policy) if failure.policy else cell("–", quiet=True)
        body.append(
            [cell(values or code(failure.cell), failure.cell), policy, cell(prose(failure.message), failure.message)]
        )
    rest = len(result.failures) - len(body)
    note = element("p", both("findings.more", count=count(rest)), class_="note") if rest else None
    title = element("span", both("sweep.failures"), id=f"failures-{run}-table-title")
    grid = table(f"failures-{run}-table", both("sweep.failures"), columns, body)
    return section(f"failures-{run}", title, both("sweep.failures.note"), join(grid, note))


def _every_reason_first(failures: Sequence[SavedRowFailure]) -> list[SavedRowFailure]:
    """Return the failures with the first of every reason in front, so that no reason is cut off by many of another."""
    first = {failure.message: number for number, failure in reversed(list(enumerate(failures)))}
    return [one for _, one in sorted(enumerate(failures), key=lambda at: first[at[1].message] != at[0])]


def _written(value: Setting) -> Markup:
    """Write the value of a setting."""
    if isinstance(value, bool):
        return both("sweep.on" if value else "sweep.off")
    if isinstance(value, (int, float)):
        whole = float(value).is_integer() and abs(value) < 2**53
        return join(f"{int(value):,}" if whole else f"{value:g}")
    if value == "inf":
        return join("∞")
    return join("–") if value is None else code(value)
