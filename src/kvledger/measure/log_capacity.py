"""The size of a pool from periodic lines: some print the tokens held and the share of the pool that they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvledger.engines.facts import PeriodicSample

__all__ = ["capacity_note", "find_capacity"]


def find_capacity(samples: Sequence[PeriodicSample]) -> tuple[int, int] | None:
    """Return the least and the most tokens that the pool holds by these lines; None where they tell nothing.

    Only lines with one pool count: with several, the share printed is that of the fullest.
    """
    low, high = 0, None
    for sample in samples:
        held, share = sample.tokens, sample.usage_ratio
        if held is None or share is None or sample.pools or not held.low or share.low <= 0:
            continue
        least, most = math.ceil(held.low / share.high), math.floor(held.high / share.low)
        low, high = max(low, least), most if high is None else min(high, most)
    if high is None or low > high:
        return None
    return low, high


def capacity_note(samples: Sequence[PeriodicSample]) -> tuple[str, ...]:
    """Write what the lines tell, where they do."""
    found = find_capacity(samples)
    if found is None:
        return ()
    low, high = found
    return (f"by the periodic lines the pool holds {low:,} to {high:,} tokens: those held over their share of it",)
