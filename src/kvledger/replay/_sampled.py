"""What several answers to one prompt, swapping, and two pools add to an outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.pool.policy import Policy, Sampling
from kvledger.replay._forks import K_ALONE, K_IN, K_NO_ROOM, K_OUT, K_PEAK_HOST, K_SWAPPED, K_TOGETHER, Forked
from kvledger.replay._outcome import latency_since
from kvledger.replay._pools import NEAR, T_BYTES, T_PEAK, T_REFUSED, T_SIZE, WHOLE, Pooled
from kvledger.replay.outcome import Outcome, PoolUse, Rejection, Sharing, Swap
from kvledger.replay.samples import Split
from kvledger.replay.settings import PoolSize
from kvledger.replay.workload import Workload

__all__ = ["gather_moments", "gather_samples", "pools_of", "sharing_of", "swap_of"]


def sharing_of(forked: Any) -> Sharing:
    """Return what sharing blocks among samples saved."""
    assert isinstance(forked, Forked)
    from kvledger.pool.forks import COPIES

    alone, together = float(forked.sums[K_ALONE]), float(forked.sums[K_TOGETHER])
    return Sharing(
        samples_as=Sampling.FORKS,
        block_saving_ratio=1.0 - together / alone if alone > 0 else 0.0,
        copied_blocks=int(forked.tables.counts[COPIES]),
    )


def swap_of(forked: Any, policy: Policy, size: PoolSize) -> Swap:
    """Return what was moved to the host and back."""
    assert isinstance(forked, Forked)
    counts, block = forked.counts, size.unit_bytes
    return Swap(
        host_bytes=policy.swap_bytes,
        swapped=int(counts[K_SWAPPED]),
        no_room=int(counts[K_NO_ROOM]),
        out_bytes=int(counts[K_OUT]) * block,
        in_bytes=int(counts[K_IN]) * block,
        peak_host_bytes=int(counts[K_PEAK_HOST]) * block,
    )


def pools_of(pooled: Any, outcome: Outcome) -> tuple[PoolUse, ...]:
    """Return what each of two pools held."""
    assert isinstance(pooled, Pooled)

    def share(of: int, pool: int, seconds: float) -> float:
        size = int(pooled.tokens[T_SIZE, pool])
        return float(pooled.held[of, pool]) / (size * seconds) if seconds > 0 else 0.0

    return tuple(
        PoolUse(
            name=name,
            tokens=int(pooled.tokens[T_SIZE, pool]),
            token_bytes=int(pooled.tokens[T_BYTES, pool]),
            mean_held_ratio=share(0, pool, outcome.busy_seconds),
            saturated_held_ratio=share(1, pool, outcome.saturated_seconds),
            peak_held_ratio=int(pooled.tokens[T_PEAK, pool]) / int(pooled.tokens[T_SIZE, pool]),
            refused=int(pooled.tokens[T_REFUSED, pool]),
        )
        for pool, name in ((WHOLE, "full"), (NEAR, "window"))
    )


def gather_moments(moments: NDArray[np.float64], firsts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the moments of requests from those of their samples: the first begins, the last ends.

    Shape (3, requests): first scheduled and first token of any sample, end of the last one; NaN where not reached.
    """
    if not len(firsts):
        return moments
    return np.stack(
        (
            np.fmin.reduceat(moments[0], firsts),
            np.fmin.reduceat(moments[1], firsts),
            np.maximum.reduceat(moments[2], firsts),
        )
    )


def gather_samples(outcome: Outcome, workload: Workload, split: Split, *, max_model_len: int) -> Outcome:
    """Return the outcome of requests whose samples were replayed as requests of their own."""
    moments = gather_moments(outcome.latencies, split.firsts)
    prompts, outputs = workload.prompt_tokens.astype(np.int64), workload.output_tokens.astype(np.int64)
    room = np.maximum(max_model_len - prompts, 1)
    limits = room
    if workload.max_tokens is not None:
        limits = np.where(workload.max_tokens > 0, np.minimum(workload.max_tokens, room), room)
    done = ~np.isnan(moments[2])
    too_long = prompts >= max_model_len
    begun = ~np.isnan(moments[0])
    rejected = {
        Rejection.PROMPT_TOO_LONG: int(too_long.sum()),
        Rejection.LARGER_THAN_POOL: int((~begun & ~too_long).sum()),
        Rejection.CANNOT_GROW: int((begun & ~done).sum()),
    }
    assert workload.samples is not None
    answered = np.minimum(outputs, limits) * workload.samples
    arrivals = workload.arrival_seconds
    return replace(
        outcome,
        requests=len(workload),
        sequences=workload.sequences,
        finished=int(done.sum()),
        rejected={reason: count for reason, count in rejected.items() if count},
        truncated=int((begun & (limits < outputs)).sum()),
        prompt_tokens=int(prompts[done].sum()),
        output_tokens=int(answered[done].sum()),
        queue=latency_since(arrivals, moments[0]),
        first_token=latency_since(arrivals, moments[1]),
        end_to_end=latency_since(arrivals, moments[2]),
        latencies=moments,
        sharing=Sharing(samples_as=Sampling.REQUESTS, block_saving_ratio=None, copied_blocks=0),
    )
