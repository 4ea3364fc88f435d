"""From the arrays of a finished replay to its `Outcome`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UnbalancedLedger
from kvledger.ledger import Account, PaperView
from kvledger.pool.policy import Policy
from kvledger.replay import _layout as at
from kvledger.replay.outcome import (
    Factors,
    Latency,
    Outcome,
    PrefixHits,
    Rejection,
    SeriesRows,
    TimelinePoint,
    is_held_up,
)
from kvledger.replay.settings import PoolSize

Sums = NDArray[np.float64]


def ratios_of(sums: Sums, size: PoolSize) -> dict[Account, float]:
    """Return the share of each account over one stretch; zeros when it has no time."""
    return dict(zip(Account, _shares(sums[np.newaxis], size)[0].tolist()))


def _shares(rows: Sums, size: PoolSize) -> NDArray[np.float64]:
    """Return the share of each account over each of several stretches, in the order of `Account`."""
    capacity = size.capacity_bytes * rows[:, at.A_SECONDS]
    used = rows[:, at.A_USED] * size.token_bytes
    kept = rows[:, at.A_KEPT] * size.token_bytes
    cached = rows[:, at.A_CACHED] * size.token_bytes
    held = rows[:, at.A_HELD] / size.unit_tokens * size.unit_bytes
    external = rows[:, at.A_EXTERNAL] / size.unit_tokens * size.unit_bytes
    parts = {
        Account.USED: used,
        Account.CACHED: cached,
        Account.RESERVED: kept - used,
        Account.INTERNAL: held - kept,
        Account.EXTERNAL: external,
        Account.FREE: capacity - held - external - cached,
    }
    shares = np.zeros((len(rows), len(Account)))
    timed = capacity > 0
    for column, account in enumerate(Account):
        if account in parts:
            np.divide(parts[account], capacity, out=shares[:, column], where=timed)
    return _clean(shares)


def _clean(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take away what rounding of sums leaves around zero; a share that is really negative is a fault."""
    if len(shares) and float(shares.min()) < -1e-9:
        raise UnbalancedLedger(f"the books do not balance: an account holds {shares.min():g} of the pool")
    return np.where(shares >= 1e-12, shares, 0.0)


def _clean_one(share: float) -> float:
    return float(_clean(np.array([share]))[0])


def never_used_ratio(sums: Sums, size: PoolSize) -> float:
    """Return the share of the pool that is reserved and will never be used."""
    seconds = float(sums[at.A_SECONDS])
    return float(sums[at.A_NEVER] * size.token_bytes / (size.capacity_bytes * seconds)) if seconds > 0 else 0.0


def shared_saving_ratio(sums: Sums, size: PoolSize) -> float:
    """Return what sharing prefixes saves, as a share of the pool."""
    seconds = float(sums[at.A_SECONDS])
    return float(sums[at.A_SAVED] * size.token_bytes / (size.capacity_bytes * seconds)) if seconds > 0 else 0.0


def stale_ratio(sums: Sums, size: PoolSize) -> float:
    """Return what is held of tokens that no layer of its group needs, as a share of the pool."""
    seconds = float(sums[at.A_SECONDS])
    return float(sums[at.A_STALE] * size.token_bytes / (size.capacity_bytes * seconds)) if seconds > 0 else 0.0


def paper_view(ratio: dict[Account, float], never_used: float) -> PaperView:
    """Return the categories of the paper's Figure 2, and what a prefix cache keeps, which it has not."""
    used, reservation = ratio[Account.USED], ratio[Account.RESERVED] - never_used
    cached = ratio[Account.CACHED]
    return PaperView(
        token_states=used,
        reservation=_clean_one(reservation),
        internal_fragmentation=never_used,
        external_and_others=_clean_one(1.0 - used - reservation - never_used - cached) if any(ratio.values()) else 0.0,
        kept_for_reuse=cached,
    )


def factors_of(ratio: dict[Account, float]) -> Factors:
    """Return the three factors; each is 1 where it has nothing to divide."""
    used = ratio[Account.USED]
    kept = used + ratio[Account.RESERVED]
    held = kept + ratio[Account.INTERNAL]
    return Factors(
        length_ratio=used / kept if kept else 1.0, block_efficiency=kept / held if held else 1.0, usable_share=held
    )


def latency_of(state: at.State, what: int) -> Latency | None:
    """Return the latency from arrival to one moment, over the requests that reached it."""
    if state.log.latencies.shape[1]:
        return latency_since(state.trace.arrivals, state.log.latencies[what])
    counts = state.log.latency_counts[what]
    total = int(counts.sum())
    if total == 0:
        return None
    reached = np.cumsum(counts)
    middles = 2.0 ** ((np.arange(len(counts)) + 0.5) / 256.0 - 30.0)
    middles[0] = 0.0
    p50, p90, p95, p99 = (float(middles[np.searchsorted(reached, _rank(q, total) + 1)]) for q in (50, 90, 95, 99))
    longest = float(state.log.latency_sums[what, 1])
    mean = float(state.log.latency_sums[what, 0] / total)
    return Latency(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99, max=longest, exact=False)


def latency_since(arrivals: NDArray[np.float64], moments: NDArray[np.float64]) -> Latency | None:
    """Return the latency from arrivals to moments, NaN where one was never reached."""
    seconds = moments - arrivals
    seconds = np.sort(seconds[~np.isnan(seconds)])
    return _exact_latency(seconds) if len(seconds) else None


def _rank(percent: int, total: int) -> int:
    """Return the index of a nearest-rank percentile among ``total`` sorted values."""
    return max(0, -(-percent * total // 100) - 1)


def _exact_latency(seconds: NDArray[np.float64]) -> Latency:
    p50, p90, p95, p99 = (float(seconds[_rank(q, len(seconds))]) for q in (50, 90, 95, 99))
    return Latency(mean=float(seconds.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=float(seconds[-1]), exact=True)


def timeline_of(state: at.State, size: PoolSize) -> list[TimelinePoint]:
    """Return the filled buckets of the timeline."""
    rows = state.log.timeline[state.log.timeline[:, at.B_STEPS] > 0]
    seconds = rows[:, at.A_SECONDS]

    def per_second(what: int) -> list[float]:
        means: list[float] = np.divide(rows[:, what], seconds, out=np.zeros(len(rows)), where=seconds > 0).tolist()
        return means

    def counts(what: int) -> list[int]:
        whole: list[int] = rows[:, what].astype(np.int64).tolist()
        return whole

    columns = zip(
        (rows[:, at.B_START] - state.core.floats[at.F_FIRST_ARRIVAL]).tolist(),
        seconds.tolist(),
        counts(at.B_STEPS),
        _shares(rows, size).tolist(),
        per_second(at.A_RUNNING),
        per_second(at.A_WAITING),
        (rows[:, at.B_PEAK_USED] / (size.capacity_bytes / size.token_bytes)).tolist(),
        (rows[:, at.B_PEAK_HELD] / size.unit_tokens / size.units).tolist(),
        (rows[:, at.B_PEAK_EXTERNAL] / (size.units * size.unit_tokens)).tolist(),
        counts(at.B_PEAK_RUNNING),
        counts(at.B_PEAK_WAITING),
        counts(at.B_PREEMPTIONS),
    )
    names = [one.name for one in fields(TimelinePoint)]
    accounts = list(Account)
    return [TimelinePoint(**dict(zip(names, (*row[:3], dict(zip(accounts, row[3])), *row[4:])))) for row in columns]


def series_of(state: at.State, size: PoolSize) -> SeriesRows:
    """Return the rows that the replay has written since the last time, in bytes, and check that each balances."""
    rows = state.log.rows[: state.core.ints[at.I_ROWS]]
    used, held, kept, external = rows[:, 5], rows[:, 6], rows[:, 7], rows[:, 8]
    held_bytes = held // size.unit_tokens * size.unit_bytes
    cached = rows[:, at.ROW_CACHED] * size.token_bytes
    external_bytes = external // size.unit_tokens * size.unit_bytes
    accounts = np.zeros((len(rows), len(Account)), np.int64)
    order = list(Account)
    token = size.token_bytes
    accounts[:, order.index(Account.USED)] = used * token
    accounts[:, order.index(Account.CACHED)] = cached
    accounts[:, order.index(Account.RESERVED)] = (kept - used) * token
    accounts[:, order.index(Account.INTERNAL)] = held_bytes - kept * token
    accounts[:, order.index(Account.EXTERNAL)] = external_bytes
    accounts[:, order.index(Account.FREE)] = size.capacity_bytes - held_bytes - external_bytes - cached
    if len(rows) and (int(accounts.min()) < 0 or bool((accounts.sum(axis=1) != size.capacity_bytes).any())):
        row = int(np.argmin(accounts.min(axis=1)))
        raise UnbalancedLedger(f"the books do not balance at step {rows[row, 0]}: {accounts[row].tolist()}")
    return SeriesRows(
        step=rows[:, 0].copy(),
        time_seconds=state.log.row_times[: len(rows)] - state.core.floats[at.F_FIRST_ARRIVAL],
        running=rows[:, 1].copy(),
        waiting=rows[:, 2].copy(),
        preemptions=rows[:, 3].copy(),
        used_blocks=rows[:, 4].copy(),
        accounts=accounts,
    )


def check_returned(state: at.State) -> None:
    """Raise unless everything that was taken has come back: the pool is empty and in one piece."""
    ints = state.core.ints
    leaks: Sequence[tuple[str, int]] = (
        ("free", int(ints[at.I_CAPACITY] - ints[at.I_FREE])),
        ("used", int(ints[at.I_USED])),
        ("held", int(ints[at.I_HELD])),
        ("kept", int(ints[at.I_KEPT])),
        ("promised", int(ints[at.I_PROMISED])),
    )
    if any(value for _, value in leaks):
        raise UnbalancedLedger(f"memory was not returned at the end of the replay: {dict(leaks)}")


def _unit_tokens(policy: Policy, size: PoolSize) -> int:
    if policy.block_groups:
        return policy.block_groups.grain_tokens
    return policy.block_size if policy.pools_apart else size.unit_tokens


def outcome_of(state: at.State, policy: Policy, size: PoolSize, *, prefix: PrefixHits | None = None) -> Outcome:
    """Return the outcome of a replay that has ended."""
    check_returned(state)
    ints, floats, busy, saturated = state.core.ints, state.core.floats, state.log.busy, state.log.saturated
    mean, full = ratios_of(busy, size), ratios_of(saturated, size)
    never, full_never = never_used_ratio(busy, size), never_used_ratio(saturated, size)
    held_up = is_held_up(saturated_seconds=float(saturated[at.A_SECONDS]), busy_seconds=float(busy[at.A_SECONDS]))
    headline, headline_never = (full, full_never) if held_up else (mean, never)
    rejected = {
        Rejection.PROMPT_TOO_LONG: int(ints[at.I_TOO_LONG]),
        Rejection.LARGER_THAN_POOL: int(ints[at.I_TOO_LARGE]),
        Rejection.CANNOT_GROW: int(ints[at.I_STUCK]),
        Rejection.TOO_MANY_SAMPLES: int(ints[at.I_TOO_MANY]),
    }

    def per_second(sums: Sums, what: int) -> float:
        return float(sums[what] / sums[at.A_SECONDS]) if sums[at.A_SECONDS] > 0 else 0.0

    return Outcome(
        policy=policy.name,
        meaning=policy.meaning,
        capacity_bytes=size.capacity_bytes,
        unit_tokens=_unit_tokens(policy, size),
        requests=len(state.trace.arrivals),
        sequences=len(state.trace.arrivals),
        rejected={reason: count for reason, count in rejected.items() if count},
        truncated=int(ints[at.I_TRUNCATED]),
        finished=int(ints[at.I_FINISHED]),
        prompt_tokens=int(ints[at.I_PROMPT]),
        output_tokens=int(ints[at.I_OUTPUT]),
        steps=int(ints[at.I_STEPS]),
        preemptions=int(ints[at.I_PREEMPTIONS]),
        recomputed_tokens=int(ints[at.I_RECOMPUTED]),
        copied_tokens=int(ints[at.I_COPIED]),
        restarts=int(ints[at.I_RESTARTS]),
        refused_while_free=int(ints[at.I_REFUSED_WHILE_FREE]),
        makespan_seconds=float(floats[at.F_NOW] - floats[at.F_FIRST_ARRIVAL]),
        busy_seconds=float(busy[at.A_SECONDS]),
        saturated_seconds=float(saturated[at.A_SECONDS]),
        down_seconds=float(floats[at.F_DOWN]),
        mean_running=per_second(busy, at.A_RUNNING),
        saturated_running=per_second(saturated, at.A_RUNNING),
        peak_running=int(ints[at.I_PEAK_RUNNING]),
        peak_waiting=int(ints[at.I_PEAK_WAITING]),
        mean_ratio=mean,
        saturated_ratio=full,
        never_used_ratio=never,
        saturated_never_used_ratio=full_never,
        paper_ratio=paper_view(headline, headline_never),
        factors=factors_of(headline),
        queue=latency_of(state, 0),
        first_token=latency_of(state, 1),
        end_to_end=latency_of(state, 2),
        timeline=timeline_of(state, size),
        shared_saving_ratio=shared_saving_ratio(busy, size),
        stale_ratio=stale_ratio(busy, size),
        prefix=prefix,
        latencies=state.log.latencies,
    )
