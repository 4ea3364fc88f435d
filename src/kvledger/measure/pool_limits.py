"""Limits on pools of engines that tell them themselves: the same names as for vLLM."""

from __future__ import annotations

from kvledger.measure.limits import Limit, LimitName
from kvledger.measure.pool_summary import PoolSummary

__all__ = ["check_pool_limits"]

Range = tuple[float | None, float | None]


def check_pool_limits(pool: PoolSummary, bounds: dict[LimitName, float], *, failing: str = "") -> list[Limit]:
    """Compare one pool with every limit that was set; ``failing`` says why the last sample of its server failed."""
    return [
        Limit(name=name, bound=bound, low=low, high=high, reason=reason if low is None else "")
        for name, bound in bounds.items()
        for low, high in [_find(pool, name, failing)]
        for reason in [_find_reason(pool, name, failing)]
    ]


def _find(pool: PoolSummary, name: LimitName, failing: str) -> Range:
    shares = pool.shares
    match name:
        case LimitName.MAX_WAITING:
            waiting = None if failing else pool.newest.waiting
            return waiting, waiting
        case LimitName.MAX_PREEMPTIONS:
            return pool.traffic.preemptions, pool.traffic.preemptions
        case LimitName.MAX_HELD if shares is None and pool.peak is not None and pool.peak.sheet is not None:
            return pool.peak.sheet.share("held")
        case _ if shares is None:
            return None, None
        case LimitName.MAX_INTERNAL:
            return shares.internal_of_held
        case LimitName.MIN_UTILISATION:
            return shares.used_of_pool
        case LimitName.MAX_HELD:
            return shares.peak_held_of_pool
        case _:
            return shares.unattributed_of_pool, shares.unattributed_of_pool


def _find_reason(pool: PoolSummary, name: LimitName, failing: str) -> str:
    """Return why a number is not known."""
    if name is LimitName.MAX_WAITING and failing:
        return f"the last sample failed: {failing}"
    if name is LimitName.MAX_WAITING:
        return "the server does not tell how many requests wait"
    if name is LimitName.MAX_PREEMPTIONS:
        one = pool.samples == 1
        return "one sample counts nothing: two are needed" if one else "this engine does not count preemptions"
    return f"no ledger: {pool.problem}" if pool.peak is None else "no request ran at any sample"
