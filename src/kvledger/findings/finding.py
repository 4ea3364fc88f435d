"""What a finding says: a number, what would change it, what that gives back, and what gets worse."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvledger.ledger import Accuracy
from kvledger.measure.figure import Figure, Span

__all__ = ["Finding", "FindingsReport", "Remedy", "Trade", "amount"]


class Trade(StrEnum):
    """Whether a change has a price."""

    SAFE = "safe"
    """Nothing gets worse that the proof can see, and nothing is known that it cannot see."""
    TRADE_OFF = "trade-off"
    """Something gets worse, and it is said with the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change, proved by a replay or by a computation of sizes.

    Invariant: a trade-off says what gets worse, and a safe change has nothing to say.
    """

    setting: str
    """What to change, in the engine's own words."""
    returned: Figure
    """What the change gives back: memory that the same load no longer takes, loses or computes again."""
    trade: Trade
    proof: str
    """What was computed, with the numbers of before and after."""
    worse: str = ""
    """What gets worse, with the numbers where they are known."""
    gain: str = ""
    """What the change is good for where it gives no memory back, in a few words."""

    @property
    def is_for_memory(self) -> bool:
        """Whether the change gives any memory back."""
        return self.returned.high > 0

    def __post_init__(self) -> None:
        """Assert that a trade-off says its price, and nothing else does."""
        assert bool(self.worse) == (self.trade is Trade.TRADE_OFF), self.setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found in one input. Without a remedy it explains a number that is often misread."""

    code: str
    title: str
    subject: str
    """What it was found in: a policy, an engine, a plan."""
    sentence: str
    """What was found, with its numbers."""
    size: Figure
    """The memory it speaks of: lost, held for nothing, or explained."""
    remedies: tuple[Remedy, ...] = ()

    @property
    def best(self) -> Remedy | None:
        """The remedy that gives back most for sure; of equal ones a safe one."""
        return max(
            self.remedies,
            key=lambda remedy: (remedy.returned.low, remedy.trade is Trade.SAFE),
            default=None,
        )

    @property
    def returned(self) -> int:
        """What the best remedy gives back at least, in the unit of ``size``; 0 without one."""
        best = self.best
        return best.returned.low if best is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsReport:
    """Everything found in one input, what gives back most first."""

    findings: tuple[Finding, ...]
    unproved: tuple[str, ...] = ()
    """Codes whose signs are there, but whose proof was not allowed to run."""

    @classmethod
    def ranked(cls, findings: list[Finding], unproved: list[str] | None = None) -> FindingsReport:
        """Rank by what is given back, then by what is spoken of; equal ones by code and subject."""
        ordered = sorted(findings, key=lambda f: (-f.returned, -f.size.low, f.code, f.subject))
        return cls(findings=tuple(ordered), unproved=tuple(sorted(set(unproved or ()))))


def amount(
    low: float,
    high: float | None = None,
    *,
    formula: str,
    accuracy: Accuracy = Accuracy.DERIVED,
    unit: str = "bytes",
    cause: str = "",
) -> Figure:
    """Build the figure of a finding; what is below nothing counts as nothing."""
    least = max(0, round(low))
    most = least if high is None else max(least, round(high))
    return Figure(name="memory", span=Span(least, most), unit=unit, accuracy=accuracy, formula=formula, cause=cause)
