"""A trace as read: the workload, where it came from, and everything that was left out or changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.replay.observed import Observed
from kvledger.replay.workload import Workload
from kvledger.traces.served import Served
from kvledger.units import counted

__all__ = ["ErrorBand", "Trace", "TraceAccuracy", "TraceFormat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """A stable name for a format, and what it is in one sentence."""

    name: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """How far a modelled length may be from the truth: truth = value * ratio, low_ratio <= ratio <= high_ratio."""

    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAccuracy:
    """How the three columns of a trace are known; a modelled length may carry an error band."""

    arrivals: Accuracy = Accuracy.MEASURED
    prompts: Accuracy = Accuracy.MEASURED
    outputs: Accuracy = Accuracy.MEASURED
    prompt_band: ErrorBand | None = None
    output_band: ErrorBand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests read from one source or drawn from one description.

    Invariant: rows read = requests in the workload + rows dropped, and the workload keeps its own invariant.

    ``dropped``: reason -> rows left out. ``adjusted``: what -> rows changed but kept. ``notes``: what a reader of any
    result should know about this trace.
    """

    workload: Workload
    format: TraceFormat
    rows_read: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    adjusted: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    accuracy: TraceAccuracy = field(default_factory=TraceAccuracy)
    observed: Observed | None = None
    """When requests really got their tokens, where the source says so."""
    served: Served | None = None
    """How the server was set, where the source is a recording of one."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.workload)

    def check(self) -> Trace:
        """Return the trace itself when its invariant holds.

        Raises:
            TraceError: Rows read are not the rows kept plus the rows dropped, or the workload is not in order.
        """
        kept, dropped = len(self.workload), sum(self.dropped.values())
        if self.rows_read != kept + dropped:
            raise TraceError(f"{counted(self.rows_read, 'row')} read are not {kept} kept plus {dropped} dropped")
        self.workload.check()
        if self.observed is not None:
            self.observed.check(self.workload.arrival_seconds)
        return self
