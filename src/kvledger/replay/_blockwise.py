"""A prefix cache that keeps its blocks one by one, in a queue or by rank (compiled)."""

from __future__ import annotations

import numba

from kvledger.pool import prefix
from kvledger.pool.compiled import inlined
from kvledger.replay._layout import *
from kvledger.replay._memory import blocks_of
from kvledger.replay._shared import BY_STREAM, H_CLAIRVOYANT, H_LOGICAL, H_MISS, H_RANKED, UNKNOWN

# The rank of a block that nobody will look for; each is a little less than the one before.
NEVER_RANK = 2**62


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
def refer_hits(st, sh, slot, hits):
    """Let a request use the leading blocks that were counted."""
    for index in range(hits):
        if prefix.refer(sh.pool, sh.tables[slot, index]):
            st.ints[I_USED] += st.ints[I_BLOCK]


@inlined
def note_miss(st, sh, slot, hits):
    """Note which block a refused request missed first: when that comes, the request may be admitted."""
    sh.counts[H_MISS] = numba.int64(key_of(st, sh, st.slots[slot, S_REQUEST], hits) >> numba.uint64(1))


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
def forget_all(sh):
    """Let all blocks hold nothing."""
    prefix.forget_all(sh.pool)
