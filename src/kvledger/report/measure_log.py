"""What a log alone tells, as text and as the object of ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvledger.engines.facts import Engine
from kvledger.engines.quantity import Quantity
from kvledger.findings.finding import FindingsReport
from kvledger.measure.log_check import LogCheck, LogLoad, LogPool
from kvledger.report.findings import findings_sections
from kvledger.report.findings_json import findings_json
from kvledger.report.tables import heading, new_table, percent
from kvledger.units import counted, format_bytes

__all__ = ["log_json", "log_text"]


def log_text(checks: Sequence[LogCheck], findings: FindingsReport | None = None) -> RenderableType:
    """Return the check of a log for the terminal."""
    parts: list[RenderableType] = []
    for check in checks:
        version = f" {check.version}" if check.version else ""
        where = f", engine {check.engine_index}" if len(checks) > 1 else ""
        parts.append(heading(f"{check.model or 'unknown model'}{where}", f"a log of {check.engine}{version}"))
        if check.load is not None:
            parts += [Text(f"\n{check.load.verdict.sentence}", style="bold"), Text(check.load.verdict.advice)]
        parts += [heading("the pool, from the start-up lines"), _pool(check)]
        if check.load is not None:
            parts += [heading("the load, from the periodic lines", _busiest(check.load)), _load(check.load)]
        elif check.preemptions is not None:
            parts.append(Text(f"\nlines about preemptions tell {check.preemptions:,} of them"))
        parts += [Text(f"\nthe engine says: {error}") for error in check.errors]
        parts += [Text(f"\n{note}") for note in check.notes]
    parts += findings_sections(findings)
    parts.append(Text("\nA log rounds and does not count tokens: measure the server's /metrics for the exact ledger\n"))
    return Group(*parts)


def log_json(checks: Sequence[LogCheck], findings: FindingsReport | None = None) -> dict[str, Any]:
    """Return the object of a log's check; every number is an interval."""
    return {
        "schema": "kvledger/measure-log",
        "schema_version": 1,
        "engines": [_object(check) for check in checks],
        "findings": findings_json(findings),
    }


def _where(check: LogCheck) -> str:
    """Say whose bytes these are: devices of llama.cpp share its cache, ranks of the others hold one each."""
    if check.engine in (Engine.LLAMACPP, Engine.OLLAMA):
        return "of all devices, rounded by the log"
    return "of the rank that has least, rounded by the log"


def _pool(check: LogCheck) -> RenderableType:
    table = new_table("", "", price=True)
    table.columns[2].header = ""
    rows = (
        ("tokens", check.tokens, check.tokens_source),
        ("blocks", check.blocks, ""),
        ("tokens a block", check.block_tokens, ""),
        ("longest request", check.max_model_len, "tokens"),
        ("concurrency", check.concurrency, "requests of the longest length, none shared"),
    )
    if check.size_bytes is not None:
        table.add_row("bytes", _bytes(check.size_bytes), _where(check))
    for name, quantity, note in rows:
        if quantity is not None:
            table.add_row(name, _number(quantity), note)
    for pool in check.pools:
        table.add_row(f"{pool.name} pool", *_part(pool))
    return table if table.row_count else Text("no line tells its size")


def _bytes(size: Quantity) -> str:
    """Write a size; one that was rounded to nothing as what it can be."""
    return format_bytes(size.value) if size.value or not size.high else f"up to {format_bytes(size.high)}"


def _part(pool: LogPool) -> tuple[str, str]:
    size = "not told" if pool.size_bytes is None else _bytes(pool.size_bytes)
    held = [(pool.tokens, "tokens"), (pool.slots, "sequences")]
    return size, ", ".join(f"{_number(count)} {name}" for count, name in held if count is not None)


def _busiest(load: LogLoad) -> str:
    return f"at the busiest of {counted(load.lines, 'line')}" if load.lines > 1 else "at the one line"


def _load(load: LogLoad) -> RenderableType:
    table = new_table("", "", price=True)
    table.show_header = False
    table.add_row("running", f"{load.running:,}", "")
    table.add_row("waiting", "not told" if load.waiting is None else f"{load.waiting:,}", "")
    table.add_row("held", _range(load.held_ratio), "measured, rounded by the log")
    if load.used_ratio is not None:
        table.add_row("used", _range(load.used_ratio), "derived: held less at most a tail for each running request")
    if load.reserved_ratio is not None:
        table.add_row("if reserved", percent(load.reserved_ratio), "derived: the longest length for each of them")
    table.add_row("held on average", percent(load.mean_held_ratio), "measured")
    table.add_row("preemptions", "not told" if load.preemptions is None else f"{load.preemptions:,}", "")
    return table


def _number(quantity: Quantity) -> str:
    return f"{quantity.value:,.2f}" if isinstance(quantity.value, float) else f"{quantity.value:,}"


def _range(ratio: tuple[float, float]) -> str:
    low, high = percent(ratio[0]), percent(ratio[1])
    return low if low == high else f"{low.removesuffix(' %')} - {high}"


def _object(check: LogCheck) -> dict[str, Any]:
    load = check.load
    return {
        "engine": check.engine.value,
        "engine_index": check.engine_index,
        "version": check.version,
        "model": check.model,
        "tokens": _interval(check.tokens),
        "tokens_source": check.tokens_source or None,
        "size_bytes": _interval(check.size_bytes),
        "blocks": _interval(check.blocks),
        "block_tokens": _interval(check.block_tokens),
        "max_model_len": _interval(check.max_model_len),
        "concurrency": _interval(check.concurrency),
        "pools": [
            {
                "name": pool.name,
                "size_bytes": _interval(pool.size_bytes),
                "tokens": _interval(pool.tokens),
                "slots": _interval(pool.slots),
            }
            for pool in check.pools
        ],
        "preemptions": check.preemptions,
        "errors": list(check.errors),
        "notes": list(check.notes),
        "load": None
        if load is None
        else {
            "lines": load.lines,
            "running": load.running,
            "waiting": load.waiting,
            "held_ratio": list(load.held_ratio),
            "used_ratio": None if load.used_ratio is None else list(load.used_ratio),
            "mean_held_ratio": load.mean_held_ratio,
            "reserved_ratio": load.reserved_ratio,
            "preemptions": load.preemptions,
            "verdict": {
                "diagnosis": load.verdict.diagnosis.value,
                "sentence": load.verdict.sentence,
                "advice": load.verdict.advice,
            },
        },
    }


def _interval(quantity: Quantity | None) -> dict[str, Any] | None:
    if quantity is None:
        return None
    return {"value": quantity.value, "low": quantity.low, "high": quantity.high, "accuracy": quantity.accuracy.value}
