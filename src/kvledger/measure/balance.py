"""The law of one instant: from counters and the gauge to tokens used, tails and sharing.

With one block table a request (vLLM V1, every layer keeps every token), at any sample::

    live     = tokens that entered - tokens of ended requests - tokens of lost requests
    stored   = live - unsaved + prefilled - preempted       unsaved: sampled, not yet in the cache
    used     = stored - shared                              physical: a shared block counts once
    held     = blocks of the gauge * block size
    internal = held - used                                  0 <= internal <= running * (block size - 1)

Every term is an interval; the two ways to ``used`` (from the counters, from the gauge) are intersected. Since shared
blocks are whole blocks, ``used`` and ``stored`` leave the same remainder when divided by the block size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvledger.measure.figure import Span
from kvledger.measure.offsets import Differences, OffsetTracker
from kvledger.measure.pool import PoolShape, Structure

__all__ = ["Balance", "Instant", "Scheduling", "Unsure", "balance_tokens", "infer_scheduling"]

_NO_LIMIT = 2**61


class Scheduling(StrEnum):
    """Whether the scheduler is a step ahead of what was emitted."""

    UNKNOWN = "unknown"
    AHEAD = "ahead"
    """Asynchronous: the next step is under way, and the blocks for its tokens are taken."""
    IN_STEP = "in-step"
    """Synchronous: the token last sampled is not in the cache yet."""


class Unsure(StrEnum):
    """Why a number is an interval."""

    LOST = (
        "disconnected clients may have left an offset in the counters; it is known exactly after the next idle moment"
    )
    PREFILL = "requests in prefill are not counted until their first token"
    PREEMPTED = "preempted requests hold nothing, or a part until computed again; the counters do not tell how much"
    SHARED = "shared blocks whose first writer has ended are counted once, and no counter tells how many they are"
    UNSAVED = "the token last sampled is in the cache or not, depending on asynchronous scheduling"
    SKEW = "several API servers write the counters: up to one step apart"
    SPECULATIVE = "slots for proposed tokens are held besides"
    TORN = "the scrape is torn: a part of it is a step older, so only the gauge is used"
    NO_COUNTERS = "the token counters are missing: only the gauge is known"
    NOBODY_RUNS = "blocks are held although no request runs"
    GROUPS = "layers are in groups with block tables of their own, which one gauge does not tell apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """What one scrape says about the load of one engine."""

    held_blocks: int
    running: int
    waiting: int | None
    differences: Differences | None
    is_speculative: bool = False
    is_skewed: bool = False
    is_torn: bool = False
    """A part of the scrape is a step older than the rest: ``differences`` is None."""
    may_recompute: bool = False
    """A request that was preempted may be running again, with only a part of its tokens computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Tokens of one pool at one instant."""

    held: int
    used: Span
    live: Span | None
    """Prompt and generated tokens of all requests that have emitted one, preempted ones included."""
    stored: Span
    """Distinct tokens in the cache, whatever a slot is: where layers are in groups ``used`` is not told in slots."""
    shared_saving: Span
    preempted: Span
    """Requests that have emitted a token and wait to be computed again."""
    prefilling: Span
    """Requests that are admitted and have emitted nothing."""
    causes: tuple[Unsure, ...]

    @property
    def internal(self) -> Span:
        """Slots held beyond the tokens stored."""
        return Span(self.held - self.used.high, self.held - self.used.low)


@dataclass(frozen=True, slots=True)
class _Flow:
    """The requests that the counters and the gauge do not see alike."""

    preempted: Span
    prefilling: Span
    prefill_tokens_high: int
    unsaved: Span
    shared_high: int
    is_hiding: bool
    """Tokens may be counted that nobody holds: of preempted requests."""

    @property
    def is_plain(self) -> bool:
        return not self.is_hiding and self.prefilling.high == 0


def balance_tokens(
    shape: PoolShape,
    instant: Instant,
    tracker: OffsetTracker,
    *,
    scheduling: Scheduling,
    seconds: float,
    lost_at_most: int = _NO_LIMIT,
) -> Balance:
    """Return the balance of one sample, and let the tracker learn from it."""
    held, running, differences = instant.held_blocks * shape.block_tokens, instant.running, instant.differences
    tail = running * (shape.block_tokens - 1 + (shape.block_tokens if instant.is_speculative else 0))
    by_gauge = Span(max(0, held - tail) if running else 0, held)
    in_groups = shape.structure is Structure.GROUPS
    if differences is None:
        return _gauge_only(held, by_gauge, instant, in_groups=in_groups)
    if in_groups:  # a slot is not a token: the gauge says nothing about the counters
        by_gauge = Span(0, _NO_LIMIT)
    if not running and not instant.waiting:
        tracker.observe_idle(differences, seconds=seconds)
        flow = _Flow(Span.exact(0), Span.exact(0), 0, Span.exact(0), 0, False)
    else:
        tracker.observe_counts(differences, running=running, waiting=instant.waiting, lost_at_most=lost_at_most)
        flow = _find_flow(shape, instant, differences, tracker, scheduling)
        tracker.observe_tokens(_lost_bounds(differences.tokens, by_gauge, flow))
    live = (Span.exact(differences.tokens) - tracker.lost.tokens).clip(0, _NO_LIMIT)
    live = _cap_live(live, shape, instant)
    by_counters = _used_by_counters(live, flow, slack=running if instant.is_skewed else 0)
    used = by_gauge.meet(by_counters) or by_gauge
    if in_groups:
        return _in_groups(held, live, by_counters, flow, instant, shape)
    if flow.is_plain and live.is_exact and flow.unsaved.is_exact and not instant.is_skewed:
        used = _same_remainder(used, live.low - flow.unsaved.low, shape.block_tokens)
    return Balance(
        held=held,
        used=used,
        live=live,
        stored=used,
        shared_saving=_cap_saving(_saving(live, used, flow), used, shape, instant),
        preempted=flow.preempted,
        prefilling=flow.prefilling,
        causes=() if used.is_exact else tuple(_causes(live, flow, instant)),
    )


def infer_scheduling(shape: PoolShape, instant: Instant, balance: Balance) -> Scheduling:
    """Return what one sample proves about the scheduler.

    A step ahead, held - live is 0 to running x (block - 1); in step, each running request holds one slot less.
    """
    plain = balance.live is not None and balance.live.is_exact and balance.shared_saving.high == 0
    if not plain or balance.preempted.high or balance.prefilling.high or not instant.running:
        return Scheduling.UNKNOWN
    if instant.is_skewed or instant.may_recompute:
        return Scheduling.UNKNOWN
    assert balance.live is not None
    tail = balance.held - balance.live.low
    if tail < 0:
        return Scheduling.IN_STEP
    return Scheduling.AHEAD if tail > instant.running * (shape.block_tokens - 2) else Scheduling.UNKNOWN


def _gauge_only(held: int, by_gauge: Span, instant: Instant, *, in_groups: bool) -> Balance:
    used = Span(0, held) if in_groups else by_gauge
    cause = Unsure.GROUPS if in_groups else Unsure.TORN if instant.is_torn else Unsure.NO_COUNTERS
    return Balance(
        held=held,
        used=used,
        live=None,
        stored=Span(0, _NO_LIMIT) if in_groups else by_gauge,
        shared_saving=Span(0, _NO_LIMIT),
        preempted=Span(0, instant.waiting or 0),
        prefilling=Span(0, instant.running),
        causes=() if used.is_exact else (cause,),
    )


def _in_groups(held: int, live: Span, stored: Span, flow: _Flow, instant: Instant, shape: PoolShape) -> Balance:
    return Balance(
        held=held,
        used=Span(0, held),
        live=live,
        stored=stored,
        shared_saving=_cap_saving(Span(0, flow.shared_high + flow.prefill_tokens_high), None, shape, instant),
        preempted=flow.preempted,
        prefilling=flow.prefilling,
        causes=(Unsure.GROUPS, *_causes(live, flow, instant)) if held else (),
    )


def _find_flow(
    shape: PoolShape, instant: Instant, differences: Differences, tracker: OffsetTracker, scheduling: Scheduling
) -> _Flow:
    running = instant.running
    quiet = tracker.nothing_prefills(differences)
    prefilling = Span(0, 0 if quiet else running)
    waiting = _NO_LIMIT if instant.waiting is None else instant.waiting
    preempted, emitting = Span(0, waiting), Span(0, running)
    if differences.requests is not None:
        alive = (Span.exact(differences.requests) - tracker.requests).clip(0, _NO_LIMIT)
        preempted = (alive - Span.exact(running) + prefilling).clip(0, waiting)
        emitting = alive.clip(0, running)
        prefilling = (Span.exact(running) - alive + preempted).clip(0, prefilling.high)
    if prefilling.high == 0:
        tokens = 0
    elif differences.pending is not None and tracker.pending_is_known:
        tokens = max(0, differences.pending - tracker.pending.low)
    else:
        tokens = _NO_LIMIT
    return _Flow(
        preempted=preempted,
        prefilling=prefilling,
        prefill_tokens_high=tokens,
        unsaved=_unsaved(emitting, scheduling),
        shared_high=_shared_high(shape, differences, tracker.lost.hits.low),
        is_hiding=preempted.high > 0 or instant.may_recompute,
    )


def _unsaved(emitting: Span, scheduling: Scheduling) -> Span:
    if scheduling is Scheduling.AHEAD:
        return Span.exact(0)
    return emitting if scheduling is Scheduling.IN_STEP else Span(0, emitting.high)


def _shared_high(shape: PoolShape, differences: Differences, lost_hits_low: int) -> int:
    if shape.prefix_caching is False:
        return 0
    return _NO_LIMIT if differences.hits is None else max(0, differences.hits - lost_hits_low)


def _lost_bounds(tokens: int, by_gauge: Span, flow: _Flow) -> Span:
    """Return what can have been lost if what the gauge allows is all that is alive."""
    preempted = _NO_LIMIT if flow.is_hiding else 0
    alive_high = by_gauge.high + flow.unsaved.high + flow.shared_high + preempted
    alive_low = max(0, by_gauge.low + flow.unsaved.low - flow.prefill_tokens_high)
    return Span(max(0, tokens - alive_high), max(0, tokens - alive_low))


def _used_by_counters(live: Span, flow: _Flow, *, slack: int) -> Span:
    preempted = _NO_LIMIT if flow.is_hiding else 0
    low = live.low - flow.unsaved.high - flow.shared_high - preempted - slack
    return Span(max(0, low), max(0, live.high - flow.unsaved.low + flow.prefill_tokens_high + slack))


def _saving(live: Span, used: Span, flow: _Flow) -> Span:
    """Return stored - used: what would be stored besides if nothing were shared."""
    highest = flow.shared_high + flow.prefill_tokens_high
    if flow.is_hiding:
        return Span(0, highest)
    stored = Span(live.low - flow.unsaved.high, live.high - flow.unsaved.low + flow.prefill_tokens_high)
    return (stored - used).clip(0, highest)


def _cap_live(live: Span, shape: PoolShape, instant: Instant) -> Span:
    """Return the live tokens, of which no request that runs or waits has more than the longest length."""
    if shape.max_model_len is None or instant.waiting is None or instant.is_skewed:
        return live
    return Span(live.low, max(live.low, min(live.high, (instant.running + instant.waiting) * shape.max_model_len)))


def _cap_saving(saving: Span, used: Span | None, shape: PoolShape, instant: Instant) -> Span:
    """Return what sharing saves, which is nothing for one request.

    Running requests have at most the longest length each, of which ``used`` is stored; no more requests share a token
    than run.
    """
    others, longest = max(0, instant.running - 1), shape.max_model_len
    most = _NO_LIMIT if longest is None else others * longest
    if used is not None:
        most = min(most, others * used.high)
        most = most if longest is None else min(most, max(0, instant.running * longest - used.low))
    return Span(saving.low, max(saving.low, min(saving.high, most)))


def _same_remainder(used: Span, stored: int, block_tokens: int) -> Span:
    low = used.low + (stored - used.low) % block_tokens
    high = used.high - (used.high - stored) % block_tokens
    return Span(low, high) if low <= high else used


def _causes(live: Span, flow: _Flow, instant: Instant) -> list[Unsure]:
    reasons = [
        (Unsure.NOBODY_RUNS, not instant.running),
        (Unsure.LOST, not live.is_exact),
        (Unsure.PREFILL, flow.prefilling.high > 0),
        (Unsure.PREEMPTED, flow.is_hiding),
        (Unsure.SHARED, flow.shared_high > 0),
        (Unsure.UNSAVED, not flow.unsaved.is_exact),
        (Unsure.SKEW, instant.is_skewed),
        (Unsure.SPECULATIVE, instant.is_speculative),
    ]
    return [cause for cause, holds in reasons if holds]
