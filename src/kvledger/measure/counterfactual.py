"""What per-request reservation would hold for the requests that run now, and how many it would admit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvledger.engines.facts import HistogramReading
from kvledger.ledger import Accuracy
from kvledger.measure.balance import Balance
from kvledger.measure.figure import Span
from kvledger.measure.pool import PoolShape

__all__ = ["Alternative", "Counterfactual", "Lengths", "compare_reservations"]

INTERNAL_USABLE_RATIO = 0.9
EXTERNAL_USABLE_RATIO = (0.8, 0.9)
"""What rounding and holes leave usable under contiguous allocation: not measurable here, taken from the usual range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Histograms of ended requests: of the window where enough ended in it, else since the start."""

    prompt: HistogramReading | None = None
    output: HistogramReading | None = None
    max_tokens: HistogramReading | None = None
    origin: str = "since the start of the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to reserve: tokens held for the requests now running, and requests the pool would admit."""

    policy: str
    reserved_tokens: Span
    per_request_tokens: Span
    admitted: Span
    used_ratio: tuple[float, float]
    """Stored tokens over reserved ones."""
    accuracy: Accuracy
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """The same instant under reservation."""

    running: int
    alternatives: tuple[Alternative, ...]
    block_tables: Alternative
    """What the blocks do hold for the same requests, and how many like them the pool holds in blocks."""
    times_more: float | None
    """What block tables admit over what `max` admits; None when either is 0."""
    reservation_usable_ratio: float | None
    """Stored over reserved at the longest length (derived)."""
    product_ratio: tuple[float, float] | None
    """That times what rounding and holes leave usable (modelled)."""
    missing: tuple[str, ...] = ()

    def find(self, policy: str) -> Alternative | None:
        """Return one alternative by its policy."""
        return next((item for item in self.alternatives if item.policy == policy), None)


def compare_reservations(shape: PoolShape, balance: Balance, running: int, lengths: Lengths) -> Counterfactual | None:
    """Return what reservation would hold for the requests now running, None when none runs."""
    if not running or not balance.held:
        return None
    known = list(_reservations(shape, lengths))
    alternatives = tuple(
        _alternative(shape, balance, running, policy, per_request, accuracy, formula)
        for policy, per_request, accuracy, formula in known
    )
    admit = shape.usable_tokens * running // balance.held
    tables = Alternative(
        policy="block tables",
        reserved_tokens=Span.exact(balance.held),
        per_request_tokens=Span(balance.held // running, -(-balance.held // running)),
        admitted=Span.exact(admit),
        used_ratio=(balance.used.low / balance.held, min(1.0, balance.used.high / balance.held)),
        accuracy=Accuracy.DERIVED,
        formula="held by the same requests in blocks; admitted: usable slots * running / held",
    )
    longest = next((item for item in alternatives if item.policy == "max"), None)
    usable = longest.used_ratio[1] if longest else None
    low, high = EXTERNAL_USABLE_RATIO
    return Counterfactual(
        running=running,
        alternatives=alternatives,
        block_tables=tables,
        times_more=admit / longest.admitted.low if longest and longest.admitted.low else None,
        reservation_usable_ratio=usable,
        product_ratio=None
        if usable is None
        else (usable * INTERNAL_USABLE_RATIO * low, usable * INTERNAL_USABLE_RATIO * high),
        missing=tuple(_missing(shape, lengths)),
    )


def _reservations(shape: PoolShape, lengths: Lengths) -> Iterator[tuple[str, Span, Accuracy, str]]:
    longest = shape.max_model_len
    if longest is not None:
        yield "max", Span.exact(longest), Accuracy.DERIVED, f"max_model_len, from {shape.max_model_len_source}"
    prompt = _mean(lengths.prompt)
    if prompt is None:
        return
    typical = f"a running request is taken for a mean one of those that ended {lengths.origin}"
    declared = _mean(lengths.max_tokens)
    if declared is not None:
        value = math.ceil(prompt + declared)
        value = value if longest is None else min(value, longest)
        yield "declared", Span.exact(value), Accuracy.MODELLED, f"mean prompt + mean max_tokens; {typical}"
    if lengths.output is not None and lengths.output.count:
        low, high = _mean_power_of_two(lengths.output, longest)
        exact = math.ceil(prompt + lengths.output.total / lengths.output.count)
        span = Span(max(exact, math.floor(prompt + low)), max(exact, math.ceil(prompt + high)))
        yield "pow2", span, Accuracy.MODELLED, f"mean prompt + output rounded up to a power of two; {typical}"
        yield "exact", Span.exact(exact), Accuracy.MODELLED, f"mean prompt + mean output; {typical}"


def _alternative(
    shape: PoolShape, balance: Balance, running: int, policy: str, per_request: Span, accuracy: Accuracy, formula: str
) -> Alternative:
    per_request = Span(max(1, per_request.low), max(1, per_request.high))
    if accuracy is Accuracy.MODELLED:  # of ended requests; a reservation holds at least what its request has stored
        least = Span(-(-balance.used.low // running), -(-balance.used.high // running))
        per_request = Span(max(per_request.low, least.low), max(per_request.high, least.high))
    reserved = per_request.scale(running)
    capacity = shape.capacity_tokens
    return Alternative(
        policy=policy,
        reserved_tokens=reserved,
        per_request_tokens=per_request,
        admitted=Span(capacity // per_request.high, capacity // per_request.low),
        used_ratio=(min(1.0, balance.used.low / reserved.high), min(1.0, balance.used.high / reserved.low)),
        accuracy=accuracy,
        formula=formula,
    )


def _mean(histogram: HistogramReading | None) -> float | None:
    return histogram.total / histogram.count if histogram is not None and histogram.count else None


def _mean_power_of_two(histogram: HistogramReading, longest: int | None) -> tuple[float, float]:
    """Return the least and the most that the mean of 2**ceil(log2(output)) can be.

    A number is at most its power of two, which is less than twice the number; buckets that are there narrow that.
    """
    mean = histogram.total / histogram.count
    if not _has_buckets(histogram):
        return mean, 2 * mean
    low = high = below = 0.0
    before = 0.0
    for edge, cumulative in zip(histogram.edges, histogram.counts, strict=True):
        mass = max(0.0, cumulative - below)
        top = edge if math.isfinite(edge) else float(longest or max(before, 1.0))
        low += mass * _power_of_two(before + 1 if before else 1)
        high += mass * _power_of_two(max(top, 1.0))
        below, before = max(below, cumulative), edge if math.isfinite(edge) else before
    return max(mean, low / histogram.count), max(mean, min(2 * mean, high / histogram.count))


def _has_buckets(histogram: HistogramReading) -> bool:
    """Tell whether the buckets hold all that was counted: a recording keeps them less often than sums."""
    return bool(histogram.counts) and histogram.counts[-1] == histogram.count


def _power_of_two(value: float) -> int:
    return 1 << max(0, math.ceil(math.log2(max(1.0, value))))


def _missing(shape: PoolShape, lengths: Lengths) -> Iterator[str]:
    if shape.max_model_len is None:
        yield "the longest request is not known: give --max-model-len"
    if lengths.prompt is None or not lengths.prompt.count:
        yield "no request has ended yet, so `declared` and `pow2` are not known"
    elif lengths.output is not None and lengths.output.count and not _has_buckets(lengths.output):
        yield "the buckets of output lengths are not in this window: `pow2` is only known to be one to two means"
