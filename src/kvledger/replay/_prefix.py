"""Block tables with a prefix cache: one step of the scheduler, as design section 4 words it (compiled).

The scheduler is that of `_step`; what differs is who holds which block. A request finds the longest run of its leading
blocks in the pool, refers to them, and computes only the rest; it gives each block its identity when the step that
fills it is scheduled. ``used`` counts every distinct block that a request refers to once.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from kvledger.pool import prefix
from kvledger.pool.compiled import called, compiled, inlined
from kvledger.replay._future import Future
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
from kvledger.replay._restart import begin_restart, is_restart_due
from kvledger.replay._step import compute, settle, unsettle

# How the content of a block is known: its chain id and place, its place in a common stream, or not at all.
BY_CHAIN, BY_STREAM, UNKNOWN = range(3)

# Numbers of `Shared.counts`.
H_HITS, H_QUERIES, H_AGAIN, H_MISS, H_LOGICAL, H_CLAIRVOYANT, H_RANKED = range(7)

# The rank of a block that nobody will look for; each is a little less than the one before.
NEVER_RANK = 2**62


class Shared(NamedTuple):
    """The pool, the block tables, and what is known of the content of each request."""

    pool: prefix.BlockPool
    tables: Array  # (max_num_seqs + 1, blocks of the longest request) int32
    counts: Array  # (7,) int64
    how: Array  # (2,) int64: how content is known, and the tokens an id covers
    offsets: Array  # (requests + 1,) int64, or (0,)
    ids: Array  # (total,) int64, or (0,)
    covered: Array  # (requests,) int32: leading tokens whose content is known, or (0,)
    future: Future


@inlined
def key_of(st, sh, request, index):
    """Return the identity of block ``index`` of a request: shared as far as its content is known, else its own."""
    block = st.ints[I_BLOCK]
    end = (index + 1) * block
    if sh.how[0] != UNKNOWN and end <= sh.covered[request]:
        if sh.how[0] == BY_STREAM:
            return prefix.mix(numba.uint64(index) | (numba.uint64(1) << numba.uint64(62)))
        grain = sh.how[1]
        at = (end - 1) // grain
        inside = numba.uint64((end - 1 - at * grain) // block)
        return prefix.mix(prefix.mix(numba.uint64(sh.ids[sh.offsets[request] + at])) + inside)
    own = (numba.uint64(request) << numba.uint64(28)) | numba.uint64(index) | (numba.uint64(1) << numba.uint64(63))
    return prefix.mix(own)


@inlined
def count_hits(st, sh, slot):
    """Count the leading blocks of a waiting request that are in the pool, and those of them nobody refers to."""
    row = st.slots[slot]
    most = (row[S_PROMPT] + row[S_GENERATED] - 1) // st.ints[I_BLOCK]
    hits, idle = 0, 0
    while hits < most:
        block = prefix.find_block(sh.pool, key_of(st, sh, row[S_REQUEST], hits))
        if block == prefix.NOBODY:
            break
        sh.tables[slot, hits] = block
        idle += sh.pool.references[block] == 0
        hits += 1
    return hits, idle


@inlined
def identify(st, sh, slot, computed, n):
    """Give identities to the blocks that computing ``n`` tokens after ``computed`` fills."""
    block = st.ints[I_BLOCK]
    request = st.slots[slot, S_REQUEST]
    for index in range(computed // block, (computed + n) // block):
        key = key_of(st, sh, request, index)
        prefix.insert(sh.pool, sh.tables[slot, index], key)
        if numba.int64(key >> numba.uint64(1)) == sh.counts[H_MISS]:
            st.ints[I_BLOCKED] = 0


@inlined
def grow(st, sh, slot, computed, n):
    """Take the blocks for ``n`` more tokens; False when there are too few."""
    held, needed = blocks_of(computed, st.ints[I_BLOCK]), blocks_of(computed + n, st.ints[I_BLOCK])
    if needed - held > sh.pool.counts[prefix.FREE]:
        return False
    for index in range(held, needed):
        sh.tables[slot, index] = prefix.allocate(sh.pool)
    identify(st, sh, slot, computed, n)
    return True


@inlined
def foreseen_rank(st, sh, request, index):
    """Return the rank of a block by when it is looked for next: the later, the greater."""
    sh.counts[H_RANKED] += 1
    future = sh.future
    if index < future.offsets[request + 1] - future.offsets[request]:
        use = future.after[future.offsets[request] + index]
        while use >= 0 and future.users[use] < st.ints[I_HEAD]:  # who was admitted in the meantime
            use = future.after[use]
        if use >= 0:
            return (numba.int64(future.users[use]) + 1) << 32 | index
    return NEVER_RANK - sh.counts[H_RANKED]


@inlined
def rank_released(st, sh, slot, index, again):
    """Rank a block that is about to be free; ``again``: its request will come back for it, before all others."""
    block = sh.tables[slot, index]
    if sh.pool.references[block] > 1 or sh.pool.keys[block] == 0:
        return
    if again:
        sh.counts[H_RANKED] += 1
        sh.pool.ranks[block] = -sh.counts[H_RANKED]
        return
    rank = foreseen_rank(st, sh, st.slots[slot, S_REQUEST], index)
    first = prefix.find_block(sh.pool, sh.pool.keys[block])
    if first == block:
        sh.pool.ranks[block] = rank
    else:  # the same is there already, where look-ups find it
        sh.pool.ranks[block] = NEVER_RANK - sh.counts[H_RANKED]
        if sh.pool.references[first] == 0:
            prefix.rank(sh.pool, first, rank)


@inlined
def give_up(st, sh, slot, again):
    """Release the blocks of a request, the last first; ``again``: it was preempted and will come back."""
    ints = st.ints
    row = st.slots[slot]
    block = ints[I_BLOCK]
    for index in range(blocks_of(row[S_COMPUTED], block) - 1, -1, -1):
        if sh.counts[H_CLAIRVOYANT] == 1:
            rank_released(st, sh, slot, index, again)
        if prefix.release(sh.pool, sh.tables[slot, index]):
            ints[I_USED] -= min(block, row[S_COMPUTED] - index * block)
    sh.counts[H_LOGICAL] -= row[S_COMPUTED]
    row[S_COMPUTED] = 0
    ints[I_BLOCKED] = 0


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
    give_up(st, sh, slot, True)
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
        sh.counts[H_MISS] = numba.int64(key_of(st, sh, row[S_REQUEST], hits) >> numba.uint64(1))
        ints[I_BLOCKED] = 1 if ints[I_WHOLE] and ints[I_WATERMARK] == 0 else 0
        if free >= whole:
            ints[I_REFUSED_WHILE_FREE] += 1
        return 0
    for index in range(hits):
        if prefix.refer(sh.pool, sh.tables[slot, index]):
            ints[I_USED] += block
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
    give_up(st, sh, slot, False)
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
    if ints[I_IN_BUCKET] == 0:
        begin_bucket(st, log)
    if log.rows.shape[0] > 0:
        log.rows[ints[I_ROWS], ROW_CACHED] = sh.pool.counts[prefix.CACHED] * ints[I_BLOCK]
    seconds = step_seconds(floats, prefill, decodes, read)
    account_sharing(st, log, sh, seconds)
    close_step(st, log, seconds)
    emit_tokens(st, log, trace, sh)
    ints[I_FREE] = sh.pool.counts[prefix.FREE]


@called
def restart(st, sh):
    """Restart the server: everything that runs and all that is cached is lost; False when it gets nowhere."""
    ints = st.ints
    while ints[I_RUNNING] > 0:
        preempt(st, sh)
        ints[I_PREEMPTIONS] -= 1
    prefix.forget_all(sh.pool)
    ints[I_FREE] = sh.pool.counts[prefix.FREE]
    ints[I_BLOCKED] = 0
    return begin_restart(st)


@compiled
def run_prefix(st, log, trace, sh, most):
    """Go on for up to ``most`` steps; return DONE, PAUSED, FULL (the rows must be taken away), or STALLED."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == DONE or reason == FULL:
            return reason
        if reason == IDLE:
            continue
        if is_restart_due(st.floats):
            if not restart(st, sh):
                return STALLED
            continue
        prefix_step(st, log, trace, sh)
    return PAUSED


def new_shared(
    content: tuple[Array, Array, Array, Array],
    *,
    blocks: int,
    max_seqs: int,
    longest_blocks: int,
    ranked: bool = False,
    future: Future | None = None,
) -> Shared:
    """Return an empty pool over the content columns ``(how, offsets, ids, covered)``.

    ``ranked``: cached blocks go first in, first out, or with a ``future`` those that are needed last.
    """
    how, offsets, ids, covered = content
    counts = np.zeros(7, np.int64)
    counts[H_CLAIRVOYANT] = future is not None
    return Shared(
        pool=prefix.new_pool(blocks, ranked=ranked),
        tables=np.zeros((max_seqs + 1, longest_blocks), np.int32),
        counts=counts,
        how=how,
        offsets=offsets,
        ids=ids,
        covered=covered,
        future=future
        or Future(offsets=np.zeros(1, np.int64), after=np.zeros(0, np.int32), users=np.zeros(0, np.int32)),
    )
