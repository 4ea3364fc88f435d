"""What was observed of each request while it was served: moments, for comparing a replay with what really happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import TraceError
from kvledger.units import counted

__all__ = ["Observed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """When each request got its first and its last token, on the clock of the arrivals.

    Both (requests,), float64, in the order of the workload; NaN where it is not known.
    """

    first_token_seconds: NDArray[np.float64]
    end_seconds: NDArray[np.float64]

    @property
    def moments(self) -> int:
        """How many moments are known."""
        return int(np.isfinite(self.first_token_seconds).sum() + np.isfinite(self.end_seconds).sum())

    def check(self, arrival_seconds: NDArray[np.float64]) -> Observed:
        """Return the record itself when it fits the arrivals.

        Raises:
            TraceError: A column has another length, or a moment lies before its request arrived.
        """
        for name in ("first_token_seconds", "end_seconds"):
            column = getattr(self, name)
            if len(column) != len(arrival_seconds):
                raise TraceError(
                    f"observed `{name}` has {counted(len(column), 'row')}, the workload has "
                    f"{counted(len(arrival_seconds), 'request')}"
                )
            if bool((column < arrival_seconds).any()):
                raise TraceError(f"observed `{name}` lies before the arrival of its request")
        return self
