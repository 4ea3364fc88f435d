"""What if one setting had another value: the same traffic again, and whether the change is worth its price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvledger.ledger import Account
from kvledger.pool.policy import Policy
from kvledger.replay.outcome import Latency, Outcome
from kvledger.replay.settings import Pool, Settings
from kvledger.units import counted

__all__ = ["Scenario", "Setting", "Verdict", "WhatIf", "losses", "weigh"]

WORTH_RATIO = 0.01
"""Times that differ by less are taken as equal."""
_SHOWN_POINTS = 0.001
_WASTE = (Account.RESERVED, Account.INTERNAL, Account.EXTERNAL)


class Setting(StrEnum):
    """What can be changed."""

    BLOCK_SIZE = "block-size"
    KV_DTYPE = "kv-dtype"
    TP = "tp"
    MEMORY = "memory"
    MAX_MODEL_LEN = "max-model-len"
    MAX_NUM_SEQS = "max-num-seqs"
    MAX_NUM_BATCHED_TOKENS = "max-num-batched-tokens"
    PREFIX_CACHING = "prefix-caching"
    EVICTION = "eviction"
    PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way to serve the traffic: how memory is managed, how much there is, and how the scheduler is set."""

    policy: Policy
    pool: Pool
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One change, alone, and what it did.

    ``change`` is written as asked for, such as ``block-size=32``; ``price`` is what it costs beside what the replay
    shows (empty: nothing known).
    """

    change: str
    scenario: Scenario
    outcome: Outcome
    price: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which change is worth it, in words; ``best`` is None when none is."""

    best: str | None
    sentence: str


def weigh(base: Outcome, changes: Sequence[WhatIf], *, content_known: bool = True) -> Verdict:
    """Find the best trade: the change that serves the most requests whole and, of those, the fastest.

    A change that turns away or cuts requests which the base serves is never the best, whatever it saves; nor is a
    prefix cache in which no request finds another's tokens (``content_known``: whether the traffic tells what requests
    share). What both do is said.
    """
    fair = [what for what in changes if _whole(what.outcome) >= _whole(base) and not _is_idle_cache(base, what)]
    best = max(fair, key=lambda what: (_whole(what.outcome), -_mean(what.outcome.end_to_end)), default=None)
    if best is not None and not _is_better(base, best.outcome):
        best = None
    if best is None:
        sentence = "No change serves more requests, or any 1 % faster."
    else:
        worse = [*_worse(base, best.outcome), *([best.price] if best.price else [])]
        price = "; ".join(worse) if worse else "nothing that the replay can see"
        sentence = f"The best trade is `{best.change}`: {_gain(base, best.outcome)}. What gets worse: {price}."
    remarks = (
        sentence,
        *_losing(base, best, changes),
        *_idle_caches(base, changes, content_known=content_known),
    )
    return Verdict(best=best.change if best else None, sentence=" ".join(remarks))


def losses(base: Outcome, after: Outcome) -> list[str]:
    """Name the requests that a change turns away and the answers that it cuts, beyond those of the base."""
    counts = (
        (sum(base.rejected.values()), sum(after.rejected.values()), "request", "rejected"),
        (base.truncated, after.truncated, "answer", "cut"),
    )
    return [f"{counted(new, what)} {how} instead of {old:,}" for old, new, what, how in counts if new > old]


def _whole(outcome: Outcome) -> int:
    """Count the requests that were served, and not cut."""
    return outcome.finished - outcome.truncated


def _mean(latency: Latency | None) -> float:
    return latency.mean if latency else math.inf


def _slowest(latency: Latency | None) -> float:
    return latency.p99 if latency else math.inf


def _is_better(base: Outcome, after: Outcome) -> bool:
    if _whole(after) != _whole(base):
        return _whole(after) > _whole(base)
    return _mean(after.end_to_end) < (1 - WORTH_RATIO) * _mean(base.end_to_end)


def _gain(base: Outcome, after: Outcome) -> str:
    parts = []
    if _whole(after) > _whole(base):
        parts.append(f"it serves {counted(_whole(after), 'request')} whole instead of {_whole(base):,}")
    before, now = _mean(base.end_to_end), _mean(after.end_to_end)
    if math.isfinite(before) and now < before:
        parts.append(
            f"a request takes {seconds(now)} from arrival to end on average instead of {seconds(before)} "
            f"({100 * (now / before - 1):+.0f} %)"
        )
    if after.mean_running > (1 + WORTH_RATIO) * base.mean_running:
        parts.append(f"{after.mean_running:.1f} instead of {base.mean_running:.1f} run at a time")
    return ", ".join(parts)


def _worse(base: Outcome, after: Outcome) -> Iterator[str]:
    """Name what a change makes worse, with the numbers of before and after."""
    yield from losses(base, after)
    if after.preemptions > base.preemptions:
        yield f"{counted(after.preemptions, 'preemption')} instead of {base.preemptions:,}"
    if base.prefix and after.prefix and after.prefix.hit_ratio < base.prefix.hit_ratio - _SHOWN_POINTS:
        yield f"{100 * after.prefix.hit_ratio:.1f} % prefix hits instead of {100 * base.prefix.hit_ratio:.1f} %"
    elif base.prefix and not after.prefix and base.prefix.hit_tokens:
        yield f"no prefix hits instead of {100 * base.prefix.hit_ratio:.1f} %"
    for account in _WASTE:
        old_ratio, new_ratio = base.mean_ratio[account], after.mean_ratio[account]
        if new_ratio > old_ratio + _SHOWN_POINTS:
            yield f"{100 * new_ratio:.1f} % of the pool {account} instead of {100 * old_ratio:.1f} %"
    for label, before, now in (
        ("in the queue on average", _mean(base.queue), _mean(after.queue)),
        ("to the first token on average", _mean(base.first_token), _mean(after.first_token)),
        ("for the slowest 1 %", _slowest(base.end_to_end), _slowest(after.end_to_end)),
    ):
        if math.isfinite(now) and now > (1 + WORTH_RATIO) * before and now - before >= WORTH_RATIO:
            yield f"{seconds(now)} {label} instead of {seconds(before)}"


def _losing(base: Outcome, best: WhatIf | None, changes: Sequence[WhatIf]) -> Iterator[str]:
    """Name what every change but the best turns away and cuts, however slow it is, and whether one is faster."""
    limit = (1 - WORTH_RATIO) * _mean((best.outcome if best else base).end_to_end)
    for what in changes:
        lost = losses(base, what.outcome)
        if not lost or what is best:
            continue
        if _mean(what.outcome.end_to_end) < limit:
            taking = f" would take {seconds(_mean(what.outcome.end_to_end))}, at the price of "
        else:
            taking = " costs "
        yield f"`{what.change}`{taking}{', '.join(lost)}."


def _is_idle_cache(base: Outcome, what: WhatIf) -> bool:
    """Tell whether a change only adds a prefix cache in which no request finds anything when it first comes."""
    after = what.outcome.prefix
    return base.prefix is None and after is not None and not after.hit_tokens


def _idle_caches(base: Outcome, changes: Sequence[WhatIf], *, content_known: bool) -> Iterator[str]:
    """Say of a prefix cache without hits why it is no trade, and where a gain of its comes from."""
    for what in changes:
        if not _is_idle_cache(base, what):
            continue
        why = (
            "no request finds what another has computed"
            if content_known
            else "the trace does not tell what its requests share, so a request can only find its own blocks"
        )
        gain = ""
        if _is_better(base, what.outcome):
            gain = (
                f"; the {seconds(_mean(what.outcome.end_to_end))} from arrival to end come from requests that find "
                f"their own blocks after a preemption, and say nothing of what sharing would give"
            )
        yield f"`{what.change}` is no trade here: {why}{gain}."


def seconds(value: float) -> str:
    """Write a time.

    >>> seconds(0.25), seconds(1234.5)
    ('0.25 s', '1,234 s')
    """
    return f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"
