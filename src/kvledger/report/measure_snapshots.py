"""Sheets of engines that tell their pool themselves, as text and as the object of ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvledger.measure.snapshots import SnapshotSheet
from kvledger.report.measure_json import sheet_json
from kvledger.report.measure_text import sheet_table, unattributed_table
from kvledger.report.tables import heading

__all__ = ["snapshots_json", "snapshots_text"]


def snapshots_text(sheets: Sequence[SnapshotSheet]) -> RenderableType:
    """Return the sheets for the terminal."""
    parts: list[RenderableType] = []
    for one in sheets:
        pool = f", pool `{one.pool}`" if one.pool != "kv" else ""
        running = "?" if one.running is None else f"{one.running:,}"
        waiting = "?" if one.waiting is None else f"{one.waiting:,}"
        parts.append(heading(f"{one.model or one.engine}{pool}", f"{one.engine}: {running} running, {waiting} waiting"))
        if one.sheet is None:
            parts.append(Text(f"no ledger: {one.problem}"))
            continue
        parts.append(sheet_table(one.sheet, usage_ratio=None))
        if one.sheet.unattributed:
            parts += [heading("unattributed"), unattributed_table(one.sheet)]
    return Group(*parts, Text())


def snapshots_json(sheets: Sequence[SnapshotSheet]) -> dict[str, Any]:
    """Return the object of the sheets."""
    return {
        "schema": "kvledger/measure-snapshot",
        "schema_version": 1,
        "pools": [
            {
                "engine": one.engine.value,
                "engine_index": one.engine_index,
                "model": one.model,
                "pool": one.pool,
                "running": one.running,
                "waiting": one.waiting,
                "problem": one.problem or None,
                "ledger": None if one.sheet is None else sheet_json(one.sheet),
            }
            for one in sheets
        ],
    }
