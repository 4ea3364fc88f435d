"""JSON Schemas of what ``--json`` prints, made from the tables of fields in the documentation (``docs/json.md``).

A row of a table is a path, a unit and a meaning; together they say what a value is::

    trace.dropped.{reason}     count     whole numbers by names that the data chooses
    live[].live_hit_ratio      ratio     a number, or null where the meaning says when
    prefix.hit_tokens          tokens    `null (the object)`: then all of `prefix` is null

No name is allowed that no table has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvledger.errors import UsageError
from kvledger.ledger import Account

__all__ = ["SCHEMAS", "Field", "make_schema", "read_fields"]

SCHEMAS: dict[str, tuple[str, ...]] = {
    "cache": ("cache",),
    "catalogue": ("catalogue",),
    "check": ("check",),
    "doctor": ("doctor",),
    "error": ("error",),
    "explain": ("explain",),
    "inside": ("inside",),
    "measure": ("measure", "findings"),
    "measure-log": ("measure-log", "findings"),
    "prove": ("prove",),
    "replay": (
        "replay",
        "replay with fit and try",
        "replay with answers and swapping",
        "replay with layout",
        "replay with two pools",
        "findings",
    ),
    "sharing": ("demo sharing",),
    "size": ("size", "findings"),
    "sweep": ("sweep",),
    "trace": ("trace",),
    "watch": ("watch", "reading"),
    "watch-pool": ("watch-pool", "moment"),
}
"""The tables that make up each schema."""
_WHOLE = {
    "blocks", "by `unit`", "bytes", "count", "index", "layers", "lines", "ranks", "replicas", "requests", "stages",
    "steps", "tokens", "units",
}  # fmt: skip
_MARK = re.compile(
    r"<!-- fields: (?P<name>[^>]+?) -->\n(?P<rest>.*?)(?=^## |^<!-- fields: |\Z)", re.DOTALL | re.MULTILINE
)
_CELL = re.compile(r"(?<!\\)\|")
_SAME = re.compile(r"the fields of `(?P<path>[^`]+)`")
_QUOTED = re.compile(r"`([^`]+)`")
_MEAN = re.compile(r"\bmean\b|\bfraction\b")
_TABLE = re.compile(r"the fields of the table `(?P<name>[^`]+)`")
_STATISTIC = "{statistic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of a table."""

    path: str
    unit: str
    meaning: str


@dataclass(slots=True)
class _Node:
    """A value of which other fields are parts, or a field itself."""

    properties: dict[str, _Node] = field(default_factory=dict)
    named: _Node | None = None
    """What stands under names that the data chooses."""
    names: str = ""
    items: _Node | None = None
    is_null: bool = False
    row: Field | None = None


def read_fields(text: str) -> dict[str, list[Field]]:
    """Return the rows of every table of the documentation, by the table's name."""
    return {match["name"]: list(_rows(match["rest"])) for match in _MARK.finditer(text)}


def make_schema(name: str, tables: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """Return one JSON Schema (draft 2020-12).

    Raises:
        UsageError: There is no schema of that name.
    """
    if name not in SCHEMAS:
        raise UsageError(f"there is no schema `{name[:40]}`", hint=f"the schemas are {', '.join(SCHEMAS)}")
    root = _grow([row for table in SCHEMAS[name] for row in tables[table]], tables)
    found = _schema(root)
    required = [one for one in ("schema", "schema_version") if one in root.properties]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"kvledger/{name}",
        "title": f"What kvledger prints as `kvledger/{name}`",
        **found,
        **({"required": required} if required else {}),
    }


def _rows(text: str) -> Iterator[Field]:
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]]
        if cells[0] == "field":
            columns = cells
        elif cells[0].startswith("`"):
            row = dict(zip(columns, cells))
            yield Field(path=cells[0].strip("`"), unit=row.get("unit", ""), meaning=row["meaning"])


def _grow(rows: Sequence[Field], tables: Mapping[str, Sequence[Field]]) -> _Node:
    root = _Node()
    for row in rows:
        _add(root, row)
    for row in rows:
        if table := _TABLE.match(row.meaning):
            _share(_grow(tables[table["name"]], tables), _find(root, row.path))
        elif same := _SAME.match(row.meaning):
            _share(_find(root, same["path"]), _find(root, row.path))
    return root


def _add(root: _Node, row: Field) -> None:
    node, last = root, root
    for part in row.path.split("."):
        last = node
        node = _step(node, part)
    node.row = row
    if "null (the object)" in row.meaning:
        last.is_null = True
    elif re.search(r"\bnull\b", row.meaning):
        _find(root, row.path.removesuffix("[]")).is_null = True  # of a list, not of its elements


def _step(node: _Node, part: str) -> _Node:
    """Go to a part of a value; an element of a list for each ``[]`` behind it."""
    name = part.rstrip("[]")
    if name.startswith("{"):
        node.names = name.strip("{}")
        node.named = node = node.named or _Node()
    else:
        node = node.properties.setdefault(name, _Node())
    for _ in range(part.count("[]")):
        node.items = node = node.items or _Node()
    return node


def _find(root: _Node, path: str) -> _Node:
    for part in path.split("."):
        root = _step(root, part)
    return root


def _share(source: _Node, target: _Node) -> None:
    target.properties, target.named, target.items = source.properties, source.named, source.items
    target.names = source.names


def _schema(node: _Node) -> dict[str, Any]:
    if node.items is not None:
        found: dict[str, Any] = {"type": "array", "items": _schema(node.items)}
    elif node.properties or node.named is not None:
        found = _object(node)
    elif node.row is not None:
        found = _value(node.row)
    else:
        found = {}
    if node.row is not None and node.row.meaning:
        found["description"] = node.row.meaning
    if node.is_null and found.get("type"):
        found["type"] = [found["type"], "null"] if isinstance(found["type"], str) else [*found["type"], "null"]
    return found


def _object(node: _Node) -> dict[str, Any]:
    properties = {name: _schema(child) for name, child in node.properties.items()}
    rest: dict[str, Any] | bool = False
    if node.named is not None:
        if node.names in ("account", "account_bytes"):
            ending = node.names.removeprefix("account")
            properties |= {f"{account.value}{ending}": _schema(node.named) for account in Account}
        else:
            rest = _schema(node.named)
    return {"type": "object", "properties": properties, "additionalProperties": rest}


def _value(row: Field) -> dict[str, Any]:
    name = row.path.rpartition(".")[2].removesuffix("[]")
    if name == "schema":
        return {"type": "string", "const": row.meaning.strip("`")}
    if name == "schema_version":
        return {"type": "integer", "const": int(row.meaning)}
    if not row.unit:
        return {"type": "boolean"} if row.meaning.startswith("whether") else {"type": "string"}
    if row.unit == "any":
        return {}
    is_whole = row.unit in _WHOLE and name != _STATISTIC and not _MEAN.search(f"{name.replace('_', ' ')} {row.meaning}")
    return {"type": "integer" if is_whole else "number"}
