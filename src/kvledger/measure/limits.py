"""Limits on a measurement, for CI and alerts: kept, broken, or not to be told from outside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvledger.measure.meter import Reading
from kvledger.measure.summary import EngineSummary

__all__ = ["Limit", "LimitName", "Outcome", "check_limits"]


class LimitName(StrEnum):
    """What can be limited; ratios are means over busy samples unless they are peaks."""

    MAX_INTERNAL = "max-internal"
    MIN_UTILISATION = "min-utilisation"
    MAX_HELD = "max-held"
    MAX_UNATTRIBUTED = "max-unattributed"
    MAX_WAITING = "max-waiting"
    MAX_PREEMPTIONS = "max-preemptions"

    @property
    def is_count(self) -> bool:
        """True where the limit is a number of requests or events, not a share."""
        return self in (LimitName.MAX_WAITING, LimitName.MAX_PREEMPTIONS)

    @property
    def meaning(self) -> str:
        """What is compared with the limit."""
        return {
            LimitName.MAX_INTERNAL: "internal, of what is held",
            LimitName.MIN_UTILISATION: "tokens stored, of the pool",
            LimitName.MAX_HELD: "held at the peak, of the pool",
            LimitName.MAX_UNATTRIBUTED: "unattributed, of the pool",
            LimitName.MAX_WAITING: "requests waiting in the last sample",
            LimitName.MAX_PREEMPTIONS: "preemptions in the window",
        }[self]


class Outcome(StrEnum):
    """What became of a limit."""

    KEPT = "kept"
    BROKEN = "broken"
    OPEN = "open"
    """The number is an interval on both sides of the limit."""
    UNKNOWN = "unknown"
    """There is no such number: nothing ran, or the server does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit, and what was found for one engine."""

    name: LimitName
    bound: float
    low: float | None
    high: float | None
    reason: str = ""
    """Why there is no such number."""

    @property
    def outcome(self) -> Outcome:
        """Compare; only what is surely beyond the limit is broken."""
        if self.low is None or self.high is None:
            return Outcome.UNKNOWN
        if self.name is LimitName.MIN_UTILISATION:
            broken, kept = self.high < self.bound, self.low >= self.bound
        else:
            broken, kept = self.low > self.bound, self.high <= self.bound
        return Outcome.BROKEN if broken else Outcome.KEPT if kept else Outcome.OPEN


def check_limits(engine: EngineSummary, bounds: dict[LimitName, float], *, failing: str = "") -> list[Limit]:
    """Compare one engine with every limit that was set; ``failing`` says why the last sample of its server failed."""
    return [
        Limit(name=name, bound=bound, low=low, high=high, reason=reason if low is None else "")
        for name, bound in bounds.items()
        for low, high in [_find(engine, name, failing)]
        for reason in [_find_reason(engine, name, failing)]
    ]


def _find(engine: EngineSummary, name: LimitName, failing: str) -> tuple[float | None, float | None]:
    shares = engine.shares
    if name is LimitName.MAX_WAITING:
        waiting = None if failing else engine.newest.waiting
        return (waiting, waiting)
    if name is LimitName.MAX_PREEMPTIONS:
        return (engine.traffic.preemptions, engine.traffic.preemptions)
    if name is LimitName.MAX_HELD and shares is None and engine.peak is not None:
        return _find_held(engine.peak)
    if shares is None:
        return (None, None)
    if name is LimitName.MAX_INTERNAL:
        return shares.internal_of_held
    if name is LimitName.MIN_UTILISATION:
        return shares.used_of_pool
    ratio = shares.peak_held_of_pool if name is LimitName.MAX_HELD else shares.unattributed_of_pool
    return (ratio, ratio)


def _find_held(peak: Reading) -> tuple[float | None, float | None]:
    """Return the share held at the fullest sample, also where no request runs."""
    return (None, None) if peak.sheet is None else peak.sheet.share("held")


def _find_reason(engine: EngineSummary, name: LimitName, failing: str) -> str:
    """Return why a number is not known."""
    if name is LimitName.MAX_WAITING and failing:
        return f"the last sample failed: {failing}"
    if name is LimitName.MAX_WAITING:
        return "the scrape does not tell how many requests wait"
    if name is LimitName.MAX_PREEMPTIONS:
        one = engine.samples == 1
        return "one sample counts nothing: two are needed" if one else "the scrape does not count preemptions"
    return f"no ledger: {engine.problem}" if engine.peak is None else "no request ran at any sample"
