"""A server against its limits: what was found, with its bounds, beside what was allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvledger.report.html.figures import count, percent
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_check import SavedCheck, SavedLimit
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, told

__all__ = ["check_answer", "check_notes", "check_section"]

_SIGNS = {"kept": "✓", "broken": "✗", "open": "?", "unknown": "–"}
_ORDER = ("broken", "open", "unknown", "kept")
_LEAST_WIDTH = 0.8


def check_answer(result: SavedCheck) -> tuple[Markup, Markup | None]:
    """Say whether all limits hold; what cannot be told is told second."""
    counts = {name: sum(limit.outcome == name for limit in result.limits) for name in _ORDER}
    total = count(len(result.limits))
    unsure = counts["open"] + counts["unknown"]
    doubt = both("check.unsure", count=count(unsure), total=total) if unsure else None
    if counts["broken"]:
        return both("check.broken", count=count(counts["broken"]), total=total), doubt
    if unsure:
        return both("check.none.broken"), doubt
    return both("check.kept.one") if len(result.limits) == 1 else both("check.kept", total=total), None


def check_section(run: int, result: SavedCheck) -> Markup:
    """Return the table of all limits, the broken ones first."""
    several = len({(limit.source, limit.engine, limit.pool) for limit in result.limits}) > 1
    columns = [
        Column(title=both("check.limit"), text=True),
        *([Column(title=both("check.server"), text=True)] if several else []),
        Column(title=both("check.outcome"), text=True, accuracy="derived", formula="formula.outcome"),
        Column(title=both("check.found"), accuracy="derived", formula="formula.found"),
        Column(title=both("check.bound")),
        Column(title=both("check.picture"), prose=True),
    ]
    ordered = sorted(result.limits, key=lambda one: _ORDER.index(one.outcome))
    rows = [_row(limit, several=several) for limit in ordered]
    title = both("check.title")
    identifier = f"limits-{run}"
    return section(identifier, title, both("check.note"), table(identifier, title, columns, rows), _reasons(ordered))


def check_notes(result: SavedCheck) -> Iterator[Markup]:
    """Yield what was assumed while measuring."""
    yield from (told(note) for note in result.notes)


def _row(limit: SavedLimit, *, several: bool) -> list[Cell]:
    outcome = join(element("b", _SIGNS[limit.outcome]), " ", both(f"check.{limit.outcome}.word"))
    kind = {"broken": "worse", "kept": "better"}.get(limit.outcome)
    whose = [cell(_whose(limit), f"{limit.source} {limit.engine or 0} {limit.pool or ''}".strip())] if several else []
    return [
        cell(join(both(f"check.{limit.limit}"), element("small", element("code", f"--{limit.limit}"))), limit.limit),
        *whose,
        cell(element("span", outcome, class_=kind), limit.outcome),
        cell(_found(limit), limit.high, quiet=limit.high is None),
        cell(_shown(limit, limit.bound), limit.bound),
        cell(_picture(limit)),
    ]


def _whose(limit: SavedLimit) -> Markup:
    engine = both("log.engine", index=count(limit.engine)) if limit.engine is not None else None
    pool = element("bdi", limit.pool) if limit.pool else None
    parts = [part for part in (engine, pool) if part]
    below = element("small", parts[0], *([", ", parts[1]] if parts[1:] else [])) if parts else None
    return join(element("bdi", limit.source), below)


def _found(limit: SavedLimit) -> Markup:
    if limit.low is None or limit.high is None:
        return both("check.untold")
    low, high = _shown(limit, limit.low), _shown(limit, limit.high)
    return join(low) if low == high else both("between", low=low, high=high)


def _shown(limit: SavedLimit, value: float) -> str:
    return count(value) if limit.is_count else percent(value)


def _picture(limit: SavedLimit) -> Markup:
    """Draw what was found as a band, and what was allowed as a line; the side that is not allowed is shaded."""
    whole = max(limit.bound, limit.high or 0.0, 1.0) * 1.1 if limit.is_count else 1.0
    bound = 100 * limit.bound / whole
    wrong = (0.0, bound) if limit.limit.startswith("min") else (bound, 100 - bound)
    shapes = [
        element("rect", x=0, y="44%", width="100%", height="12%", class_="axis"),
        element("rect", x=f"{wrong[0]:.2f}%", y="20%", width=f"{wrong[1]:.2f}%", height="60%", class_="band"),
    ]
    if limit.low is not None and limit.high is not None:
        left = min(100 - _LEAST_WIDTH, 100 * limit.low / whole)
        width = max(_LEAST_WIDTH, 100 * limit.high / whole - left)
        shapes.append(
            element("rect", x=f"{left:.2f}%", y="20%", width=f"{width:.2f}%", height="60%", class_=limit.outcome)
        )
    left = min(99.4, max(0.0, bound - 0.3))
    shapes.append(element("rect", x=f"{left:.2f}%", y=0, width="0.6%", height="100%", class_="bound"))
    return element("svg", *shapes, class_="strip limit", aria_hidden="true", focusable="false")


def _reasons(limits: Sequence[SavedLimit]) -> Markup:
    """Say once for each why a number is not known."""
    reasons = dict.fromkeys((limit.limit, limit.reason) for limit in limits if limit.reason)
    if not reasons:
        return Markup("")
    rows = [element("li", both(f"check.{name}"), ": ", told(reason or "")) for name, reason in reasons]
    return element("ul", *rows, class_="notes")
