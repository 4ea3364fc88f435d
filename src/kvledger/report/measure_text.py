"""A measurement as text: the verdict, the balance sheet, what reservation would hold, and how each number is known."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from kvledger.measure.counterfactual import Counterfactual
from kvledger.measure.meter import Reading
from kvledger.measure.pool import Structure
from kvledger.measure.sheet import Sheet
from kvledger.measure.summary import EngineSummary, Traffic
from kvledger.report.findings import findings_sections
from kvledger.report.measure import MeasureReport, SourceReport
from kvledger.report.measure_pools import pool_text
from kvledger.report.measure_sheet import format_span, sheet_table, unattributed_table
from kvledger.report.tables import heading, new_table
from kvledger.units import agree, counted, percent, percents

__all__ = ["measure_text"]


def measure_text(report: MeasureReport) -> RenderableType:
    """Return a measurement for the terminal."""
    parts: list[RenderableType] = []
    several = report.has_several
    for source in report.sources:
        for engine in source.engines:
            parts += _engine(source, engine, several=several)
        for pool in source.pools:
            parts += pool_text(source.name, pool, several=several)
        if source.missed:
            whose = f"{source.name}: " if len(report.sources) > 1 else ""
            parts.append(
                Text(f"\n{whose}{source.missed:,} of {counted(source.samples, 'sample')} failed: {source.last_error}")
            )
    parts += findings_sections(report.findings)
    if report.notes:
        parts.append(heading("notes"))
        parts += [Text(f"- {note}") for note in report.notes]
    return Group(*parts, Text())


def _engine(source: SourceReport, engine: EngineSummary, *, several: bool) -> list[RenderableType]:
    shown = engine.shown
    title = engine.model or "unknown model"
    if several:
        title = f"{source.name}, engine {engine.engine_index}: {title}"
    parts: list[RenderableType] = [heading(title, _load(engine, shown))]
    if shown.sheet is None or shown.balance is None or shown.shape is None:
        parts += [Text(f"\n{engine.verdict.sentence}", style="bold"), Text(engine.verdict.advice)]
        return parts
    parts.append(Text(f"\n{engine.verdict.sentence}", style="bold"))
    parts.append(Text(engine.verdict.advice))
    if engine.unread:
        parts.append(
            Text(
                f"{engine.unread:,} of {counted(engine.samples, 'sample')} {agree(engine.unread, 'has', 'have')} no "
                f"ledger: {engine.problem}"
            )
        )
    parts += [
        heading("the pool" + _moment(engine, shown)),
        sheet_table(shown.sheet, usage_ratio=shown.usage_ratio, gauge="of usable blocks"),
    ]
    if shown.sheet.unattributed:
        parts += [heading("unattributed"), unattributed_table(shown.sheet)]
    parts += [heading("tokens"), _tokens(engine, shown)]
    if engine.counterfactual is not None:
        parts += _counterfactual(engine.counterfactual, is_shown=engine.compared is shown)
    if engine.samples > 1:
        parts += [heading("traffic in the window"), _traffic(engine.traffic)]
    parts += [heading("how it is known"), _known(shown, shown.sheet)]
    return parts


def _moment(engine: EngineSummary, shown: Reading) -> str:
    """Say which sample a sheet is of, where there are several."""
    if shown is not engine.last:
        return ", at its fullest"
    return ", at the last sample" if engine.samples > 1 else ""


def _load(engine: EngineSummary, shown: Reading) -> str:
    running, waiting = ("?" if count is None else str(count) for count in (shown.running, shown.waiting))
    load = f"{running} running, {waiting} waiting"
    if engine.samples > 1:
        load += f"; {counted(engine.samples, 'sample')} over {engine.traffic.seconds:,.0f} s"
    if engine.restarts:
        load += f"; {engine.restarts} restart{'s' if engine.restarts > 1 else ''} seen"
    return load


def _tokens(engine: EngineSummary, shown: Reading) -> RenderableType:
    balance, shape = shown.balance, shown.shape
    assert balance is not None
    assert shape is not None
    table = new_table("", "tokens", price=True)
    table.columns[2].header = ""
    if balance.live is not None:
        table.add_row("live", format_span(balance.live, "tokens"), "prompt and output of requests that emitted one")
    table.add_row(
        "held", f"{balance.held:,}", f"{counted(balance.held // shape.block_tokens, 'block')} of {shape.block_tokens}"
    )
    in_slots = shape.structure is not Structure.GROUPS
    if in_slots:
        table.add_row("used", format_span(balance.used, "tokens"), "stored, a shared block once")
        table.add_row("internal", format_span(balance.internal, "tokens"), "tails of blocks")
    if in_slots and balance.shared_saving.high:
        table.add_row("saved by sharing", format_span(balance.shared_saving, "tokens"), "stored once, used by several")
    for name, span in (("preempted", balance.preempted), ("in prefill", balance.prefilling)):
        if span.high:
            table.add_row(name, format_span(span, "tokens"), "requests")
    if engine.internal_per_request_tokens is not None:
        low, high = engine.internal_per_request_tokens
        text = f"{low:.1f}" if high - low < 0.05 else f"{low:.1f} - {high:.1f}"
        table.add_row("internal per request", text, "mean of the window" if engine.samples > 1 else "")
    return table


def _counterfactual(found: Counterfactual, *, is_shown: bool) -> list[RenderableType]:
    table = new_table("reservation", "would hold", "of it used", "admits", "known")
    for item in (*found.alternatives, found.block_tables):
        table.add_row(
            item.policy,
            format_span(item.reserved_tokens, "tokens"),
            percents(*item.used_ratio, between=" - "),
            format_span(item.admitted, "tokens"),
            str(item.accuracy),
        )
    requests = counted(found.running, "request")
    who = f"the same {requests}" if is_shown else f"the {requests} of the fullest sample"
    lines: list[RenderableType] = [heading(f"{who} under reservation", "tokens"), table]
    if found.times_more is not None:
        lines.append(Text(f"block tables admit {found.times_more:.1f} times the requests that `max` admits"))
    if found.reservation_usable_ratio is not None and found.product_ratio is not None:
        low, high = found.product_ratio
        lines.append(
            Text(
                f"under `max`: {percent(found.reservation_usable_ratio)} of a reservation is used (derived); rounding "
                f"leaves about 90 % of that and holes 80 to 90 % (modelled): {percents(low, high)} "
                "of the pool"
            )
        )
    lines += [Text(missing) for missing in found.missing]
    return lines


def _traffic(traffic: Traffic) -> RenderableType:
    table = new_table("", "")
    rows = [
        ("requests ended", traffic.finished, "{:,}"),
        ("requests ended per second", traffic.finished_per_second, "{:.2f}"),
        ("prompt tokens", traffic.prompt_tokens, "{:,}"),
        ("generated tokens", traffic.generated_tokens, "{:,}"),
        ("preemptions", traffic.preemptions, "{:,}"),
        ("prefix cache hits", None if traffic.hit_ratio is None else percent(traffic.hit_ratio), "{}"),
        ("seconds between tokens", traffic.mean_step_seconds, "{:.4f}"),
    ]
    for name, value, form in rows:
        if value is not None:
            table.add_row(name, form.format(value))
    return table


def _known(shown: Reading, sheet: Sheet) -> RenderableType:
    assert shown.shape is not None
    lines = [f"{figure.name} = {figure.formula}" for figure in sheet.figures if figure.name in ("live", "held", "used")]
    lines.append(f"structure: {shown.shape.structure_source}")
    pricing = shown.shape.pricing
    lines.append(f"bytes: {pricing.source}" if pricing else "bytes: not known, so the sheet is in token slots")
    return Text("\n".join(lines))
