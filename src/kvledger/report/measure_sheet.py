"""One balance sheet as a table and as an object, for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from kvledger.ledger import Account, Accuracy
from kvledger.measure.figure import Figure, Span
from kvledger.measure.sheet import Sheet
from kvledger.measure.timeline import Stretch
from kvledger.report.chips import account_chip
from kvledger.report.tables import new_table
from kvledger.units import format_bytes, percent, percents

__all__ = [
    "format_amount",
    "format_share",
    "format_span",
    "share_of",
    "sheet_json",
    "sheet_table",
    "span_json",
    "timeline_json",
    "unattributed_table",
]


def format_amount(amount: int, unit: str) -> str:
    """Write an amount of a ledger in its unit."""
    return format_bytes(amount) if unit == "bytes" else f"{amount:,}"


def format_span(span: Span, unit: str) -> str:
    """Write an interval; one number when it is none."""
    if span.is_exact:
        return format_amount(span.low, unit)
    if span.high >= 2**60:
        return f">= {format_amount(span.low, unit)}"
    return f"{format_amount(span.low, unit)} - {format_amount(span.high, unit)}"


def sheet_table(sheet: Sheet, *, usage_ratio: float | None, gauge: str = "measured") -> RenderableType:
    """Return a balance sheet: accounts, their share of the whole pool, and how each is known.

    ``gauge`` says how the engine's own gauge is known, and of what it is.
    """
    table = new_table("account", sheet.unit, "share", "known")
    capacity = max(1, sheet.ledger.capacity)
    figures = {figure.name: figure for figure in sheet.figures}
    for account, amount in sheet.ledger.accounts().items():
        figure = figures.get(account.value)
        span = figure.span if figure is not None else Span.exact(amount)
        part = share_of(sheet, account.value) if figure is not None else format_share(span, capacity)
        table.add_row(account_chip(account), format_span(span, sheet.unit), part, _accuracy(account, figure))
    size = figures.get("capacity")
    whole = format_amount(sheet.ledger.capacity, sheet.unit) if size is None else format_span(size.span, sheet.unit)
    table.add_row("pool", whole, "100.0 %", str(sheet.size_accuracy) if size is None else f"{size.accuracy}, interval")
    available = Span.exact(sheet.available)
    table.add_row("available", format_span(available, sheet.unit), format_share(available, capacity), "free or cached")
    if usage_ratio is not None:
        table.add_row("the engine's own gauge", "", percent(usage_ratio), gauge)
    return table


def format_share(span: Span, capacity: int) -> str:
    """Write an interval as a share of what is known exactly."""
    return percents(span.low / capacity, span.high / capacity, between=" - ")


def share_of(sheet: Sheet, name: str) -> str:
    """Write a figure of a sheet as its share of the whole pool."""
    return percents(*sheet.share(name), between=" - ")


def _accuracy(account: Account, figure: Figure | None) -> str:
    if account is Account.UNATTRIBUTED:
        return "see below"
    return str(Accuracy.DERIVED) if figure is None else f"{figure.accuracy}{'' if figure.is_exact else ', interval'}"


def unattributed_table(sheet: Sheet) -> RenderableType:
    """Return what is unattributed, by cause."""
    table = new_table("", sheet.unit, price=True)
    table.columns[0].width = 1
    table.columns[2].header = "why"
    for part in sheet.unattributed:
        table.add_row("", format_amount(part.amount, sheet.unit), part.cause)
    return table


def sheet_json(sheet: Sheet) -> dict[str, Any]:
    """Return one balance sheet: accounts, what is unattributed and why, figures with their accuracy."""
    suffix = "bytes" if sheet.unit == "bytes" else "tokens"
    return {
        "unit": sheet.unit,
        f"capacity_{suffix}": sheet.ledger.capacity,
        f"accounts_{suffix}": {account.value: amount for account, amount in sheet.ledger.accounts().items()},
        f"available_{suffix}": sheet.available,
        "unattributed": [{"amount": part.amount, "cause": part.cause} for part in sheet.unattributed],
        "figures": [
            {
                "name": figure.name,
                **span_json(figure.span),
                "accuracy": figure.accuracy.value,
                "formula": figure.formula,
                "cause": figure.cause or None,
            }
            for figure in sheet.figures
        ],
    }


def span_json(span: Span) -> dict[str, int | None]:
    """Return an interval; ``high`` is None where nothing bounds it."""
    return {"low": span.low, "high": None if span.high >= 2**60 else span.high}


def timeline_json(timeline: Sequence[Stretch]) -> list[dict[str, Any]]:
    """Return the stretches of a timeline."""
    return [
        {**asdict(one), "ratio": {account.value: ratio for account, ratio in one.ratio.items()}} for one in timeline
    ]
