"""The arithmetic of one request under per-request reservation, beside what the replay measured."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from kvledger.ledger import Account
from kvledger.report.replay import ReplayReport
from kvledger.report.tables import new_table, percent
from kvledger.units import counted, format_bytes

__all__ = ["arithmetic_of_one_request"]


def arithmetic_of_one_request(report: ReplayReport) -> RenderableType:
    """Return a table: bytes of a token, of a reservation, of what a request fills, and how many fit."""
    per_token, length = report.pool.bytes_per_token, report.settings.max_model_len
    workload = report.trace.workload
    mean_end = float(workload.prompt_tokens.mean() + workload.output_tokens.mean())
    reserved = per_token * length
    filled = per_token * mean_end
    total = report.pool.memory_bytes or 0
    outcome = report.outcome("max")
    table = new_table("by hand", "", "measured in the replay")
    table.add_row("one token", f"{per_token:,} bytes", "")
    table.add_row(f"reserved for {counted(length, 'token')}", format_bytes(reserved), "")
    table.add_row(f"filled when it ends, at {mean_end:,.0f} tokens on average", format_bytes(filled), "")
    table.add_row("the reservation that stays empty", percent(1 - filled / reserved), _empty(outcome.headline_ratio))
    table.add_row(f"requests that {format_bytes(total)} admits", f"{total // reserved:,}", f"{outcome.peak_running:,}")
    return Group(Text(f"One request of {report.model} under `max`: reserve max_model_len", style="bold"), table, Text())


def _empty(ratio: dict[Account, float]) -> str:
    kept = ratio[Account.USED] + ratio[Account.RESERVED]
    return percent(ratio[Account.RESERVED] / kept) if kept else "-"
