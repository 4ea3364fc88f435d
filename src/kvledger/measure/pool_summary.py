"""One pool of an engine that tells it itself, over a window: the last sheet, means and peaks, traffic, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvledger.engines.facts import Engine, EngineSnapshot, HistogramReading
from kvledger.engines.quantity import Quantity
from kvledger.ledger import LedgerIntegral
from kvledger.measure.pool_meter import PoolKey, PoolMoment, draw_as
from kvledger.measure.pool_verdict import judge_pool, leave_between
from kvledger.measure.sheet import Sheet
from kvledger.measure.slots import Layout
from kvledger.measure.timeline import Stretch, draw_timeline
from kvledger.measure.verdict import Signs, Verdict, leave_open

__all__ = ["PoolShares", "PoolSummary", "PoolTraffic", "summarise_pool"]

Spans = Sequence[tuple[EngineSnapshot, EngineSnapshot]]
_MOST_GAP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTraffic:
    """What came and went in the window; None where the engine does not count it."""

    seconds: float
    finished: int | None
    prompt_tokens: int | None
    generated_tokens: int | None
    """Where ``counts_at_end``, those of requests that ended."""
    counts_at_end: bool
    cached_prompt_tokens: int | None
    """Prompt tokens found in the cache."""
    evicted_tokens: int | None
    preemptions: int | None
    reserved_used_ratio: float | None
    """TGI: of the output tokens that requests reserved, the share that was generated, over ended requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShares:
    """Means over the busy samples of the window, each as (least, most), of the pool or of what is held."""

    internal_of_held: tuple[float, float]
    reserved_of_held: tuple[float, float]
    used_of_pool: tuple[float, float]
    held_of_pool: tuple[float, float]
    unattributed_of_pool: float
    peak_held_of_pool: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """One pool over the window."""

    key: PoolKey
    model: str | None
    samples: int
    unread: int
    """Samples without a sheet."""
    restarts: int
    last: PoolMoment
    """The last moment that has a sheet, else the last of all."""
    newest: PoolMoment
    peak: PoolMoment | None
    """The moment at which most is held."""
    mean: LedgerIntegral
    shares: PoolShares | None
    """None when no sample was busy."""
    traffic: PoolTraffic
    verdict: Verdict
    timeline: tuple[Stretch, ...] = ()
    problem: str = ""
    """Why the last of the samples without a sheet has none."""

    @property
    def shown(self) -> PoolMoment:
        """The moment to show: the last one, or the fullest when nothing runs any more."""
        return self.peak if self.peak is not None and not self.last.running else self.last


def summarise_pool(moments: Sequence[PoolMoment], spans: Spans) -> PoolSummary:
    """Summarise the moments of one pool; ``spans`` are the first and last snapshot of each epoch."""
    whole = [moment for moment in moments if moment.sheet is not None]
    last = whole[-1] if whole else moments[-1]
    integral = LedgerIntegral()
    for at, moment in enumerate(whole):
        later = whole[at + 1].seconds if at + 1 < len(whole) else None
        seconds = 1.0 if later is None else min(_MOST_GAP_SECONDS, max(0.0, later - moment.seconds))
        assert moment.sheet is not None
        integral.add(moment.sheet.ledger, seconds=seconds)
    traffic = _find_traffic(spans, seconds=moments[-1].seconds - moments[0].seconds, samples=len(moments))
    return PoolSummary(
        key=last.key,
        model=last.model,
        samples=len(moments),
        unread=len(moments) - len(whole),
        restarts=moments[-1].epoch - moments[0].epoch,
        last=last,
        newest=moments[-1],
        peak=max(whole, key=_held, default=None),
        mean=integral,
        shares=_find_shares(whole),
        traffic=traffic,
        timeline=draw_timeline(moments),
        verdict=_judge(moments, whole, traffic)
        if whole
        else leave_open(last.problem, hint="measure when the engine tells its pool"),
        problem=next((moment.problem for moment in reversed(moments) if moment.problem), ""),
    )


def _judge(moments: Sequence[PoolMoment], whole: Sequence[PoolMoment], traffic: PoolTraffic) -> Verdict:
    """Judge the window; where two layouts of slots are possible, only what is true of both."""
    ratio = traffic.reserved_used_ratio
    if not any(moment.layout is Layout.UNKNOWN and len(moment.snapshot.slots) > 1 for moment in whole):
        return judge_pool(_signs(moments, whole, traffic), whole[-1], generated_ratio=ratio)
    found = []
    for layout in (Layout.SHARED, Layout.STRIPS):
        drawn = [draw_as(moment, layout) for moment in whole]
        found.append(judge_pool(_signs(moments, drawn, traffic), drawn[-1], generated_ratio=ratio))
    return found[0] if found[0].diagnosis is found[1].diagnosis else leave_between(*found)


def _held(moment: PoolMoment) -> tuple[float, int]:
    assert moment.sheet is not None
    return moment.sheet.share("held")[0], moment.running or 0


def _find_shares(moments: Sequence[PoolMoment]) -> PoolShares | None:
    sheets = [m.sheet for m in moments if m.sheet is not None and m.running]
    if not sheets:
        return None
    held_low = sum(sheet.figure("held").low for sheet in sheets)
    held_high = sum(sheet.figure("held").high for sheet in sheets)
    pool = sum(sheet.ledger.capacity for sheet in sheets)
    if not held_high or not pool:
        return None
    peaks = [sheet.share("held") for sheet in sheets]

    def of_held(name: str) -> tuple[float, float]:
        low = sum(sheet.figure(name).low for sheet in sheets)
        high = sum(sheet.figure(name).high for sheet in sheets)
        return low / held_high, min(1.0, high / held_low) if held_low else 1.0

    def of_pool(name: str) -> tuple[float, float]:
        shares = [sheet.share(name) for sheet in sheets]
        return sum(low for low, _ in shares) / len(shares), sum(high for _, high in shares) / len(shares)

    return PoolShares(
        internal_of_held=of_held("internal"),
        reserved_of_held=of_held("reserved"),
        used_of_pool=of_pool("used"),
        held_of_pool=of_pool("held"),
        unattributed_of_pool=sum(map(_count_unexplained, sheets)) / pool,
        peak_held_of_pool=(max(low for low, _ in peaks), max(high for _, high in peaks)),
    )


def _count_unexplained(sheet: Sheet) -> int:
    """Return what is unattributed, without what is known to be free or cached."""
    sizes = sum(figure.span.width for figure in sheet.figures if figure.name == "capacity")
    either = min(sheet.figure("cached").span.width, sheet.figure("free").span.width) - sizes
    return max(0, sheet.ledger.unattributed - max(0, either))


def _signs(moments: Sequence[PoolMoment], whole: Sequence[PoolMoment], traffic: PoolTraffic) -> Signs:
    held, used, while_waiting = [(0.0, 0.0)], [(0.0, 0.0)], []
    for moment in whole:
        assert moment.sheet is not None
        held.append(moment.sheet.share("held"))
        used.append(moment.sheet.share("used"))
        if moment.waiting:
            while_waiting.append(held[-1][1])
    waiting = [moment.waiting or 0 for moment in moments]
    return Signs(
        samples=len(whole),
        peak_held_ratio=max(low for low, _ in held),
        peak_used_ratio=max(low for low, _ in used),
        peak_used_high_ratio=max(high for _, high in used),
        peak_waiting=max(waiting),
        peak_running=max((one.running for one in moments if one.running is not None), default=None),
        waiting_ratio=sum(w > 0 for w in waiting) / len(waiting),
        held_ratio_while_waiting=max(while_waiting, default=None),
        preemptions=traffic.preemptions,
        finished=traffic.finished,
        generated_tokens=None if traffic.counts_at_end else traffic.generated_tokens,
        seconds=traffic.seconds,
    )


def _find_traffic(spans: Spans, *, seconds: float, samples: int) -> PoolTraffic:
    every = spans
    spans = spans if samples > 1 else ()  # one sample counts nothing, which is not zero
    return PoolTraffic(
        seconds=seconds,
        finished=_grown(spans, lambda one: _observed(one, _ENDED)),
        prompt_tokens=_grown(spans, lambda one: _value(one.prompt_tokens_total)),
        generated_tokens=_grown(spans, _count_generated),
        counts_at_end=bool(every) and _counts_at_end(every[-1][1]),
        cached_prompt_tokens=_grown(spans, lambda one: _value(one.cached_tokens_total)),
        evicted_tokens=_grown(spans, lambda one: _value(one.evicted_tokens_total)),
        preemptions=_grown(spans, lambda one: _value(one.preemptions_total)),
        reserved_used_ratio=_reserved_used(every),
    )


_ENDED = (
    "sglang:generation_tokens_histogram", "lmdeploy:request_generation_tokens", "tgi_request_generated_tokens",
)  # fmt: skip
"""Histograms that observe a request when it ends."""


def _grown(spans: Spans, read: Callable[[EngineSnapshot], int | None]) -> int | None:
    pairs = [(read(first), read(last)) for first, last in spans]
    grown = [last - first for first, last in pairs if first is not None and last is not None]
    return sum(grown) if grown else None


def _count_generated(snapshot: EngineSnapshot) -> int | None:
    """Return the tokens generated since the start, those of running requests included where they are counted.

    llama.cpp counts a request's tokens when it ends, and its slots tell those of the running ones.
    """
    decoded = snapshot.others.get("sglang:decoded_tokens")
    if decoded is not None:
        return int(decoded)
    counted = _value(snapshot.generation_tokens_total)
    if counted is None or snapshot.engine is not Engine.LLAMACPP:
        return counted
    return counted + sum(_value(slot.decoded_tokens) or 0 for slot in snapshot.slots if slot.is_processing)


def _counts_at_end(snapshot: EngineSnapshot) -> bool:
    """Tell whether generated tokens are counted only when their request ends, so that none may come for long."""
    if snapshot.engine is Engine.SGLANG:
        return "sglang:decoded_tokens" not in snapshot.others
    if snapshot.engine is Engine.LLAMACPP:
        return not snapshot.slots
    return snapshot.engine is Engine.TGI


def _value(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(quantity.value)


def _find(snapshot: EngineSnapshot, name: str) -> HistogramReading | None:
    return next((one for one in snapshot.histograms if one.name == name), None)


def _observed(snapshot: EngineSnapshot, names: Sequence[str]) -> int | None:
    found = next((one for name in names if (one := _find(snapshot, name)) is not None), None)
    return None if found is None else int(found.count)


def _reserved_used(spans: Spans) -> float | None:
    """Return generated over reserved output tokens since the start: TGI observes limits when requests come.

    Where nothing runs or waits in the last sample, both sums are of the same requests.
    """
    if not spans:
        return None
    last = spans[-1][1]
    limits, outputs = _find(last, "tgi_request_max_new_tokens"), _find(last, "tgi_request_generated_tokens")
    if limits is None or outputs is None or not limits.total or not outputs.count or not limits.count:
        return None
    return min(1.0, (outputs.total / outputs.count) / (limits.total / limits.count))
