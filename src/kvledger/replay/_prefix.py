"""Block tables with a prefix cache: one step of the scheduler (compiled).

The scheduler is that of `_step`; what differs is who holds which block. A request finds the longest run of its leading
blocks in the pool, refers to them, and computes only the rest; it gives each block its identity when the step that
fills it is scheduled. ``used`` counts every distinct block that a request refers to once.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from kvledger.pool import prefix
from kvledger.pool.compiled import INLINED, body_of, called, compiled, inlined
from kvledger.replay import _blockwise, _runwise
from kvledger.replay._layout import *
from kvledger.replay._memory import blocks_of
from kvledger.replay._queue import (
    EMITTED,
    LAST,
    emit_one,
    head_slot,
    leave,
    note_scheduled,
    open_step,
    put_in_front,
    seat,
)
from kvledger.replay._record import begin_bucket, close_step, step_seconds
from kvledger.replay._restart import begin_restart
from kvledger.replay._shared import H_AGAIN, H_HITS, H_LOGICAL, H_QUERIES
from kvledger.replay._step import compute, settle, unsettle

# Whether a request that gives up its blocks will come back for them; written out, each would make kernels of its own.
AGAIN, FOR_GOOD = np.bool_(True), np.bool_(False)

# Numba compiles a replay for the type of what it keeps; these stand for the functions of that type.


def count_hits(st, sh, slot):
    """Count the leading blocks of a waiting request that are in the pool, and those of them nobody refers to."""


def refer_hits(st, sh, slot, hits):
    """Let a request use the leading blocks that were counted."""


def note_miss(st, sh, slot, hits):
    """Note which block a refused request missed first."""


def grow(st, sh, slot, computed, n):
    """Take the blocks for ``n`` more tokens; False when there are too few."""


def give_up(st, sh, slot, again):
    """Release the blocks of a request, the last first; ``again``: it was preempted and will come back."""


def forget_all(sh):
    """Let all blocks hold nothing."""


def _keeps_runs(sh):
    return "lengths" in sh.fields


@overload(count_hits, jit_options=INLINED)
def _count_hits(st, sh, slot):
    return body_of(_runwise.count_hits if _keeps_runs(sh) else _blockwise.count_hits)


@overload(refer_hits, jit_options=INLINED)
def _refer_hits(st, sh, slot, hits):
    return body_of(_runwise.refer_hits if _keeps_runs(sh) else _blockwise.refer_hits)


@overload(note_miss, jit_options=INLINED)
def _note_miss(st, sh, slot, hits):
    return body_of(_runwise.note_miss if _keeps_runs(sh) else _blockwise.note_miss)


@overload(grow, jit_options=INLINED)
def _grow(st, sh, slot, computed, n):
    return body_of(_runwise.grow if _keeps_runs(sh) else _blockwise.grow)


@overload(give_up, jit_options=INLINED)
def _give_up(st, sh, slot, again):
    return body_of(_runwise.give_up if _keeps_runs(sh) else _blockwise.give_up)


@overload(forget_all, jit_options=INLINED)
def _forget_all(sh):
    return body_of(_runwise.forget_all if _keeps_runs(sh) else _blockwise.forget_all)


@inlined
def preempt(st, sh):
    """Take everything from the request admitted last and put it at the front of the queue."""
    ints = st.ints
    ints[I_RUNNING] -= 1
    slot = st.lists[ORDER, ints[I_RUNNING]]
    if ints[I_RUNNING] < ints[I_STEADY]:
        ints[I_STEADY] -= 1
        unsettle(st, slot)
    ints[I_RECOMPUTED] += st.slots[slot, S_COMPUTED]
    give_up(st, sh, slot, AGAIN)
    put_in_front(st, slot)
    return slot


@inlined
def make_place(st, sh, slot, computed, n):
    """Take blocks for ``n`` more tokens, preempting the last as long as it takes; False when it was the last."""
    while not grow(st, sh, slot, computed, n):
        if preempt(st, sh) == slot:
            return False
    return True


@inlined
def schedule(st, sh):
    """Phase 2: extend the running requests in admission order; return the tokens left of the budget."""
    ints = st.ints
    block = ints[I_BLOCK]
    fills = ints[I_PHASE] + 1
    if fills == block:
        fills = 0
    if st.crossings[ints[I_PHASE]] > 0 or st.crossings[fills] > 0:
        i = 0
        while i < ints[I_STEADY]:
            slot = st.lists[ORDER, i]
            phase = st.slots[slot, S_PHASE]
            if phase == ints[I_PHASE] or phase == fills:
                make_place(st, sh, slot, ints[I_TICK] + st.slots[slot, S_OFFSET], 1)
            i += 1
    budget = ints[I_BUDGET] - ints[I_STEADY]
    i = ints[I_STEADY]
    while i < ints[I_RUNNING] and budget > 0:
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        n = min(row[S_PROMPT] + row[S_GENERATED] - row[S_COMPUTED], budget)
        if not make_place(st, sh, slot, row[S_COMPUTED], n):
            break
        row[S_NOW] = n
        budget -= n
        i += 1
    note_scheduled(st, i)
    return budget


@inlined
def admit_one(st, sh, slot, budget):
    """Give the head of the queue its cached prefix and its first chunk; return the tokens of that, 0 when refused."""
    ints = st.ints
    row = st.slots[slot]
    block = ints[I_BLOCK]
    tokens = row[S_PROMPT] + row[S_GENERATED]
    hits, idle = count_hits(st, sh, slot)
    spare = ints[I_WATERMARK] if ints[I_SCHEDULED] > 0 else 0
    n = min(tokens - hits * block, budget)
    free = sh.pool.counts[prefix.FREE]
    first = blocks_of(hits * block + n, block) - hits + idle
    whole = blocks_of(tokens, block) - hits + idle
    if (whole if ints[I_WHOLE] else first) + spare > free:
        note_miss(st, sh, slot, hits)
        ints[I_BLOCKED] = 1 if ints[I_WHOLE] and ints[I_WATERMARK] == 0 else 0
        if free >= whole:
            ints[I_REFUSED_WHILE_FREE] += 1
        return 0
    refer_hits(st, sh, slot, hits)
    sh.counts[H_LOGICAL] += hits * block
    row[S_COMPUTED] = hits * block
    grow(st, sh, slot, hits * block, n)
    if ints[I_STACKED] > 0:
        sh.counts[H_AGAIN] += hits * block
    else:
        sh.counts[H_HITS] += hits * block
        sh.counts[H_QUERIES] += tokens
    return n


@inlined
def admit_waiting(st, log, trace, sh, budget):
    """Phase 3: admit from the head of the queue until it is refused."""
    ints = st.ints
    if ints[I_BLOCKED] == 1:
        return
    while budget > 0 and ints[I_RUNNING] < ints[I_MAX_SEQS] and ints[I_WAITING] > 0:
        slot = head_slot(st, trace)
        n = admit_one(st, sh, slot, budget)
        if n == 0:
            return
        seat(st, log, trace, slot, n)
        budget -= n


@inlined
def finish(st, log, trace, sh, slot):
    """End a request: release its blocks, note its latency, and give its slot back."""
    give_up(st, sh, slot, FOR_GOOD)
    leave(st, log, trace, slot)


@inlined
def emit_tokens(st, log, trace, sh):
    """Phase 5: requests with everything computed emit a token; those that have all of theirs end and release."""
    ints = st.ints
    ints[I_TICK] += 1
    ints[I_PHASE] = ints[I_PHASE] + 1 if ints[I_PHASE] + 1 < ints[I_BLOCK] else 0
    kept, soonest = 0, NEVER_TICK
    if ints[I_TICK] == ints[I_NEXT_END]:
        for i in range(ints[I_STEADY]):
            slot = st.lists[ORDER, i]
            if st.slots[slot, S_END] == ints[I_TICK]:
                unsettle(st, slot)
                finish(st, log, trace, sh, slot)
            else:
                soonest = min(soonest, st.slots[slot, S_END])
                st.lists[ORDER, kept] = slot
                kept += 1
        ints[I_NEXT_END] = soonest
    else:
        kept = ints[I_STEADY]
    steady = kept
    for i in range(ints[I_STEADY], ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        st.lists[ORDER, kept] = slot
        kept += 1
        token = emit_one(st, log, trace, slot)
        if token == LAST:
            finish(st, log, trace, sh, slot)
            kept -= 1
        elif token == EMITTED:
            settle(st, slot)
            steady += 1
    ints[I_STEADY] = steady
    ints[I_RUNNING] = kept


@inlined
def account_sharing(st, log, sh, seconds):
    """Add what only a prefix cache has: cached tokens, and the tokens that sharing saves."""
    ints = st.ints
    cached = sh.pool.counts[prefix.CACHED] * ints[I_BLOCK] * seconds
    saved = (sh.counts[H_LOGICAL] - ints[I_USED]) * seconds
    bucket = log.timeline[ints[I_BUCKET]]
    log.busy[A_CACHED] += cached
    log.busy[A_SAVED] += saved
    bucket[A_CACHED] += cached
    bucket[A_SAVED] += saved
    if ints[I_WAITING] > 0:
        log.saturated[A_CACHED] += cached
        log.saturated[A_SAVED] += saved


@called
def prefix_step(st, log, trace, sh):
    """Run one whole step."""
    ints, floats = st.ints, st.floats
    ints[I_PREEMPTED_NOW] = 0
    budget = schedule(st, sh)
    if ints[I_PREEMPTED_NOW] == 0:
        admit_waiting(st, log, trace, sh, budget)
    before = ints[I_USED]
    prefill, decodes, read = compute(st)
    sh.counts[H_LOGICAL] += ints[I_USED] - before
    ints[I_FREE] = sh.pool.counts[prefix.FREE]
    begin_bucket(st, log)
    if log.rows.shape[0] > 0:
        log.rows[ints[I_ROWS], ROW_CACHED] = sh.pool.counts[prefix.CACHED] * ints[I_BLOCK]
    seconds = step_seconds(floats, prefill, decodes, read)
    account_sharing(st, log, sh, seconds)
    close_step(st, log, seconds)
    emit_tokens(st, log, trace, sh)
    ints[I_FREE] = sh.pool.counts[prefix.FREE]


@compiled
def restart(st, sh):
    """Restart the server: everything that runs and all that is cached is lost; False when it gets nowhere."""
    ints = st.ints
    while ints[I_RUNNING] > 0:
        preempt(st, sh)
        ints[I_PREEMPTIONS] -= 1
    forget_all(sh)
    ints[I_FREE] = sh.pool.counts[prefix.FREE]
    ints[I_BLOCKED] = 0
    return begin_restart(st)


@compiled
def run_prefix(st, log, trace, sh, most):
    """Go on for up to ``most`` steps; return PAUSED, or why `open_step` takes no further one."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == GO:
            prefix_step(st, log, trace, sh)
        elif reason != IDLE:
            return reason
    return PAUSED
