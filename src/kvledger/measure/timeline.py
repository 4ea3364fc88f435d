"""The ledgers of one engine over time, joined until there are few enough to draw; peaks are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

from kvledger.ledger import Account, LedgerIntegral
from kvledger.measure.sheet import Sheet

__all__ = ["Sampled", "Stretch", "draw_timeline"]

_MOST_STRETCHES = 2_048
_LONGEST_SECONDS = 60.0
"""How long a sample stands for what follows it, or three times the usual time between samples where that is longer."""


class Sampled(Protocol):
    """One sample of one pool; None where it does not tell."""

    @property
    def seconds(self) -> float:
        """When it was taken."""

    @property
    def running(self) -> int | None:
        """Requests that ran."""

    @property
    def waiting(self) -> int | None:
        """Requests that waited."""

    @property
    def preemptions(self) -> int | None:
        """Since the engine started."""

    @property
    def sheet(self) -> Sheet | None:
        """Its ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Samples that follow each other: means weighted by the time they stand for, with the peaks kept.

    ``start_seconds`` counts from the first sample. Accounts that are intervals stand with their least, and the rest of
    the interval is in ``unattributed``, as in every ledger. ``preemptions`` counts since the engine started.
    """

    start_seconds: float
    seconds: float
    samples: int
    ratio: dict[Account, float]
    running: float | None
    waiting: float | None
    peak_used_ratio: float
    peak_held_ratio: float
    preemptions: int | None


def draw_timeline(readings: Sequence[Sampled]) -> tuple[Stretch, ...]:
    """Return the stretches of an engine's samples in order; samples without a ledger leave a gap."""
    told = [reading for reading in readings if reading.sheet is not None]
    if not told:
        return ()
    spans = _stand_for(readings)
    begin = readings[0].seconds
    every = -(-len(told) // _MOST_STRETCHES)
    known = [(reading, seconds) for reading, seconds in zip(readings, spans, strict=True) if reading.sheet is not None]
    return tuple(_join(known[at : at + every], begin) for at in range(0, len(known), every))


def _stand_for(readings: Sequence[Sampled]) -> list[float]:
    """Return how long each sample stands for what follows it: until the next one, but not for ever."""
    gaps = [max(0.0, later.seconds - one.seconds) for one, later in pairwise(readings)]
    usual = median(gaps) if gaps else 1.0
    longest = max(_LONGEST_SECONDS, 3 * usual)
    return [min(gap, longest) for gap in gaps] + [usual]


def _join(part: Sequence[tuple[Sampled, float]], begin: float) -> Stretch:
    integral, used, held = LedgerIntegral(), 0.0, 0.0
    for reading, seconds in part:
        assert reading.sheet is not None
        ledger = reading.sheet.ledger
        integral.add(ledger, seconds=seconds or 1e-9)
        used = max(used, ledger.used / max(1, ledger.capacity))
        held = max(held, reading.sheet.share("held")[1])
    (first, _), (last, stands) = part[0], part[-1]
    return Stretch(
        start_seconds=first.seconds - begin,
        seconds=last.seconds + stands - first.seconds,
        samples=len(part),
        ratio=integral.mean_ratio(),
        running=_mean([(reading.running, seconds) for reading, seconds in part]),
        waiting=_mean([(reading.waiting, seconds) for reading, seconds in part]),
        peak_used_ratio=min(1.0, used),
        peak_held_ratio=min(1.0, held),
        preemptions=last.preemptions,
    )


def _mean(values: Sequence[tuple[int | None, float]]) -> float | None:
    known = [(value, seconds or 1e-9) for value, seconds in values if value is not None]
    whole = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / whole if known else None
