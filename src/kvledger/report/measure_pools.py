"""Pools of engines that tell them themselves (all but vLLM), as text and as objects of ``--json``."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kvledger.engines.facts import Engine, SlotReading
from kvledger.engines.quantity import Quantity
from kvledger.ledger import Account
from kvledger.measure.pool_meter import PoolKey, PoolMoment
from kvledger.measure.pool_summary import PoolSummary, PoolTraffic
from kvledger.measure.sheet import Sheet
from kvledger.measure.slots import Layout
from kvledger.report.measure_sheet import format_span, sheet_json, sheet_table, timeline_json, unattributed_table
from kvledger.report.tables import heading, new_table, percent
from kvledger.units import agree, counted

__all__ = ["moment_json", "name_pool", "pool_json", "pool_text"]

_LAYOUTS = {
    Layout.STRIPS: "each slot owns a strip of cells",
    Layout.SHARED: "all slots share the cells",
    Layout.UNKNOWN: "whether slots share the cells is not told",
}
_MOST_SLOTS = 64
_FIRST = ("kv", "full")
"""Pools that stand for their engine: its slots and its traffic are shown with them."""


def name_pool(key: PoolKey, *, several: bool) -> str:
    """Return what tells a pool from the others of its report."""
    parts = [f"engine {key.index}"] if several or key.index else []
    parts += [key.rank] if key.rank else []
    parts += [f"pool {key.pool}"] if key.pool != "kv" else []
    return ", ".join(parts)


def pool_text(source: str, summary: PoolSummary, *, several: bool) -> list[RenderableType]:
    """Return one pool for the terminal."""
    shown = summary.shown
    place = name_pool(summary.key, several=several)
    title = f"{summary.model or 'unknown model'}{f', {place}' if place else ''}"
    if several:
        title = f"{source}: {title}"
    parts: list[RenderableType] = [heading(title, _load(summary, shown))]
    parts += [Text(f"\n{summary.verdict.sentence}", style="bold"), Text(summary.verdict.advice)]
    if shown.sheet is None:
        return parts
    if summary.unread:
        parts.append(
            Text(
                f"{summary.unread:,} of {counted(summary.samples, 'sample')} {agree(summary.unread, 'has', 'have')} "
                f"no ledger: {summary.problem}"
            )
        )
    parts += [
        heading("the pool" + _moment(summary, shown)),
        sheet_table(shown.sheet, usage_ratio=shown.usage_ratio),
    ]
    if shown.sheet.unattributed:
        parts += [heading("unattributed"), unattributed_table(shown.sheet)]
    if shown.snapshot.slots and summary.key.pool in _FIRST:
        alone = len(shown.snapshot.slots) == 1
        layout = "the one slot owns all cells" if alone else _LAYOUTS[shown.layout or Layout.UNKNOWN]
        parts += [heading("slots", layout), _slots(shown)]
    if summary.samples > 1 and summary.key.pool in _FIRST:
        parts += [heading("traffic in the window"), _traffic(summary.traffic)]
    parts += [heading("how it is known"), _known(shown, shown.sheet)]
    return parts


def _moment(summary: PoolSummary, shown: PoolMoment) -> str:
    """Say which sample a sheet is of, where there are several."""
    if shown is not summary.last:
        return ", at its fullest"
    return ", at the last sample" if summary.samples > 1 else ""


def _load(summary: PoolSummary, shown: PoolMoment) -> str:
    name = _ENGINES.get(summary.key.engine, str(summary.key.engine))
    engine = name if shown.version is None else f"{name} {shown.version}"
    running = "?" if shown.running is None else f"{shown.running:,}"
    waiting = "waiting not told" if shown.waiting is None else f"{shown.waiting:,} waiting"
    load = f"{engine}: {running} running, {waiting}"
    if summary.samples > 1:
        load += f"; {counted(summary.samples, 'sample')} over {summary.traffic.seconds:,.0f} s"
    if summary.restarts:
        load += f"; {summary.restarts} restart{'s' * (summary.restarts > 1)} seen"
    return load


_ENGINES = {
    Engine.SGLANG: "SGLang",
    Engine.LLAMACPP: "llama.cpp",
    Engine.TGI: "TGI",
    Engine.TENSORRT_LLM: "TensorRT-LLM",
    Engine.LMDEPLOY: "LMDeploy",
    Engine.TRANSFORMERS: "Transformers",
}


def _slots(moment: PoolMoment) -> RenderableType:
    table = new_table("slot", "context", "tokens", "of it prompt", "generated", "state")
    for slot in moment.snapshot.slots[:_MOST_SLOTS]:
        busy = slot.is_processing
        table.add_row(
            str(slot.slot_id),
            _number(slot.capacity_tokens),
            _number(slot.tokens),
            _number(_prompt(slot)) if busy else "",
            _number(slot.decoded_tokens) if busy else "",
            "works" if busy else "keeps" if slot.tokens is None or slot.tokens.value else "empty",
        )
    return table


def _prompt(slot: SlotReading) -> Quantity | None:
    """Return the prompt tokens in a slot: before it generates, all it holds, as the server counts them afterwards."""
    told, decoded = slot.prompt_tokens, slot.decoded_tokens
    if slot.tokens is None or decoded is None or decoded.value:
        return told
    return slot.tokens if told is None or slot.tokens.value > told.value else told


def _traffic(traffic: PoolTraffic) -> RenderableType:
    table = new_table("", "")
    rows = [
        ("requests ended", traffic.finished, "{:,}"),
        ("prompt tokens", traffic.prompt_tokens, "{:,}"),
        ("prompt tokens found in the cache", traffic.cached_prompt_tokens, "{:,}"),
        ("generated tokens", traffic.generated_tokens, "{:,}"),
        ("preemptions", traffic.preemptions, "{:,}"),
        ("evicted tokens", traffic.evicted_tokens, "{:,}"),
    ]
    told = [(name, form.format(value)) for name, value, form in rows if value is not None]
    if traffic.reserved_used_ratio is not None:
        told.append(("generated, of the output reserved", percent(traffic.reserved_used_ratio)))
    for name, value in told or [("this engine counts no traffic here", "")]:
        table.add_row(name, value)
    return table


def _known(moment: PoolMoment, sheet: Sheet) -> RenderableType:
    names = ("held", "used", "cached", "reserved", "decode_tokens")
    lines = [
        f"{figure.name.replace('_', ' ')} = {figure.formula}"
        + (f" ({format_span(figure.span, sheet.unit)})" if figure.name == "decode_tokens" else "")
        for figure in sheet.figures
        if figure.name in names
    ]
    if moment.cells.source:
        lines.append(f"layout: {moment.cells.source}")
    if moment.price_source:
        lines.append(f"bytes: {moment.price_source}")
    elif sheet.unit != "bytes":
        lines.append(f"bytes: not known, so the sheet is in {'token slots' if sheet.unit == 'tokens' else sheet.unit}")
    return Text("\n".join(lines))


def _number(quantity: Quantity | None) -> str:
    return "?" if quantity is None else f"{int(quantity.value):,}"


def pool_json(summary: PoolSummary) -> dict[str, Any]:
    """Return the object of one pool; intervals are ``{"low": ..., "high": ...}``."""
    mean = summary.mean.mean_ratio() if summary.samples > summary.unread else None
    key, shares = summary.key, summary.shares
    return {
        "engine": key.engine.value,
        "engine_index": key.index,
        "rank": key.rank or None,
        "pool": key.pool,
        "model": summary.model,
        "version": summary.last.version,
        "samples": summary.samples,
        "unread": summary.unread,
        "problem": summary.problem or None,
        "restarts": summary.restarts,
        "verdict": {
            "diagnosis": summary.verdict.diagnosis.value,
            "sentence": summary.verdict.sentence,
            "advice": summary.verdict.advice,
        },
        "last": moment_json(summary.last),
        "peak": None if summary.peak is None else moment_json(summary.peak),
        "mean_ratio": {account.value: None if mean is None else mean[account] for account in Account},
        "busy_ratio": None
        if shares is None
        else {
            "held_of_pool": _pair(shares.held_of_pool),
            "used_of_pool": _pair(shares.used_of_pool),
            "internal_of_held": _pair(shares.internal_of_held),
            "reserved_of_held": _pair(shares.reserved_of_held),
            "peak_held_of_pool": _pair(shares.peak_held_of_pool),
        },
        "traffic": _traffic_json(summary.traffic),
        "timeline": timeline_json(summary.timeline),
    }


def moment_json(moment: PoolMoment) -> dict[str, Any]:
    """Return one moment of one pool: load, slots, ledger, figures."""
    return {
        "seconds": moment.seconds,
        "engine": moment.key.engine.value,
        "engine_index": moment.key.index,
        "rank": moment.key.rank or None,
        "pool": moment.key.pool,
        "epoch": moment.epoch,
        "running": moment.running,
        "waiting": moment.waiting,
        "max_running": moment.max_running,
        "usage_ratio": moment.usage_ratio,
        "preemptions": moment.preemptions,
        "problem": moment.problem or None,
        "layout": None if moment.layout is None else moment.layout.value,
        "layout_source": moment.cells.source or None,
        "bytes_source": moment.price_source or None,
        "slots": [_slot_json(slot) for slot in moment.snapshot.slots],
        "ledger": None if moment.sheet is None else sheet_json(moment.sheet),
    }


def _slot_json(slot: SlotReading) -> dict[str, Any]:
    return {
        "slot": slot.slot_id,
        "is_processing": slot.is_processing,
        "task": slot.task_id,
        "context_tokens": _value(slot.capacity_tokens),
        "tokens": _value(slot.tokens),
        "prompt_tokens": _value(slot.prompt_tokens),
        "reused_tokens": _value(slot.reused_tokens),
        "generated_tokens": _value(slot.decoded_tokens),
        "declared_tokens": _value(slot.declared_tokens),
    }


def _traffic_json(traffic: PoolTraffic) -> dict[str, Any]:
    return {
        "seconds": traffic.seconds,
        "finished": traffic.finished,
        "prompt_tokens": traffic.prompt_tokens,
        "cached_prompt_tokens": traffic.cached_prompt_tokens,
        "generated_tokens": traffic.generated_tokens,
        "preemptions": traffic.preemptions,
        "evicted_tokens": traffic.evicted_tokens,
        "reserved_used_ratio": traffic.reserved_used_ratio,
    }


def _pair(ratio: tuple[float, float]) -> dict[str, float]:
    return {"low": ratio[0], "high": ratio[1]}


def _value(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(quantity.value)
