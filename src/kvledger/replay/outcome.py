"""What a replay found: the means of the ledger, the paper's view, latencies and a bounded timeline."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvledger.ledger import Account, PaperView
from kvledger.pool.policy import Eviction, Sampling

__all__ = [
    "Factors",
    "Latency",
    "Outcome",
    "PoolUse",
    "Rejection",
    "SeriesRows",
    "Sharing",
    "Swap",
    "TimelinePoint",
]

HELD_UP_RATIO = 0.1


def is_held_up(*, saturated_seconds: float, busy_seconds: float) -> bool:
    """Tell whether requests waited for a tenth of the busy time or more."""
    return saturated_seconds > 0 and saturated_seconds >= HELD_UP_RATIO * busy_seconds


class Rejection:
    """Why a request was rejected, as results name it."""

    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt has max_model_len tokens or more."""
    LARGER_THAN_POOL = "larger_than_pool"
    """What the policy must hold for it never fits the pool."""
    CANNOT_GROW = "cannot_grow"
    """Its extent and the one it would grow into never fitted together, though it had the pool to itself."""
    TOO_MANY_SAMPLES = "too_many_samples"
    """Its samples, which run together, are more than max_num_seqs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds since arrival. Percentiles are nearest-rank; within 0.14 % when ``exact`` is false."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The three factors whose product is the utilisation, over the stretch they are taken from (0-1).

    ``length_ratio``: used over used and reserved (reservation). ``block_efficiency``: used and reserved over held
    (internal fragmentation). ``usable_share``: held over the pool (external fragmentation and what stays free).
    """

    length_ratio: float
    block_efficiency: float
    usable_share: float

    @property
    def product(self) -> float:
        """Their product: the share of the pool that holds tokens in use."""
        return self.length_ratio * self.block_efficiency * self.usable_share


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHits:
    """What the prefix cache gave, in tokens.

    ``hit_tokens`` of the ``queried_tokens`` of first admissions were found; ``again_tokens`` were found when a
    preempted request came back (its own blocks included).
    """

    hit_tokens: int
    queried_tokens: int
    again_tokens: int
    eviction: Eviction = Eviction.LRU
    """Which cached block went first."""

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that were found (0-1)."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What samples were, and what sharing blocks among them saved.

    ``block_saving_ratio``: blocks saved over blocks without sharing, weighed by time, as Figure 15 of the
    PagedAttention paper has it; None where a prefix cache is all that shares. ``copied_blocks``: copied on write.
    """

    samples_as: Sampling
    block_saving_ratio: float | None
    copied_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What was moved to the host and back, in whole blocks.

    ``swapped`` of the preempted requests were moved, ``no_room`` of them did not fit the host and were computed again.
    """

    host_bytes: int
    swapped: int
    no_room: int
    out_bytes: int
    in_bytes: int
    peak_host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """What one of two pools sized apart held, in shares of its own size.

    ``refused`` counts the steps whose head request was refused because this pool had too little, be the other full or
    not.
    """

    name: str
    tokens: int
    token_bytes: int
    mean_held_ratio: float
    saturated_held_ratio: float
    peak_held_ratio: float
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """One stretch of the timeline: time-weighted means, with the peaks kept.

    ``start_seconds`` counts from the first arrival; ``ratio`` is of capacity; ``preemptions`` counts from the
    beginning to the end of this stretch.
    """

    start_seconds: float
    seconds: float
    steps: int
    ratio: dict[Account, float]
    running: float
    waiting: float
    peak_used_ratio: float
    peak_held_ratio: float
    peak_external_ratio: float
    peak_running: int
    peak_waiting: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRows:
    """Consecutive steps, one row each: counts, then the accounts in bytes. Shapes: (rows,).

    ``accounts``: (rows, accounts) int64, in the order of `Account`; each row sums to the pool.
    """

    step: NDArray[np.int64]
    time_seconds: NDArray[np.float64]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    used_blocks: NDArray[np.int64]
    accounts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one policy did with every byte of the pool. Ratios are of capacity, over busy time."""

    policy: str
    meaning: str
    capacity_bytes: int
    unit_tokens: int
    requests: int
    sequences: int
    """The samples of all requests; running ones are counted in sequences, too."""
    rejected: dict[str, int]
    truncated: int
    finished: int
    prompt_tokens: int
    output_tokens: int
    steps: int
    preemptions: int
    recomputed_tokens: int
    copied_tokens: int
    restarts: int
    refused_while_free: int
    makespan_seconds: float
    busy_seconds: float
    saturated_seconds: float
    down_seconds: float
    mean_running: float
    saturated_running: float
    peak_running: int
    peak_waiting: int
    mean_ratio: dict[Account, float]
    saturated_ratio: dict[Account, float]
    never_used_ratio: float
    saturated_never_used_ratio: float
    paper_ratio: PaperView
    factors: Factors
    queue: Latency | None
    first_token: Latency | None
    end_to_end: Latency | None
    timeline: list[TimelinePoint]
    shared_saving_ratio: float
    """Logical minus physical tokens under prefix sharing, of capacity, over busy time (a memo)."""
    stale_ratio: float
    """Held for tokens that their group of layers no longer needs (part of internal), of capacity, over busy time."""
    prefix: PrefixHits | None
    """What the prefix cache gave; None when it is off."""
    latencies: NDArray[np.float64] = field(repr=False)
    """(3, requests), or (3, 0) when there were too many: first scheduled, first token, end (trace time; NaN: never)."""
    sharing: Sharing | None = None
    """What samples were; None when every request has one."""
    swap: Swap | None = None
    """What was moved to the host; None when nothing is."""
    pools: tuple[PoolUse, ...] = ()
    """What each of two pools sized apart held; empty where there is one pool."""

    @property
    def utilisation(self) -> float:
        """Share of the pool in use: while saturated if requests were held up, else over busy time."""
        return self.headline_ratio[Account.USED]

    @property
    def held_up(self) -> bool:
        """Whether requests waited for a tenth of the busy time or more, so that the saturated means stand for it."""
        return is_held_up(saturated_seconds=self.saturated_seconds, busy_seconds=self.busy_seconds)

    @property
    def headline_ratio(self) -> dict[Account, float]:
        """The accounts while saturated if requests were held up, else over busy time."""
        return self.saturated_ratio if self.held_up else self.mean_ratio
