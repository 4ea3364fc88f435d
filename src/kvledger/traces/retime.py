"""New arrivals for a trace: for lengths without times, or for the question what another rate would do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.ledger import Accuracy
from kvledger.traces.record import Trace
from kvledger.traces.synthetic.arrivals import ArrivalLaw

__all__ = ["with_rate"]

_PIECE = 1 << 20


def with_rate(trace: Trace, rate: float, *, seed: int = 0) -> Trace:
    """Return the trace with arrivals drawn anew, in the same order: Poisson, or all at 0 when the rate is infinite.

    Args:
        trace: Its lengths, identity and order stay.
        rate: Mean arrivals a second.
        seed: Of the gaps.

    Raises:
        UsageError: The rate is not above 0.
    """
    if not rate > 0:
        raise UsageError(f"a rate of {rate:g} requests a second is not above 0", hint="give a rate such as 2, or inf")
    how = "all at 0" if math.isinf(rate) else f"Poisson, {rate:g} a second, seed {seed}"
    kept = tuple(note for note in trace.notes if not note.startswith("no arrival times"))
    return replace(
        trace,
        workload=replace(trace.workload, arrival_seconds=_drawn(len(trace), rate, seed)),
        notes=(*kept, f"arrivals are drawn anew ({how}), in the order of the trace"),
        accuracy=replace(trace.accuracy, arrivals=Accuracy.MODELLED),
        observed=None,
    ).check()


def _drawn(count: int, rate: float, seed: int) -> NDArray[np.float64]:
    """Draw arrivals piece by piece, so that nothing but the result is as long as the trace."""
    law, stream = ArrivalLaw(rate=rate), np.random.Generator(np.random.PCG64([seed, 0xA221]))
    arrivals, last = np.empty(count), 0.0
    for i in range(0, count, _PIECE):
        gaps = law.gaps(stream.random(min(_PIECE, count - i)))
        gaps[0] += last
        np.cumsum(gaps, out=arrivals[i : i + _PIECE])
        last = float(arrivals[min(i + _PIECE, count) - 1])
    return arrivals
