"""Replaying a workload under a memory policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.pool.policy import Growth, Kind, Placement, Policy, Reservation
from kvledger.replay.outcome import Outcome, SeriesRows
from kvledger.replay.samples import Split, check_sampling, shares_forks, split_samples
from kvledger.replay.settings import Pool, PoolSize, Settings
from kvledger.replay.tables import (
    Keeping,
    Tables,
    check_tables,
    groups_of,
    hits_of,
    is_forked,
    kernels_of,
    lay_tables,
)
from kvledger.replay.workload import Workload

if TYPE_CHECKING:
    from kvledger.replay._layout import Columns, Core, State

__all__ = ["Machine", "assemble", "find_moments", "replay", "replay_plainly"]

_STEPS_A_CALL = 2**18
_STEPS_A_LOOK = 2**8
_EXACT_LATENCIES = 2**20

Progress = Callable[[int], None]


def replay(
    workload: Workload,
    policy: Policy,
    *,
    pool: Pool,
    settings: Settings,
    series: Callable[[SeriesRows], None] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Replay ``workload`` under ``policy``, with the ledger of every step.

    Args:
        workload: The requests; see `Workload.check`.
        policy: How memory is handed out.
        pool: The memory there is.
        settings: The scheduler's limits and the clock.
        series: Called with the rows of every step, in batches; the steps are then taken one by one.
        progress: Called now and then with the number of requests that have arrived.

    Raises:
        TraceError: The workload breaks its invariant.
        CapacityError: The pool has not even one unit.
        UsageError: Restarts follow each other so fast that nothing can be computed in between.
        UnbalancedLedger: The books do not balance; a fault of kvledger.
    """
    return _run(workload, policy, pool, settings, _Hooks(series=series, progress=progress))


def replay_plainly(workload: Workload, policy: Policy, *, pool: Pool, settings: Settings) -> Outcome:
    """Replay step by step and block by block, without the fast paths, to check them by."""
    return _run(workload, policy, pool, settings, _Hooks(fast=False, keeping=Keeping.BLOCKS))


def find_moments(
    workload: Workload, policy: Policy, *, pool: Pool, settings: Settings, until_seconds: float
) -> NDArray[np.float64]:
    """Replay only until a moment, and return when requests were first scheduled, got their first token, and ended.

    Shape (3, requests), trace time; NaN where that was not reached. Nothing is summed up, so this is for many tries.
    """
    from kvledger.replay._sampled import gather_moments

    split = _split(workload.check(), policy)
    hooks = _Hooks(until_seconds=until_seconds)
    state, _, _ = _drive(split.workload if split else workload, policy, pool, settings, hooks)
    latencies: NDArray[np.float64] = state.log.latencies
    return gather_moments(latencies, split.firsts) if split else latencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A replay that is laid out; ``advance`` goes on for up to so many steps or stretches and says why it stopped.

    ``tables`` says who holds which block where blocks have numbers; ``split`` how samples became requests.
    """

    state: State
    size: PoolSize
    tables: Tables | None
    advance: Callable[[int], int]
    split: Split | None = None


def assemble(workload: Workload, policy: Policy, *, pool: Pool, settings: Settings) -> Machine:
    """Lay out an empty pool before the first step, for whoever wants to stop and look."""
    split = _split(workload.check(), policy)
    hooks = _Hooks(keeping=Keeping.BLOCKS)
    machine = _assemble(split.workload if split else workload, policy, pool, settings, hooks)
    return replace(machine, split=split)


class _Hooks:
    def __init__(
        self,
        *,
        series: Callable[[SeriesRows], None] | None = None,
        progress: Progress | None = None,
        fast: bool = True,
        until_seconds: float = math.inf,
        keeping: Keeping = Keeping.RUNS,
    ) -> None:
        self.series = series
        self.progress = progress
        self.fast = fast and series is None
        self.until_seconds = until_seconds
        self.keeping = keeping
        self.steps = _STEPS_A_CALL if math.isinf(until_seconds) else _STEPS_A_LOOK


def _run(workload: Workload, policy: Policy, pool: Pool, settings: Settings, hooks: _Hooks) -> Outcome:
    from kvledger.replay._outcome import outcome_of
    from kvledger.replay._sampled import gather_samples, pools_of, sharing_of, swap_of

    split = _split(workload.check(), policy)
    state, size, shared = _drive(split.workload if split else workload, policy, pool, settings, hooks)
    outcome = outcome_of(state, policy, size, prefix=hits_of(shared, policy))
    if policy.swaps:
        outcome = replace(outcome, swap=swap_of(shared, policy, size))
    if policy.pools_apart:
        outcome = replace(outcome, pools=pools_of(shared, outcome))
    if split:
        return gather_samples(outcome, workload, split, max_model_len=settings.max_model_len)
    if workload.samples is not None:
        return replace(outcome, sequences=workload.sequences, sharing=sharing_of(shared))
    return outcome


def _split(workload: Workload, policy: Policy) -> Split | None:
    """Return the samples as requests, where there are any and the policy does not let them fork."""
    check_sampling(policy, workload)
    if workload.samples is None or shares_forks(policy):
        return None
    return split_samples(workload)


def _assemble(workload: Workload, policy: Policy, pool: Pool, settings: Settings, hooks: _Hooks) -> Machine:
    from kvledger.replay import _loop  # Numba is imported, and the kernels compiled, at first use only

    check_tables(workload, policy)
    size = pool.divide(policy)
    state = _prepare(workload, policy, pool, size, settings, hooks)
    tables = lay_tables(workload, policy, pool, size, settings, keeping=hooks.keeping)
    start: Callable[[Core, Columns], None] = _loop.start
    start(state.core, state.trace)
    return Machine(state=state, size=size, tables=tables, advance=_advance(state, policy, tables))


def _advance(state: State, policy: Policy, tables: Tables | None) -> Callable[[int], int]:
    from kvledger.replay import _layout as at
    from kvledger.replay._record import halve_timeline

    kernels = kernels_of(policy, tables)
    held = () if tables is None else (tables,)

    def advance(most: int) -> int:
        reason = kernels.run(*state, *held, most)
        if reason == at.CROWDED:
            halve_timeline(state.core.ints, state.log.timeline)
            return at.PAUSED
        if reason == at.RESTART:
            return at.PAUSED if kernels.restart(state.core, *held) else at.STALLED
        return reason

    return advance


def _drive(
    workload: Workload, policy: Policy, pool: Pool, settings: Settings, hooks: _Hooks
) -> tuple[State, PoolSize, Tables | None]:
    """Run the steps, to the end or until it is late enough."""
    from kvledger.replay import _layout as at
    from kvledger.replay._outcome import series_of

    machine = _assemble(workload, policy, pool, settings, hooks)
    state, size = machine.state, machine.size
    while True:
        reason = machine.advance(hooks.steps)
        if hooks.series and (reason != at.PAUSED):
            hooks.series(series_of(state, size))
            state.core.ints[at.I_ROWS] = 0
        if hooks.progress:
            hooks.progress(int(state.core.ints[at.I_NEXT]))
        if reason == at.STALLED:
            raise UsageError(
                f"a restart every {settings.restart_every_seconds:g} s leaves `{policy.name}` no time to compute",
                hint="restart less often, or raise --max-num-batched-tokens",
            )
        if reason == at.DONE or float(state.core.floats[at.F_NOW]) > hooks.until_seconds:
            return state, size, machine.tables


def _segment_blocks(policy: Policy, size: PoolSize, settings: Settings) -> int:
    """Return how many blocks segments can hold: one per request, the free ones between, and wholly free segments."""
    if not (policy.kind is Kind.GROW and policy.segments):
        return 0
    from kvledger.pool.segments import SMALL_SEGMENT

    return 2 * (settings.max_num_seqs + 2) + size.units // SMALL_SEGMENT + 2


def _prepare(
    workload: Workload, policy: Policy, pool: Pool, size: PoolSize, settings: Settings, hooks: _Hooks
) -> State:
    from kvledger.replay import _layout as at

    memory = {
        Kind.PAGED: at.DEMAND,
        Kind.VMM: at.DEMAND,
        Kind.UPFRONT: at.UPFRONT,
        Kind.NO_EVICT: at.PROMISE,
        Kind.CONTIGUOUS: at.EXTENT,
        Kind.GROW: at.GROWING,
        Kind.STATIC_BATCH: at.BATCH,
    }
    n = len(workload)
    limits = workload.max_tokens if workload.max_tokens is not None else np.zeros(0, np.int32)
    columns = at.Columns(
        arrivals=np.ascontiguousarray(workload.arrival_seconds, np.float64),
        prompts=np.ascontiguousarray(workload.prompt_tokens, np.int32),
        outputs=np.ascontiguousarray(workload.output_tokens, np.int32),
        limits=np.ascontiguousarray(limits, np.int32),
        samples=np.zeros(0, np.int32) if workload.samples is None else workload.samples.astype(np.int32),
        verdicts=np.zeros(n, np.int8),
    )
    state = at.new_state(
        columns,
        max_seqs=settings.max_num_seqs,
        block_size=1 if groups_of(policy) or policy.pools_apart else size.unit_tokens,
        segment_blocks=_segment_blocks(policy, size, settings),
        series=hooks.series is not None,
        exact_latencies=n <= _EXACT_LATENCIES or workload.siblings is not None,
    )
    ints, floats = state.core.ints, state.core.floats
    groups = groups_of(policy)
    ints[at.I_MEMORY] = at.GROUPS if groups else memory[policy.kind]
    if is_forked(workload, policy):
        ints[at.I_MEMORY] = at.FORKS
    if groups:
        ints[at.I_MOST_TOKENS] = groups.most_tokens(
            size.units, in_flight_tokens=settings.max_num_batched_tokens, max_model_len=settings.max_model_len
        )
    if policy.pools_apart:
        ints[at.I_MEMORY] = at.GROUPS  # amounts in bytes, and a longest request
        ints[at.I_MOST_TOKENS] = policy.pools_apart.most_tokens(
            *policy.pools_apart.divide(pool.total_bytes(policy)),
            in_flight_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
        )
    ints[at.I_RESERVATION] = list(Reservation).index(policy.reservation)
    ints[at.I_PLACEMENT] = list(Placement).index(policy.placement)
    if policy.kind is Kind.GROW and policy.segments:
        ints[at.I_PLACEMENT] = at.SEGMENTS
    ints[at.I_TOKEN_BYTES] = size.token_bytes
    ints[at.I_GROWTH] = list(Growth).index(policy.growth)
    ints[at.I_STEP] = policy.growth_step_tokens
    ints[at.I_BLOCK] = size.unit_tokens
    ints[at.I_BUFFER] = policy.buffer_tokens
    ints[at.I_GRAIN] = policy.granularity_tokens
    ints[at.I_CAPACITY] = size.units
    ints[at.I_WATERMARK] = int(policy.watermark_ratio * size.units)
    ints[at.I_WHOLE] = int(policy.full_sequence_must_fit)
    ints[at.I_MAX_LEN] = settings.max_model_len
    ints[at.I_MAX_SEQS] = settings.max_num_seqs
    ints[at.I_BUDGET] = settings.max_num_batched_tokens
    ints[at.I_FAST] = int(hooks.fast)
    clock = settings.clock
    per_token_read = clock.per_token_read(policy.block_tokens)
    floats[at.F_BASE : at.F_BASE + 4] = (clock.base, clock.a, clock.b, per_token_read)
    floats[at.F_RESTART_EVERY] = settings.restart_every_seconds
    floats[at.F_RESTART_DOWN] = settings.restart_down_seconds
    return state
