"""One engine over a window of time: the last ledger, means and peaks, what it would hold otherwise, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvledger.engines.facts import HistogramReading
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.ledger import LedgerIntegral
from kvledger.measure.counterfactual import Counterfactual, Lengths, compare_reservations
from kvledger.measure.figure import Span
from kvledger.measure.meter import Reading
from kvledger.measure.pool import Structure
from kvledger.measure.timeline import Stretch, draw_timeline
from kvledger.measure.verdict import Signs, Verdict, judge, leave_open

__all__ = ["EngineSummary", "Shares", "Traffic", "subtract_histogram", "summarise"]

_ENOUGH_REQUESTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What came and went in the window; None where the scrape does not tell."""

    seconds: float
    finished: int | None
    finished_per_second: float | None
    prompt_tokens: int | None
    generated_tokens: int | None
    preemptions: int | None
    hit_ratio: float | None
    """Prompt tokens found in the prefix cache, over those looked up."""
    mean_step_seconds: float | None
    """Mean time between two tokens of a request."""
    lengths: Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Means over the busy samples of the window, each as (least, most), of the whole pool or of what is held."""

    internal_of_held: tuple[float, float]
    used_of_pool: tuple[float, float]
    held_of_pool: float
    unattributed_of_pool: float
    peak_held_of_pool: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """One engine over the window."""

    engine_index: int
    model: str | None
    samples: int
    unread: int
    """Samples without a ledger."""
    restarts: int
    last: Reading
    """The last reading that has a ledger."""
    newest: Reading
    """The last reading, with a ledger or without."""
    peak: Reading | None
    """The reading that holds most."""
    mean: LedgerIntegral
    internal_per_request_tokens: tuple[float, float] | None
    """Mean slots of tail for each running request: least and most."""
    shares: Shares | None
    """None when no sample was busy."""
    traffic: Traffic
    counterfactual: Counterfactual | None
    """The requests of ``compared`` under reservation."""
    compared: Reading
    """The reading that is compared: the fullest where requests ran at it."""
    verdict: Verdict
    timeline: tuple[Stretch, ...] = ()
    problem: str = ""
    """Why the last of the samples without a ledger has none."""

    @property
    def shown(self) -> Reading:
        """The reading to show: the last one that has a sheet and a running request, else the last with a sheet."""
        return self.peak if self.peak is not None and not self.last.running else self.last


def summarise(readings: Sequence[Reading], spans: Sequence[tuple[VllmEngine, VllmEngine]]) -> EngineSummary:
    """Summarise the readings of one engine; ``spans`` are its first and last scrape of each epoch."""
    whole = [reading for reading in readings if reading.sheet is not None]
    last = whole[-1] if whole else readings[-1]
    peak = max(whole, key=_held, default=None)
    integral = LedgerIntegral()
    for at, reading in enumerate(whole):
        assert reading.sheet is not None
        later = whole[at + 1].seconds if at + 1 < len(whole) else None
        seconds = 1.0 if later is None else min(60.0, max(0.0, later - reading.seconds))
        integral.add(reading.sheet.ledger, seconds=seconds if len(whole) > 1 else 1.0)
    traffic = _find_traffic(spans, seconds=readings[-1].seconds - readings[0].seconds, samples=len(readings))
    busiest = peak if peak is not None and peak.running else last
    comparison = None
    in_slots = busiest.shape is not None and busiest.shape.structure is not Structure.GROUPS
    if in_slots and busiest.shape is not None and busiest.balance is not None:
        comparison = compare_reservations(busiest.shape, busiest.balance, busiest.running or 0, traffic.lengths)
    return EngineSummary(
        engine_index=readings[0].engine_index,
        model=last.model,
        samples=len(readings),
        unread=len(readings) - len(whole),
        restarts=readings[-1].epoch - readings[0].epoch,
        last=last,
        newest=readings[-1],
        peak=peak,
        mean=integral,
        internal_per_request_tokens=_internal_per_request(whole),
        shares=_find_shares(whole),
        traffic=traffic,
        counterfactual=comparison,
        compared=busiest,
        timeline=draw_timeline(readings),
        verdict=judge(_signs(readings, whole, traffic)) if whole else leave_open(last.problem),
        problem=next((reading.problem for reading in reversed(readings) if reading.problem), ""),
    )


def _held(reading: Reading) -> tuple[int, int]:
    assert reading.balance is not None
    return reading.balance.held, reading.running or 0


def _internal_per_request(readings: Sequence[Reading]) -> tuple[float, float] | None:
    total, requests = Span(0, 0), 0
    for reading in readings:
        in_slots = reading.shape is not None and reading.shape.structure is not Structure.GROUPS
        if in_slots and reading.balance is not None and reading.running:
            total, requests = total + reading.balance.internal, requests + reading.running
    return (total.low / requests, total.high / requests) if requests else None


def _find_shares(readings: Sequence[Reading]) -> Shares | None:
    held = pool = unattributed = peak = 0.0
    internal, used = Span(0, 0), Span(0, 0)
    for reading in readings:
        balance, shape, sheet = reading.balance, reading.shape, reading.sheet
        if balance is None or shape is None or sheet is None or not reading.running:
            continue
        held += sheet.figure("held").low
        pool += sheet.ledger.capacity
        internal, used = internal + sheet.figure("internal").span, used + sheet.figure("used").span
        unattributed += sheet.ledger.unattributed - sheet.figure("cached").span.width  # known to be free or cached
        peak = max(peak, sheet.share("held")[0])
    if not held or not pool:
        return None
    return Shares(
        internal_of_held=(internal.low / held, min(1.0, internal.high / held)),
        used_of_pool=(used.low / pool, min(1.0, used.high / pool)),
        held_of_pool=held / pool,
        unattributed_of_pool=unattributed / pool,
        peak_held_of_pool=peak,
    )


def _signs(readings: Sequence[Reading], whole: Sequence[Reading], traffic: Traffic) -> Signs:
    held, used, used_high, while_waiting = [0.0], [0.0], [0.0], []
    for reading in whole:
        assert reading.sheet is not None
        held.append(reading.sheet.share("held")[0])
        low, high = reading.sheet.share("used")
        used.append(low)
        used_high.append(high)
        if reading.waiting:
            while_waiting.append(held[-1])
    waiting = [reading.waiting or 0 for reading in readings]
    return Signs(
        samples=len(whole),
        peak_held_ratio=max(held),
        peak_used_ratio=max(used),
        peak_used_high_ratio=max(used_high),
        peak_waiting=max(waiting),
        peak_running=max((one.running for one in readings if one.running is not None), default=None),
        waiting_ratio=sum(w > 0 for w in waiting) / len(waiting),
        held_ratio_while_waiting=max(while_waiting, default=None),
        preemptions=traffic.preemptions,
        finished=traffic.finished,
        generated_tokens=traffic.generated_tokens,
        seconds=traffic.seconds,
    )


def _find_traffic(spans: Sequence[tuple[VllmEngine, VllmEngine]], *, seconds: float, samples: int) -> Traffic:
    counted = spans if samples > 1 else ()  # one sample counts nothing, which is not zero
    finished = _grown(counted, lambda e: e.count("request_prompt_tokens"))
    queries, hits = _grown(counted, lambda e: e.query_tokens), _grown(counted, lambda e: e.hit_tokens)
    return Traffic(
        seconds=seconds,
        finished=finished,
        finished_per_second=finished / seconds if finished is not None and seconds > 0 else None,
        prompt_tokens=_grown(counted, lambda e: e.prompt_tokens),
        generated_tokens=_grown(counted, lambda e: e.generation_tokens),
        preemptions=_grown(counted, lambda e: e.preemptions),
        hit_ratio=hits / queries if queries and hits is not None else None,
        mean_step_seconds=_mean_step(counted),
        lengths=_find_lengths(spans),
    )


def _grown(spans: Sequence[tuple[VllmEngine, VllmEngine]], read: Callable[[VllmEngine], int | None]) -> int | None:
    pairs = [(read(first), read(last)) for first, last in spans]
    grown = [last - first for first, last in pairs if first is not None and last is not None]
    return sum(grown) if grown else None


def _mean_step(spans: Sequence[tuple[VllmEngine, VllmEngine]]) -> float | None:
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        change = _window(spans, name)
        if change is not None and change.count > 0:
            return change.total / change.count
    return None


def _find_lengths(spans: Sequence[tuple[VllmEngine, VllmEngine]]) -> Lengths:
    names = ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens")
    window = [_window(spans, name) for name in names]
    if all(item is not None and item.count >= _ENOUGH_REQUESTS for item in window[:2]):
        return Lengths(prompt=window[0], output=window[1], max_tokens=window[2], origin="in the window")
    found = spans[-1][1].histograms if spans else {}
    return Lengths(prompt=found.get(names[0]), output=found.get(names[1]), max_tokens=found.get(names[2]))


def _window(spans: Sequence[tuple[VllmEngine, VllmEngine]], name: str) -> HistogramReading | None:
    """Return what a histogram gained in the last epoch."""
    if not spans:
        return None
    first, last = spans[-1][0].histograms.get(name), spans[-1][1].histograms.get(name)
    return None if first is None or last is None else subtract_histogram(last, first)


def subtract_histogram(later: HistogramReading, earlier: HistogramReading) -> HistogramReading:
    """Return what was observed between two readings of one histogram; without buckets when their edges differ."""
    same = later.edges == earlier.edges
    counts = tuple(b - a for a, b in zip(earlier.counts, later.counts, strict=True)) if same else ()
    return replace(
        later,
        edges=later.edges if same else (),
        counts=counts,
        count=later.count - earlier.count,
        total=later.total - earlier.total,
    )
