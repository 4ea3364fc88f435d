"""Several pools of fixed size, one of which runs out first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvledger.engines.facts import Engine, PoolReading
from kvledger.engines.plan import Plan
from kvledger.findings.evidence import PoolsCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.units import counted, format_bytes

__all__ = ["PoolsOutOfBalance"]

_IDLE_RATIO = 0.1
_FULL_RATIO = 0.9
_EMPTY_RATIO = 0.5
_SHARES = tuple(round(0.05 * step, 2) for step in range(1, 21))
_TIMES = tuple(round(0.05 * 1.2**step, 2) for step in range(34))
"""Ratios that are planned: of windowed to full tokens up to 1, of states to tokens from 0.05 to 20."""
_NAMES: Mapping[str, tuple[str, str]] = {
    "swa": ("swa_full_tokens_ratio", "--swa-full-tokens-ratio"),
    "mamba": ("mamba_full_memory_ratio", "--mamba-full-memory-ratio"),
    "state": ("mamba_full_memory_ratio", "--mamba-full-memory-ratio"),
}


class PoolsOutOfBalance(Rule):
    """One of two pools runs out while the other still has room that nobody can use.

    What it measures:
        Pools of fixed size (full and windowed layers, or attention and states): what stays free in the others when
        the first is full of requests of the length that was asked for (else 800 tokens). A tenth of the memory or
        more. Of a running server: one pool at 90 % or more while the other is at half or less.

    Why it costs:
        A request needs units of every pool. The emptier pool is memory that was paid for and cannot be given to it.

    Example:
        1,933,682 tokens of cache beside 614 state slots: the server runs at most 614 requests, however short.

    What to change:
        SGLang `--swa-full-tokens-ratio`, `--mamba-full-memory-ratio`. The proof plans ratios in small steps and takes
        the one with which most requests fit.

    What gets worse:
        Requests of other lengths, for which the old ratio was right.

    Known limits:
        vLLM has one pool for all groups; there the same loss shows as padding (KV041) and fixed cost (KV040).

    Sources:
        SGLang srt/model_executor/pool_configurator.py; sgl-project/sglang#18039.
    """

    code = "KV050"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Fill the pools with requests of one length."""
        plan = case.plan
        if len(plan.pools) < 2 or plan.deployment.engine != "sglang" or plan.failure is not None:
            return
        idle, first = _idle_bytes(case, plan)
        total = sum(rank.count * pool.units * rank.unit_bytes[pool.name] for rank in plan.ranks for pool in plan.pools)
        if not first or idle < _IDLE_RATIO * total:
            return
        yield self.tell(
            case.subject,
            f"with requests of {case.length_words} the pool `{first}` runs out at {case.count_requests():,}"
            f"{_explain_cap(plan, first, case.count_requests())}; {format_bytes(idle)} ({share(idle / total)}) of the "
            "other pools stay free",
            amount(idle, formula="units that stay free when the first pool is full, * their bytes, all ranks"),
            *self._remedies(case, idle),
        )

    def _remedies(self, case: SizeCase, idle: int) -> Iterator[Remedy]:
        names = {_NAMES[pool.name] for pool in case.plan.pools if pool.name in _NAMES}
        for option, flag in sorted(names):
            tried = _SHARES if option.startswith("swa") else _TIMES
            plans = [(ratio, case.replan(options={option: str(ratio)})) for ratio in tried]
            counts = [
                (case.count_requests(plan), -ratio, plan)
                for ratio, plan in plans
                if plan is not None and plan.failure is None
            ]
            if not counts:
                continue
            count, ratio, best = max(counts, key=lambda one: one[:2])
            gone = idle - _idle_bytes(case, best)[0]
            if count > case.count_requests() and gone > 0 and _runs_more(case.plan, best, case.count_requests()):
                yield Remedy(
                    setting=f"{flag} {-ratio:g}",
                    returned=amount(gone, formula="free in the other pools before, minus after: put to use"),
                    trade=Trade.TRADE_OFF,
                    proof=f"planned: {counted(count, 'request')} of {case.length_tokens:,} tokens fit at once instead "
                    f"of {case.count_requests():,}{_compare_caps(case.plan, best, case.count_requests())}",
                    worse="other lengths fit worse",
                )

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Compare the use of two pools at one instant."""
        pools = [pool for pool in case.snapshot.pools if pool.name != "host" and pool.usage_ratio is not None]
        if case.snapshot.engine is not Engine.SGLANG or len(pools) < 2:
            return
        fullest, emptiest = max(pools, key=_usage), min(pools, key=_usage)
        capacity = emptiest.capacity
        if _usage(fullest) < _FULL_RATIO or _usage(emptiest) > _EMPTY_RATIO or capacity is None:
            return
        idle = (1 - _usage(emptiest)) * float(capacity.value)
        yield self.tell(
            case.subject,
            f"the pool `{fullest.name}` is {share(_usage(fullest))} full while `{emptiest.name}` is "
            f"{share(_usage(emptiest))}: the first one limits, and the rest of the other cannot be used",
            amount(idle, formula=f"free {emptiest.unit} of the emptier pool", unit="tokens"),
        )


def _explain_cap(plan: Plan, first: str, fitting: int) -> str:
    """Say what the engine runs of the requests that fit, where that is less, and why."""
    limit = plan.request_limit
    if limit is None or limit >= fitting:
        return ""
    states = next((pool.usable_units for pool in plan.pools if pool.name == first), 0)
    by_states = first in ("mamba", "state") and plan.deployment.prefix_caching is not False and limit >= states // 5
    why = ": beside a running request's state the radix cache keeps further ones" if by_states else " (its own limit)"
    return f", of which the engine runs at most {limit:,} at once{why}"


def _runs_more(before: Plan, after: Plan, fitting: int) -> bool:
    """Tell whether the engine itself lets more requests run, where it lets less run than fit."""
    if before.request_limit is None or before.request_limit >= fitting:
        return True
    return after.request_limit is None or after.request_limit > before.request_limit


def _compare_caps(before: Plan, after: Plan, fitting: int) -> str:
    if before.request_limit is None or after.request_limit is None or before.request_limit >= fitting:
        return ""
    return f", and the engine runs at most {after.request_limit:,} instead of {before.request_limit:,}"


def _usage(pool: PoolReading) -> float:
    return 0.0 if pool.usage_ratio is None else float(pool.usage_ratio.value)


def _idle_bytes(case: SizeCase, plan: Plan) -> tuple[int, str]:
    """Return what stays free when as many requests run as fit, and which pool is full then."""
    need = plan.count_units(case.length_tokens)
    count = replace(plan, request_limit=None).count_requests(case.length_tokens)
    rest = {pool.name: pool.usable_units - count * need[pool.name] for pool in plan.pools if need[pool.name]}
    first = min(rest, key=lambda name: rest[name] / need[name], default="")
    idle = sum(rank.count * units * rank.unit_bytes[name] for rank in plan.ranks for name, units in rest.items())
    return (idle, first) if count else (0, "")
