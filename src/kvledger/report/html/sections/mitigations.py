"""What the usual mitigations do to each waste, and what they cost; and what-ifs of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvledger.ledger import Account
from kvledger.replay.outcome import is_held_up
from kvledger.report.html.figures import count, duration, percent, points
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element
from kvledger.report.html.saved import SavedMitigation, SavedPolicy, SavedReplay
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import account_name, both, code, told

__all__ = ["mitigations_section", "what_if_section"]

_SHOWN = (Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.USED)
_BETTER = {Account.USED: 1.0}


def mitigations_section(run: int, result: SavedReplay, *, name: str | None) -> Markup:
    """Return the mitigation tables of one run."""
    known = {p.policy: p for p in result.policies}
    tables = [
        _table(f"mitigations-{run}-{number}", known[name], rows)
        for number, (name, rows) in enumerate(result.mitigations.items())
        if name in known and rows
    ]
    if not tables:
        return Markup("")
    return section(f"mitigations-{run}", both("mitigations.title"), None, *tables, run=name)


def _table(identifier: str, before: SavedPolicy, rows: Sequence[SavedMitigation]) -> Markup:
    columns = [
        Column(title=both("mitigations.change"), text=True),
        *(Column(title=account_name(a), accuracy="derived", formula="formula.effect", swatch=str(a)) for a in _SHOWN),
        Column(title=both("balance.running"), accuracy="derived", formula="formula.running"),
        Column(title=both("mitigations.price"), prose=True),
    ]
    held_up = is_held_up(saturated_seconds=before.saturated_seconds, busy_seconds=before.busy_seconds)
    ratio = before.saturated_ratio if held_up else before.mean_ratio
    running = before.saturated_running if held_up else before.mean_running
    first = [
        cell(both("mitigations.asis"), "as it is"),
        *(cell(percent(ratio.get(a, 0.0)), ratio.get(a, 0.0)) for a in _SHOWN),
        cell(f"{running:.1f}", running),
        cell(""),
    ]
    body = [first, *(_row(row) for row in rows)]
    note = both("mitigations.note", policy=code(before.policy))
    grid = table(identifier, both("mitigations.title"), columns, body)
    return subsection(identifier, code(before.policy), note, grid)


def _row(row: SavedMitigation) -> list[Cell]:
    running = row.saturated_running or row.mean_running
    return [
        cell(told(row.change), row.change),
        *(_change(a, row.effect.get(a, 0.0)) for a in _SHOWN),
        cell(f"{running:.1f}", running),
        cell(told(row.price), row.price),
    ]


def _change(account: Account, effect: float) -> Cell:
    """Return a change in points; whether it is for the better is said by weight as well as by colour."""
    gain = effect * _BETTER.get(account, -1.0)
    kind = "better" if gain >= 0.005 else "worse" if gain <= -0.005 else "same"
    return cell(element("span", points(effect), class_=kind), effect)


def what_if_section(run: int, result: SavedReplay, *, name: str | None) -> Markup:
    """Return what changing one setting would do."""
    found = result.what_ifs
    changes = found.get("changes") if found else None
    if not found or not isinstance(changes, list):
        return Markup("")
    columns = [
        Column(title=both("mitigations.change"), text=True),
        *(Column(title=account_name(a), accuracy="derived", formula="formula.effect", swatch=str(a)) for a in _SHOWN),
        Column(title=both("balance.running"), accuracy="derived", formula="formula.running"),
        Column(title=both("whatif.capacity"), accuracy="derived", formula="formula.pool"),
        Column(title=both("requests.end"), accuracy="modelled", formula="formula.seconds"),
        Column(title=both("mitigations.price"), prose=True),
    ]
    rows = [_what_if(change) for change in changes if isinstance(change, dict)]
    identifier = f"whatif-{run}"
    grid = table(f"{identifier}-table", both("whatif.title"), columns, rows)
    sentence = element("p", told(str(found.get("sentence", ""))), class_="sentence")
    title = element("span", both("whatif.title"), id=f"{identifier}-table-title")
    return section(
        identifier, title, both("whatif.note", policy=code(str(found.get("policy")))), sentence, grid, run=name
    )


def _what_if(change: dict[str, Any]) -> list[Cell]:
    effect = change.get("effect")
    effects = effect if isinstance(effect, dict) else {}
    running, capacity, end = (_number(change.get(n)) for n in ("mean_running", "capacity_tokens", "end_to_end_seconds"))
    name, price = str(change.get("change", "")), str(change.get("price", ""))
    return [
        cell(told(name), name),
        *(_change(a, _number(effects.get(str(a))) or 0.0) for a in _SHOWN),
        cell("–" if running is None else f"{running:.1f}", running),
        cell(count(capacity), capacity),
        cell(duration(end), end),
        cell(told(price), price),
    ]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
