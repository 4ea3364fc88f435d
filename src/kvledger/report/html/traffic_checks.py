"""What must hold in a saved trace, cache or check before a page is made of it."""

from __future__ import annotations

from kvledger.errors import SourceError
from kvledger.report.html.bounds import check_numbers, check_shares
from kvledger.report.html.saved_check import SavedCheck
from kvledger.report.html.saved_traffic import SavedCache, SavedTraceFile

__all__ = ["check_cache", "check_limits", "check_trace"]

_MOST_BUDGETS = 256
_MOST_LIMITS = 1_000


def check_trace(result: SavedTraceFile, name: str) -> None:
    """Raise when a trace tells what no trace has."""
    where, rate = f"`{name}`", result.rate_per_second
    known = (rate.mean, rate.peak_10_seconds, rate.peak_60_seconds, result.arrival_cv)
    counts = (result.rows_read, result.requests, result.span_seconds, result.sessions, result.answers)
    check_numbers((*counts, result.beam_searches, *(n for n in known if n is not None)), where)
    for column in (result.prompt, result.output, result.total, result.declared_max_tokens):
        if column is not None:
            ranks = (column.p50_tokens, column.p90_tokens, column.p95_tokens, column.p99_tokens, column.max_tokens)
            check_numbers((column.count, column.mean_tokens, column.sum_tokens, *ranks), where)
    if result.infinite_cache_prefix is not None:
        check_shares((result.infinite_cache_prefix.ratio,), where)
    for low, high in result.accuracy.error_band_ratio.values():
        check_numbers((low, high), where)


def check_cache(result: SavedCache, name: str) -> None:
    """Raise when a cache finds more than all, or not every size was asked with the same evictions."""
    where = f"`{name}`"
    names = [one.eviction for one in result.budgets[0].evictions] if result.budgets else []
    if not 1 <= len(result.budgets) <= _MOST_BUDGETS or not 1 <= len(names) <= 8 or len(set(names)) < len(names):
        raise SourceError(f"{where} is damaged: it has {len(result.budgets)} sizes and {len(names)} evictions")
    check_numbers((result.bytes_per_token, result.block_tokens, result.block_bytes, result.distinct_blocks), where)
    check_numbers((result.trace.requests, result.first_measured_request), where)
    check_shares((result.ceiling.hit_ratio,), where)
    for budget in result.budgets:
        if [one.eviction for one in budget.evictions] != names:
            raise SourceError(f"{where} is damaged: not every size has the evictions {', '.join(names)}")
        check_numbers((budget.budget_bytes, budget.blocks), where)
        check_shares((one.hit_ratio for one in budget.evictions), where)
    for live in result.live[:_MOST_LIMITS]:
        check_numbers((live.budget_bytes, live.mean_running or 0.0, live.preemptions or 0), where)
        check_shares((live.alone_hit_ratio, live.live_hit_ratio or 0.0), where)


def check_limits(result: SavedCheck, name: str) -> None:
    """Raise when there is no limit, or a number has no bounds."""
    if not 1 <= len(result.limits) <= _MOST_LIMITS:
        raise SourceError(f"`{name}` has {len(result.limits):,} limits, not from 1 to {_MOST_LIMITS:,}")
    for limit in result.limits:
        where = f"`{name}`, `{limit.limit}`"
        low, high = (limit.low or 0.0, limit.high or 0.0)
        check_numbers((limit.bound, low, high), where)
        if low > high or (limit.low is None) != (limit.high is None):
            raise SourceError(f"{where} is damaged: it is from {limit.low} to {limit.high}")
        if not limit.is_count:
            check_shares((limit.bound, low, high), where)
