"""A prefix cache that keeps runs of blocks which share their fate (compiled); `_blockwise` does the same one by one.

The blocks of a request are stretches: those of one id each, as many as it covers, or the leading ones of the common
stream; then all that are its own.
"""

from __future__ import annotations

import numba

from kvledger.pool import runs
from kvledger.pool.compiled import called, inlined
from kvledger.pool.prefix import FREE, mix
from kvledger.replay._layout import *
from kvledger.replay._memory import blocks_of
from kvledger.replay._shared import BY_STREAM, H_LOGICAL, H_MISS, H_PLACE, UNKNOWN


@inlined
def stretch_of(st, sh, request, index):
    """Return the key of the stretch of a request that block ``index`` lies in, where it begins, and where it ends."""
    block = st.ints[I_BLOCK]
    known = numba.int64(sh.covered[request]) // block if sh.how[0] != UNKNOWN else 0
    if index >= known:
        return mix(numba.uint64(request) | (numba.uint64(1) << numba.uint64(63))), known, NEVER_TICK
    if sh.how[0] == BY_STREAM:
        return mix(numba.uint64(1) << numba.uint64(62)), 0, known
    grain = sh.how[1]
    if grain <= block:
        return mix(numba.uint64(sh.ids[sh.offsets[request] + ((index + 1) * block - 1) // grain])), index, index + 1
    each = grain // block
    at = index // each
    return mix(numba.uint64(sh.ids[sh.offsets[request] + at])), at * each, min((at + 1) * each, known)


@called
def count_hits(st, sh, slot):
    """Count the leading blocks of a waiting request that are in the pool, and those of them nobody refers to."""
    row = st.slots[slot]
    most = (row[S_PROMPT] + row[S_GENERATED] - 1) // st.ints[I_BLOCK]
    hits, idle = 0, 0
    while hits < most:
        key, first, stop = stretch_of(st, sh, row[S_REQUEST], hits)
        parts, unused = runs.find_parts(sh.pool, key, min(stop, most) - first)
        hits = first + parts
        idle += unused
        if hits < min(stop, most):
            break
    return hits, idle


@called
def refer_hits(st, sh, slot, hits):
    """Let a request use the leading blocks that were counted."""
    index, length = 0, 0
    while index < hits:
        key, first, stop = stretch_of(st, sh, st.slots[slot, S_REQUEST], index)
        index = min(stop, hits)
        length, idle = runs.refer(sh.pool, sh.tables[slot], length, key, index - first)
        st.ints[I_USED] += idle * st.ints[I_BLOCK]
    sh.lengths[slot] = length


@inlined
def note_miss(st, sh, slot, hits):
    """Note which block a refused request missed first: when that comes, the request may be admitted."""
    key, first, _ = stretch_of(st, sh, st.slots[slot, S_REQUEST], hits)
    sh.counts[H_MISS] = numba.int64(key >> numba.uint64(1))
    sh.counts[H_PLACE] = hits - first


@called
def identify(st, sh, slot, index, end):
    """Give identities to the blocks from ``index`` to ``end``, which are filled now."""
    while index < end:
        key, first, stop = stretch_of(st, sh, st.slots[slot, S_REQUEST], index)
        begin, index = index - first, min(stop, end)
        sh.lengths[slot] = runs.identify(sh.pool, sh.tables[slot], sh.lengths[slot], key, begin, index - first)
        if numba.int64(key >> numba.uint64(1)) == sh.counts[H_MISS] and begin <= sh.counts[H_PLACE] < index - first:
            st.ints[I_BLOCKED] = 0


@called
def grow(st, sh, slot, computed, n):
    """Take the blocks for ``n`` more tokens; False when there are too few."""
    block = st.ints[I_BLOCK]
    more = blocks_of(computed + n, block) - blocks_of(computed, block)
    if more > sh.pool.counts[FREE]:
        return False
    if more > 0:
        runs.take(sh.pool, more)
    if (computed + n) // block > computed // block:
        identify(st, sh, slot, computed // block, (computed + n) // block)
    return True


@called
def give_up(st, sh, slot, again):  # noqa: ARG001 - whoever comes back makes no difference here
    """Release the blocks of a request, the last first."""
    ints = st.ints
    row = st.slots[slot]
    rest = row[S_COMPUTED] % ints[I_BLOCK]
    if rest > 0:  # a block that is not full holds nothing that could be found
        sh.pool.counts[FREE] += 1
    ints[I_USED] -= rest + runs.release(sh.pool, sh.tables[slot], sh.lengths[slot]) * ints[I_BLOCK]
    sh.lengths[slot] = 0
    sh.counts[H_LOGICAL] -= row[S_COMPUTED]
    row[S_COMPUTED] = 0
    ints[I_BLOCKED] = 0


@inlined
def forget_all(sh):
    """Let all blocks hold nothing."""
    runs.forget_all(sh.pool)
