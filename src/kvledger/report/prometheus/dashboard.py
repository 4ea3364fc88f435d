"""A Grafana dashboard as JSON (its schema version 36 and later): panels in, one object out, always the same bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvledger.ledger import Account
from kvledger.report.palette import PALETTE

__all__ = ["OPEN", "Dashboard", "Look", "Panel", "Query", "Variable", "find_names", "make_dashboard"]

OPEN = "free or cached"
"""What requests can take and no series tells apart; drawn between free and cached."""
_SCHEMA = 39
_COLUMNS = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NAME = re.compile(r"\bkvledger[_:]\w+")


class Look(StrEnum):
    """How a panel shows its numbers."""

    LINES = "timeseries"
    STACK = "stack"
    """Areas on each other, coloured by account."""
    NUMBER = "stat"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression, and how its series are named."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel; what its metrics mean becomes its description."""

    title: str
    queries: tuple[Query, ...]
    unit: str
    """Grafana's name of it: ``bytes``, ``short``, ``percentunit``, ``s``."""
    look: Look = Look.LINES
    width: int = 12
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One choice at the top of a dashboard: the values of a label of a metric."""

    label: str
    metric: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """What a dashboard shows."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


def find_names(text: str) -> list[str]:
    """Return the names of our metrics and records in an expression, each once."""
    return list(dict.fromkeys(_NAME.findall(text)))


def make_dashboard(dashboard: Dashboard, meanings: Mapping[str, str]) -> dict[str, Any]:
    """Return the object that Grafana imports.

    Args:
        dashboard: What it shows.
        meanings: What each metric means; a metric that is not among them is a `KeyError`.
    """
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["kvledger", "llm"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "schemaVersion": _SCHEMA,
        "templating": {"list": [_datasource(), *(_variable(one) for one in dashboard.variables)]},
        "panels": list(_panels(dashboard.panels, meanings)),
    }


def _datasource() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "type": "query",
        "name": variable.label,
        "label": variable.label,
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable.label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all", "selected": True},
    }


def _panels(panels: Sequence[Panel], meanings: Mapping[str, str]) -> list[dict[str, Any]]:
    found, x, y = [], 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        place = {"x": x, "y": y, "w": panel.width, "h": _HEIGHT}
        found.append(_panel(panel, meanings) | {"id": number, "gridPos": place})
        x += panel.width
    return found


def _panel(panel: Panel, meanings: Mapping[str, str]) -> dict[str, Any]:
    names = find_names(" ".join(query.expr for query in panel.queries))
    told = [f"{meanings[name].rstrip('.')}." for name in names]
    return {
        "type": Look.LINES.value if panel.look is Look.STACK else panel.look.value,
        "title": panel.title,
        "description": " ".join(dict.fromkeys([*([panel.note] if panel.note else []), *told])),
        "datasource": _SOURCE,
        "targets": [_target(number, query, panel.look) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel.look),
    }


def _target(number: int, query: Query, look: Look) -> dict[str, Any]:
    instant = look in (Look.NUMBER, Look.TABLE)
    return {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if look is Look.TABLE else "time_series",
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.look is Look.STACK:
        custom = {"drawStyle": "line", "fillOpacity": 80, "lineWidth": 0, "stacking": {"mode": "normal", "group": "A"}}
        return found | {"max": 1, "custom": custom}
    if panel.look is Look.LINES:
        return found | {"custom": {"drawStyle": "line", "fillOpacity": 0, "lineWidth": 1, "spanNulls": False}}
    return found


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    if panel.look is not Look.STACK:
        return [_override("low", "custom.lineStyle", {"fill": "dash", "dash": [6, 4]})]
    colors = {account.value: PALETTE[account].dark for account in Account} | {OPEN: PALETTE[Account.FREE].dark}
    return [_override(name, "color", {"mode": "fixed", "fixedColor": color}) for name, color in colors.items()]


def _override(ending: str, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what series have whose names end so."""
    matcher = {"id": "byRegexp", "options": f"/(^| ){ending}$/"}
    return {"matcher": matcher, "properties": [{"id": name, "value": dict(value)}]}


def _options(look: Look) -> dict[str, Any]:
    if look is Look.NUMBER:
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "auto"}
    if look is Look.TABLE:
        return {"showHeader": True}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "none"},
    }
