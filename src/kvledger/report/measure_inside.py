"""A ledger drawn up inside an engine: one JSON object, and one line of a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvledger.ledger import Account
from kvledger.measure.balance import Scheduling
from kvledger.measure.inside import InsideReading, RequestShare
from kvledger.units import format_bytes

__all__ = ["InsideMoment", "inside_json", "inside_line"]

SCHEMA = "kvledger/inside"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideMoment:
    """When and where a ledger was drawn up."""

    seconds: float
    engine: int
    model: str
    block_tokens: int | None
    """None where layers are in several groups."""
    is_ahead: bool
    """The scheduler is a step ahead of what was emitted (asynchronous scheduling)."""
    step: int
    """Steps of the scheduler since it started."""
    emitting_steps: int
    """Of these, the steps that handed out a token: what ``vllm:iteration_tokens_total`` has observed."""
    generated_tokens: int
    """Output tokens the scheduler has handed out since it started: the engine's own counter."""
    dropped: int = 0
    """Ledgers that could not be written so far."""


def inside_json(moment: InsideMoment, reading: InsideReading, *, with_requests: bool) -> dict[str, Any]:
    """Return one ledger as an object; every number is measured."""
    ledger, state = reading.ledger, reading.state
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "seconds": round(moment.seconds, 3),
        "engine": moment.engine,
        "model": moment.model,
        "scheduling": (Scheduling.AHEAD if moment.is_ahead else Scheduling.IN_STEP).value,
        "block_tokens": moment.block_tokens,
        "step": moment.step,
        "emitting_steps": moment.emitting_steps,
        "generated_tokens": moment.generated_tokens,
        "dropped": moment.dropped,
        "running": state.running,
        "waiting": state.waiting,
        "preempted": state.preempted,
        "prefilling": state.prefilling,
        "live_tokens": state.live_tokens,
        "used_tokens": reading.used_tokens,
        "saved_tokens": reading.saved_tokens,
        "held_blocks": reading.held_blocks,
        "cached_blocks": state.cached_blocks,
        "free_blocks": state.free_blocks - state.cached_blocks,
        "capacity_bytes": ledger.capacity,
        "accounts": {f"{account}_bytes": ledger[account] for account in Account},
        "unattributed": [{"amount_bytes": part.amount, "cause": part.cause} for part in reading.unattributed],
        "shared_saving_bytes": ledger.memo.shared_saving,
        "stale_bytes": ledger.memo.stale,
    }
    if with_requests:
        found["requests"] = [_request(share) for share in reading.requests]
    return found


def _request(share: RequestShare) -> dict[str, Any]:
    return {
        "id": share.request_id,
        "prompt_tokens": share.prompt_tokens,
        "output_tokens": share.output_tokens,
        "stored_tokens": share.stored_tokens,
        "blocks": share.blocks,
        "shared_blocks": share.shared_blocks,
        "held_bytes": share.held_bytes,
        "needed_bytes": share.needed_bytes,
    }


def inside_line(engine: int, reading: InsideReading) -> str:
    """Return one ledger as a line: the shares of the pool, largest message first."""
    ledger, state = reading.ledger, reading.state
    shares = [f"{account} {100 * ledger[account] / max(1, ledger.capacity):.1f} %" for account in Account]
    shares = [share for share in shares if not share.endswith(" 0.0 %")]
    saved = f", sharing saves {format_bytes(ledger.memo.shared_saving)}" if ledger.memo.shared_saving else ""
    return (
        f"kvledger engine {engine}: {', '.join(shares)} of {format_bytes(ledger.capacity)}{saved}; "
        f"{state.running:,} running, {state.waiting:,} waiting"
    )
