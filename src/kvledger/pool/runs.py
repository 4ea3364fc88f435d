"""A pool of blocks with a prefix cache, kept as runs of blocks that share their fate (compiled).

It answers as `pool.prefix` with its queue does (vLLM's block pool, v1/core/block_pool.py, checked on 0.32), block for
block, but keeps one entry for many of them. A *stretch* is content whose blocks come one after the other in every
request that has it: the tokens of one id of a trace, a common stream, what a request has for itself. A run is blocks
``begin`` to ``end`` of a stretch that the same requests refer to, and which lie side by side in the queue::

    stretch A, 32 blocks | one run: 0 ................ 31 |      another request needs the first 20 only:
                         | 0 .......... 19 | 20 ...... 31 |      the run is cut, and two differ from now on

Blocks that are in no run hold nothing to be found; only their number matters, as they are taken before all others.
A run that nobody refers to gives up its blocks from its end. So whatever part of a stretch is there, all parts before
it are, and two runs of one stretch never overlap in part: those of one identity, its *twins*, are cut together.

All functions work in place on a `RunPool`. A table lists the runs of a request, and how many blocks each had when it
was noted: one that was cut since goes on in its other halves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from kvledger.pool.compiled import called, inlined
from kvledger.pool.prefix import CACHED, FREE, MASK, mix

Array = Any  # a numpy array; numba knows its type

# Numbers of `RunPool.counts` after those of `pool.prefix`: entries that were ever used, and the first that was given
# back, plus one (the others follow in `after`).
OPENED, SPARE = 3, 4
NOBODY = -1


class RunPool(NamedTuple):
    """The arrays of a pool of ``n`` blocks, which are at most as many runs; index ``n`` closes the queue."""

    keys: Array  # (n,) uint64: the stretch
    begins: Array  # (n,) int32
    ends: Array  # (n,) int32
    references: Array  # (n,) int32
    after: Array  # (n + 1,) int32: the queue of runs nobody refers to, forwards
    before: Array  # (n + 1,) int32: and backwards
    twins: Array  # (n,) int32: the next run of the same blocks, in order of insertion
    halves: Array  # (n,) int32: where the rest of a run went that was cut
    slots: (
        Array  # (power of two, at least 2 n) int32: open addressing, one more than the first run of an identity, or 0
    )
    counts: Array  # (5,) int64: free blocks, those of them in runs, the mask of `slots`, and the entries


def new_run_pool(blocks: int) -> RunPool:
    """Return a pool of free blocks that hold nothing. Its arrays are zeros, which take no memory until written."""
    size = 1 << max(4, (2 * blocks - 1).bit_length())
    after, before = np.zeros(blocks + 1, np.int32), np.zeros(blocks + 1, np.int32)
    after[blocks] = before[blocks] = blocks
    return RunPool(
        keys=np.zeros(blocks, np.uint64),
        begins=np.zeros(blocks, np.int32),
        ends=np.zeros(blocks, np.int32),
        references=np.zeros(blocks, np.int32),
        after=after,
        before=before,
        twins=np.zeros(blocks, np.int32),
        halves=np.zeros(blocks, np.int32),
        slots=np.zeros(size, np.int32),
        counts=np.array([blocks, 0, size - 1, 0, 0], np.int64),
    )


@inlined
def home(pool, key, begin):
    """Return the slot where a run is looked for first."""
    return numba.int64(mix(key + numba.uint64(begin)) & numba.uint64(pool.counts[MASK]))


@inlined
def find_slot(pool, key, begin):
    """Return the slot of the runs of a stretch that begin there, or the empty slot where they would go."""
    slot = home(pool, key, begin)
    while pool.slots[slot] != 0:
        run = pool.slots[slot] - 1
        if pool.keys[run] == key and pool.begins[run] == begin:
            break
        slot = (slot + 1) & pool.counts[MASK]
    return slot


@inlined
def find_run(pool, key, begin):
    """Return the run of a stretch inserted first that begins there; -1 when there is none."""
    return pool.slots[find_slot(pool, key, begin)] - 1


@inlined
def link(pool, run, after):
    """Put a run into the queue before another."""
    before = pool.before[after]
    pool.after[before] = run
    pool.before[run] = before
    pool.after[run] = after
    pool.before[after] = run


@inlined
def unlink(pool, run):
    """Take a run out of the queue."""
    pool.after[pool.before[run]] = pool.after[run]
    pool.before[pool.after[run]] = pool.before[run]


@called
def add_run(pool, key, begin, end, references):
    """Return a new run, the last of its twins."""
    if pool.counts[SPARE] > 0:
        run = pool.counts[SPARE] - 1
        pool.counts[SPARE] = pool.after[run]
    else:
        run = pool.counts[OPENED]
        pool.counts[OPENED] += 1
    pool.keys[run], pool.begins[run], pool.ends[run] = key, begin, end
    pool.references[run] = references
    pool.twins[run] = NOBODY
    slot = find_slot(pool, key, begin)
    if pool.slots[slot] == 0:
        pool.slots[slot] = run + 1
    else:
        twin = pool.slots[slot] - 1
        while pool.twins[twin] != NOBODY:
            twin = pool.twins[twin]
        pool.twins[twin] = run
    return run


@inlined
def close_gap(pool, slot):
    """Empty a slot, and move up what probing would no longer reach."""
    mask = pool.counts[MASK]
    gap = slot
    at = (slot + 1) & mask
    while pool.slots[at] != 0:
        run = pool.slots[at] - 1
        if ((at - home(pool, pool.keys[run], pool.begins[run])) & mask) >= ((at - gap) & mask):
            pool.slots[gap] = pool.slots[at]
            gap = at
        at = (at + 1) & mask
    pool.slots[gap] = 0


@called
def drop_run(pool, run):
    """Take a whole run out of the queue and the index."""
    unlink(pool, run)
    slot = find_slot(pool, pool.keys[run], pool.begins[run])
    first = pool.slots[slot] - 1
    if first != run:
        while pool.twins[first] != run:
            first = pool.twins[first]
        pool.twins[first] = pool.twins[run]
    elif pool.twins[run] == NOBODY:
        close_gap(pool, slot)
    else:
        pool.slots[slot] = pool.twins[run] + 1
    pool.after[run] = pool.counts[SPARE]
    pool.counts[SPARE] = run + 1


@called
def cut(pool, key, begin, at):
    """Cut the runs of a stretch that begin at ``begin`` in two at ``at``."""
    run = find_run(pool, key, begin)
    while run != NOBODY:
        rest = add_run(pool, key, at, pool.ends[run], pool.references[run])
        pool.ends[run] = at
        pool.halves[rest] = pool.halves[run]
        pool.halves[run] = rest
        if pool.references[run] == 0:
            link(pool, rest, run)
        run = pool.twins[run]


@called
def take(pool, blocks):
    """Take free blocks: those that hold nothing, then the ends of the runs at the head of the queue."""
    sentinel = pool.references.shape[0]
    wanted = blocks - (pool.counts[FREE] - pool.counts[CACHED])
    pool.counts[FREE] -= blocks
    while wanted > 0:
        run = pool.after[sentinel]
        size = numba.int64(pool.ends[run] - pool.begins[run])
        if size > wanted:
            kept = pool.ends[run] - wanted
            key, begin = pool.keys[run], pool.begins[run]
            if pool.twins[run] == NOBODY and find_run(pool, key, begin) == run:
                pool.ends[run] = kept
                pool.counts[CACHED] -= wanted
                return
            cut(pool, key, begin, kept)
            run, size = pool.halves[run], wanted
        drop_run(pool, run)
        pool.counts[CACHED] -= size
        wanted -= size


@called
def find_parts(pool, key, most):
    """Count the leading blocks of a stretch that are there, at most ``most``, and those of them nobody refers to."""
    parts, idle = 0, 0
    while parts < most:
        run = find_run(pool, key, parts)
        if run == NOBODY:
            break
        stop = min(numba.int64(pool.ends[run]), most)
        if pool.references[run] == 0:
            idle += stop - parts
        parts = stop
    return parts, idle


@called
def refer(pool, table, length, key, parts):
    """Note the first ``parts`` blocks of a stretch in a table; return its length, and the blocks nobody referred to."""
    at, idle = 0, 0
    while at < parts:
        run = find_run(pool, key, at)
        if pool.ends[run] > parts:
            cut(pool, key, at, parts)
        size = numba.int64(pool.ends[run] - pool.begins[run])
        if pool.references[run] == 0:
            unlink(pool, run)
            pool.counts[FREE] -= size
            pool.counts[CACHED] -= size
            idle += size
        pool.references[run] += 1
        table[length, 0], table[length, 1] = run, size
        length += 1
        at += size
    return length, idle


@inlined
def is_open(pool, run, key, begin):
    """Tell whether blocks of a stretch from ``begin`` on can be added to a run: one request has it, and it is alone."""
    return (
        pool.keys[run] == key
        and pool.ends[run] == begin
        and pool.references[run] == 1
        and pool.twins[run] == NOBODY
        and find_run(pool, key, begin) == NOBODY
        and find_run(pool, key, pool.begins[run]) == run
    )


@called
def identify(pool, table, length, key, begin, end):
    """Note blocks ``begin`` to ``end`` of a stretch, which were taken before, in a table; return its length."""
    if length > 0 and is_open(pool, table[length - 1, 0], key, begin):
        pool.ends[table[length - 1, 0]] = end
        table[length - 1, 1] += end - begin
        return length
    while begin < end:
        stop = end
        twin = find_run(pool, key, begin)
        if twin != NOBODY:
            if pool.ends[twin] > end:
                cut(pool, key, begin, end)
            stop = numba.int64(pool.ends[twin])
        table[length, 0], table[length, 1] = add_run(pool, key, begin, stop, 1), stop - begin
        length += 1
        begin = stop
    return length


@inlined
def let_go(pool, run):
    """Release one reference to a run; return the blocks that nobody refers to any more."""
    pool.references[run] -= 1
    if pool.references[run] > 0:
        return 0
    link(pool, run, pool.references.shape[0])
    size = numba.int64(pool.ends[run] - pool.begins[run])
    pool.counts[FREE] += size
    pool.counts[CACHED] += size
    return size


@called
def release(pool, table, length):
    """Release the blocks of a table, the last first; return how many nobody refers to any more."""
    freed = 0
    for i in range(length - 1, -1, -1):
        run, left = table[i, 0], table[i, 1]
        pieces = 0
        while left > 0:  # the halves go behind what is left of the table, which has room for every block
            table[i + pieces, 0] = run
            pieces += 1
            left -= pool.ends[run] - pool.begins[run]
            run = pool.halves[run]
        for piece in range(pieces - 1, -1, -1):
            freed += let_go(pool, table[i + piece, 0])
    return freed


@called
def forget_all(pool):
    """Let all blocks hold nothing, as a restart does; nobody may refer to any."""
    sentinel = pool.references.shape[0]
    pool.after[sentinel] = pool.before[sentinel] = sentinel
    pool.slots[:] = 0
    pool.counts[CACHED] = 0
    pool.counts[OPENED] = 0
    pool.counts[SPARE] = 0
