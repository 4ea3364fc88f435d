"""The balance sheet of one instant: tokens to accounts, and what stays unattributed, by cause."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.ledger import Accuracy, Ledger, Memo
from kvledger.measure.balance import Balance
from kvledger.measure.figure import Figure, Span
from kvledger.measure.groups import count_needed_bytes
from kvledger.measure.pool import PoolShape, Structure

__all__ = ["Sheet", "Unexplained", "draw_sheet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """One reason for ``unattributed``, and its part of it."""

    amount: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One ledger of one pool with how well each account is known.

    ``unit`` is ``bytes``, or ``tokens`` when nothing tells what a token costs. Accounts that are intervals stand in
    the ledger with their least; the rest of the interval is in ``unattributed``, so the books balance whatever is true.
    """

    ledger: Ledger
    unit: str
    unattributed: tuple[Unexplained, ...]
    figures: tuple[Figure, ...]
    available: int
    """What requests can still take: free, cached or one of the two."""
    size_accuracy: Accuracy = Accuracy.MEASURED
    """How the size of the pool is known in ``unit``: its slots are told, what they cost may be derived."""

    def figure(self, name: str) -> Figure:
        """Return one figure by name."""
        return next(figure for figure in self.figures if figure.name == name)

    def share(self, name: str) -> tuple[float, float]:
        """Return a figure as least and most of the whole pool; where the pool is an interval, of its other end."""
        span, capacity = self.figure(name).span, max(1, self.ledger.capacity)
        least = next((figure.low for figure in self.figures if figure.name == "capacity"), capacity)
        return min(1.0, span.low / capacity), min(1.0, span.high / max(1, least))


_FORMULA = {
    Accuracy.DERIVED: "at most the blocks ever filled",
    Accuracy.MODELLED: "at most the blocks ever filled; at least free blocks - those that can be bare, "
    "if nobody reset the prefix cache",
}


def draw_sheet(shape: PoolShape, balance: Balance, *, running: int, cached_blocks: Span) -> Sheet:
    """Draw up the ledger of one instant.

    Args:
        shape: The pool.
        balance: Its tokens.
        running: Requests that run.
        cached_blocks: Blocks that nobody refers to and a later request can hit.
    """
    pricing, block_tokens = shape.pricing, shape.block_tokens
    block = pricing.block_bytes if pricing else block_tokens
    per_token = block // block_tokens
    unit = "bytes" if pricing else "tokens"
    used, internal = balance.used.scale(per_token), balance.internal.scale(per_token)
    if pricing and pricing.groups:
        held_bytes = balance.held // block_tokens * block
        used = count_needed_bytes(pricing.groups, balance.stored, running=running, held_bytes=held_bytes)
        internal = Span.exact(held_bytes - balance.held * per_token) + (Span.exact(balance.held * per_token) - used)
        internal = internal.clip(0, held_bytes)
    grain = (balance.held // block_tokens) * block - balance.held * per_token
    idle_blocks = max(0, shape.usable_blocks - balance.held // block_tokens)
    free, cached = (Span.exact(idle_blocks) - cached_blocks).scale(block), cached_blocks.scale(block)
    capacity = pricing.capacity_bytes if pricing and pricing.capacity_bytes is not None else shape.blocks * block
    rows = [
        (shape.null_blocks * block, "null block: taken for ever, holds nothing"),
        (used.width, "held by running requests, as tokens or as the tail of a block: " + _why(balance)),
        (0 if pricing and pricing.groups else grain, "held, but less than a whole byte a token"),
        (cached.width, "free or cached: vLLM does not export which blocks still hold reusable tokens"),
        (capacity - shape.blocks * block, "remainder of the memory: less than one block"),
    ]
    rows = [(amount, cause) for amount, cause in rows if amount > 0]
    ledger = Ledger(
        capacity=capacity,
        used=used.low,
        internal=internal.low,
        cached=cached.low,
        free=free.low,
        unattributed=sum(amount for amount, _ in rows),
        memo=Memo(shared_saving=balance.shared_saving.low * per_token),
    ).check()
    return Sheet(
        ledger=ledger,
        unit=unit,
        unattributed=tuple(Unexplained(amount=amount, cause=cause) for amount, cause in rows),
        figures=tuple(_figures(shape, balance, (used, internal), per_token, unit, free, cached)),
        available=idle_blocks * block,
        size_accuracy=_size_accuracy(shape),
    )


def _size_accuracy(shape: PoolShape) -> Accuracy:
    pricing = shape.pricing
    return Accuracy.MEASURED if pricing is None or pricing.capacity_bytes is not None else pricing.accuracy


def _why(balance: Balance) -> str:
    return "; ".join(cause.value for cause in balance.causes) or "not told"


def _priced(formula: str, priced: str) -> str:
    """Multiply all of a formula, not its last term."""
    return f"({formula}){priced}" if priced else formula


def _figures(
    shape: PoolShape,
    balance: Balance,
    parts: tuple[Span, Span],
    per_token: int,
    unit: str,
    free: Span,
    cached: Span,
) -> list[Figure]:
    grouped = shape.pricing is not None and bool(shape.pricing.groups)
    assumed = shape.pricing is not None and shape.pricing.accuracy is Accuracy.MODELLED
    known = not assumed and (grouped or shape.structure is Structure.ONE_GROUP)
    sure = Accuracy.DERIVED if known else Accuracy.MODELLED
    plain = Accuracy.MODELLED if assumed else Accuracy.DERIVED
    priced = "" if unit == "tokens" else f" * {per_token:,} bytes"
    why = _why(balance)
    reused = Accuracy.MODELLED if cached.low or assumed else Accuracy.DERIVED
    by_blocks = _FORMULA[Accuracy.MODELLED if cached.low else Accuracy.DERIVED]
    blocks = balance.held // shape.block_tokens
    held = Span.exact(blocks * (shape.pricing.block_bytes if shape.pricing else shape.block_tokens))
    each = f"{shape.pricing.block_bytes:,} bytes" if shape.pricing else "block size"
    rows = [
        ("held", held, plain, f"usage gauge * usable blocks * {each}", ""),
        ("used", parts[0], sure, _priced("stored tokens, a shared block once", priced), why),
        ("internal", parts[1], sure, "held - used", why),
        ("reserved", Span.exact(0), Accuracy.DERIVED, "0: blocks are taken as tokens come", ""),
        ("free", free, reused, "usable - held - cached", "free or cached is not exported"),
        ("cached", cached, reused, by_blocks, "free or cached is not exported"),
        (
            "shared_saving",
            balance.shared_saving.scale(per_token) if balance.shared_saving.high < 2**60 else Span(0, 2**60),
            sure,
            "stored - used",
            why,
        ),
    ]
    if balance.live is not None:
        formula = (
            "prompt_tokens - request_prompt_tokens_sum + generation_tokens - request_generation_tokens_sum"
            " - lost to disconnected clients"
        )
        rows.insert(0, ("live", balance.live.scale(per_token), plain, _priced(formula, priced), why))
    return [
        Figure(
            name=name,
            span=span,
            unit=unit,
            accuracy=accuracy,
            formula=formula,
            cause="" if span.is_exact else cause,
        )
        for name, span, accuracy, formula, cause in rows
    ]
