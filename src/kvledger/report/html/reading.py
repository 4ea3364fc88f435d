"""From the bytes of a saved result to a run that a page can be made of; the file may come from anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kvledger.errors import SourceError
from kvledger.ledger import Account
from kvledger.report.html.clean import clean_text, clean_value
from kvledger.report.html.saved import Ratios, SavedLayout, SavedPoint, SavedReplay
from kvledger.report.html.saved_measure import SavedMeasure, SavedSheet

__all__ = ["Run", "read_run", "run_of"]

_MOST_BYTES = 256 * 2**20
_MOST_BOOKS = 64
_MOST_PIECES = 4_096
_MOST_LAYOUTS = 8
_TOLERANCE = 1e-6
_SCHEMAS: Mapping[str, type[SavedReplay] | type[SavedMeasure]] = {
    "kvledger/replay": SavedReplay,
    "kvledger/measure": SavedMeasure,
}
_HINT = "give what `kvledger replay --json`, `kvledger demo --json` or `kvledger measure --json` wrote, or a recording"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One result, and what to call it."""

    name: str
    result: SavedReplay | SavedMeasure


def read_run(content: bytes, *, name: str) -> Run:
    """Read a saved result.

    Raises:
        SourceError: It is no such result, is damaged, or its accounts do not sum to the pool.
    """
    if len(content) > _MOST_BYTES:
        raise SourceError(
            f"`{name}` has {len(content):,} bytes, more than the {_MOST_BYTES:,} that are read", hint=_HINT
        )
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"`{name}` is not JSON: {error}", hint=_HINT) from None
    if not isinstance(value, dict):
        raise SourceError(f"`{name}` is not the result of a command, which is a JSON object", hint=_HINT)
    return run_of(value, name=name)


def run_of(value: Mapping[str, Any], *, name: str) -> Run:
    """Return the run of a result that is decoded already.

    Raises:
        SourceError: It is not the result of a command, or its accounts do not sum to the pool.
    """
    schema = value.get("schema")
    kind = _SCHEMAS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        known = " or ".join(_SCHEMAS)
        found = "has no `schema`" if schema is None else f"has the schema `{clean_text(str(schema), longest=60)}`"
        raise SourceError(f"`{name}` {found}, not {known}", hint=_HINT)
    if value.get("schema_version") != 1:
        raise SourceError(
            f"`{name}` has version {str(value.get('schema_version'))[:20]} of {schema}; this kvledger reads version 1",
            hint="update kvledger, or run the command again",
        )
    try:
        result = msgspec.convert(clean_value(value), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise SourceError(f"`{name}` is damaged: {error}", hint="run the command that wrote it again") from None
    _check(result, name)
    return Run(name=clean_text(name, longest=120), result=result)


def _check(result: SavedReplay | SavedMeasure, name: str) -> None:
    if isinstance(result, SavedReplay):
        for policy in result.policies:
            for layout in policy.layouts[:_MOST_LAYOUTS]:
                _check_layout(layout, policy.capacity_bytes, f"`{name}`, `{policy.policy}`")
        books: list[tuple[str, int, tuple[Ratios, ...], list[SavedPoint]]]
        books = [(p.policy, p.capacity_bytes, (p.mean_ratio, p.saturated_ratio), p.timeline) for p in result.policies]
    else:
        for source in result.sources:
            for engine in (*source.engines, *source.pools):
                for reading in (engine.last, engine.peak):
                    if reading is not None and reading.ledger is not None:
                        _check_sheet(reading.ledger, f"`{name}`, engine {engine.engine}")
        books = [
            (f"engine {e.engine} of {s.name}", 1, (_known(e.mean_ratio),), e.timeline)
            for s in result.sources
            for e in (*s.engines, *s.pools)
        ]
    if not 1 <= len(books) <= _MOST_BOOKS:
        raise SourceError(f"`{name}` has {len(books):,} policies or engines, not from 1 to {_MOST_BOOKS}")
    for book, capacity, means, timeline in books:
        if not 0 < capacity <= 2**60:
            raise SourceError(f"`{name}` is damaged: the pool of `{book}` has {capacity} bytes")
        for ratios in means:
            _check_ratios(ratios, f"`{name}`, `{book}`")
        _check_timeline(timeline, f"`{name}`, `{book}`")


def _check_layout(layout: SavedLayout, capacity: int, where: str) -> None:
    """Refuse a map whose accounts do not sum to the pool, or whose columns are no map of it."""
    total = sum(layout.accounts_bytes.values())
    if total != capacity or any(value < 0 for value in layout.accounts_bytes.values()):
        raise SourceError(f"{where}: the books do not balance, the accounts of a map sum to {total}, not {capacity}")
    columns: list[list[int]] = []
    if layout.pieces is not None:
        p = layout.pieces
        columns = [p.request, p.start_bytes, p.end_bytes, p.size_bytes, p.used_bytes, p.reserved_bytes]
    if layout.blocks is not None:
        b = layout.blocks
        columns = [b.held_bytes, b.used_bytes, b.cached_bytes, b.shared_blocks]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or min(lengths) > _MOST_PIECES or any(not 0 <= n <= 2**60 for c in columns for n in c):
        raise SourceError(f"{where} is damaged: its map has columns of {sorted(lengths)} numbers")


def _check_sheet(sheet: SavedSheet, where: str) -> None:
    """Refuse a ledger whose accounts do not sum to the pool, or whose bounds are none."""
    accounts, capacity = sheet.accounts, sheet.capacity
    if sum(accounts.values()) != capacity or not 0 < capacity <= 2**60 or min(accounts.values(), default=0) < 0:
        total = sum(accounts.values())
        raise SourceError(f"{where}: the books do not balance, the accounts sum to {total} of a pool of {capacity}")
    for figure in sheet.figures:
        if not 0 <= figure.low <= (2**62 if figure.high is None else figure.high) <= 2**62:
            raise SourceError(f"{where} is damaged: `{figure.name}` is from {figure.low} to {figure.high}")


def _known(ratios: Mapping[str, float | None]) -> dict[str, float]:
    return {account: 0.0 if ratio is None else ratio for account, ratio in ratios.items()}


def _check_ratios(ratios: Mapping[str, float], where: str) -> None:
    """Refuse shares that are no partition: they sum to 1, or are all 0 where there was nothing to share."""
    unknown = set(ratios) - {str(account) for account in Account}
    if unknown:
        raise SourceError(f"{where} has the account `{clean_text(min(unknown), longest=40)}`, which does not exist")
    total = math.fsum(ratios.values())
    whole = abs(total - 1) <= _TOLERANCE or not any(ratios.values())
    if not whole or any(not -_TOLERANCE <= r <= 1 + _TOLERANCE for r in ratios.values()):
        raise SourceError(
            f"{where}: the books do not balance, the accounts sum to {total:.6f} of the pool",
            hint="the file was changed or damaged; run the command that wrote it again",
        )


def _check_timeline(timeline: list[SavedPoint], where: str) -> None:
    before = -math.inf
    for point in timeline:
        _check_ratios(point.ratio, where)
        numbers = (point.start_seconds, point.seconds, point.running or 0.0, point.waiting or 0.0)
        if point.start_seconds < before or not all(0 <= n < 1e15 for n in numbers):
            raise SourceError(f"{where} is damaged: its timeline does not go on at {point.start_seconds:g} s")
        before = point.start_seconds
