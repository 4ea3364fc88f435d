"""A pool of blocks with a prefix cache, as vLLM's block pool keeps it (v1/core/block_pool.py, checked on 0.32).

A full block has an identity: a 64-bit key of its content and all content before it. Free blocks form one queue;
allocation takes the head, and a taken block loses its identity. A released block that nobody refers to any more goes to
the tail of the queue when it has an identity, so that it can be found again, and to the head when it has none. One
identity may live in several blocks; a look-up returns the one inserted first that is still there.

A pool may instead be ranked: of the free blocks with an identity the one whose rank is the greatest is taken first,
wherever it stands; by default the older an identity, the greater its rank (first in, first out). Free blocks without an
identity are taken before all others in either case.

All functions are compiled and work in place on a `BlockPool`. Key 0 means no identity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from kvledger.pool import heap
from kvledger.pool.compiled import inlined

Array = Any  # a numpy array; numba knows its type

FREE, CACHED, MASK, BIRTHS = range(4)
NOBODY = -1


class BlockPool(NamedTuple):
    """The arrays of one pool of ``n`` blocks; index ``n`` of the queue is its sentinel."""

    references: Array  # (n,) int32
    after: Array  # (n + 1,) int32: the free queue, forwards
    before: Array  # (n + 1,) int32: and backwards
    keys: Array  # (n,) uint64
    twins: Array  # (n,) int32: the next block of the same identity, in order of insertion
    slots: Array  # (power of two, at least 2 n) int32: open addressing, the first block of an identity or -1
    counts: Array  # (4,) int64: free blocks, those of them with an identity, the mask of `slots`, identities ever given
    ranks: Array  # (n,) int64 where the pool is ranked, else (0,)
    heap: Array  # (n,) int32, or (0,): the free blocks with an identity, as a heap by their ranks
    where: Array  # (n,) int32, or (0,): the place of each in the heap


def new_pool(blocks: int, *, ranked: bool = False) -> BlockPool:
    """Return a pool of free blocks without identities, in order of their numbers."""
    size = 1 << max(4, (2 * blocks - 1).bit_length())
    after = np.arange(1, blocks + 2, dtype=np.int32)
    after[blocks] = 0
    before = np.arange(-1, blocks, dtype=np.int32)
    before[0] = blocks
    return BlockPool(
        references=np.zeros(blocks, np.int32),
        after=after,
        before=before,
        keys=np.zeros(blocks, np.uint64),
        twins=np.full(blocks, NOBODY, np.int32),
        slots=np.full(size, NOBODY, np.int32),
        counts=np.array([blocks, 0, size - 1, 0], np.int64),
        ranks=np.zeros(blocks if ranked else 0, np.int64),
        heap=np.zeros(blocks if ranked else 0, np.int32),
        where=np.zeros(blocks if ranked else 0, np.int32),
    )


@inlined
def is_ranked(pool):
    """Tell whether free blocks with an identity are taken by rank, and not from the queue."""
    return pool.ranks.shape[0] > 0


@inlined
def mix(value):
    """Scramble 64 bits (the finaliser of splitmix64)."""
    z = numba.uint64(value) + numba.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numba.uint64(30))) * numba.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numba.uint64(27))) * numba.uint64(0x94D049BB133111EB)
    return z ^ (z >> numba.uint64(31))


@inlined
def home(pool, key):
    """Return the slot where a key is looked for first."""
    return numba.int64(key & numba.uint64(pool.counts[MASK]))


@inlined
def find_slot(pool, key):
    """Return the slot of an identity, or the empty slot where it would go."""
    mask = pool.counts[MASK]
    slot = home(pool, key)
    while pool.slots[slot] != NOBODY and pool.keys[pool.slots[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def find_block(pool, key):
    """Return the block inserted first under this identity that is still there; -1 when there is none."""
    return pool.slots[find_slot(pool, key)]


@inlined
def insert(pool, block, key):
    """Give a block its identity."""
    pool.keys[block] = key
    pool.twins[block] = NOBODY
    if is_ranked(pool):
        pool.counts[BIRTHS] += 1
        pool.ranks[block] = -pool.counts[BIRTHS]
    slot = find_slot(pool, key)
    first = pool.slots[slot]
    if first == NOBODY:
        pool.slots[slot] = block
        return
    while pool.twins[first] != NOBODY:
        first = pool.twins[first]
    pool.twins[first] = block


@inlined
def close_gap(pool, slot):
    """Empty a slot, and move up what probing would no longer reach."""
    mask = pool.counts[MASK]
    gap = slot
    at = (slot + 1) & mask
    while pool.slots[at] != NOBODY:
        wanted = home(pool, pool.keys[pool.slots[at]])
        if ((at - wanted) & mask) >= ((at - gap) & mask):
            pool.slots[gap] = pool.slots[at]
            gap = at
        at = (at + 1) & mask
    pool.slots[gap] = NOBODY


@inlined
def forget(pool, block):
    """Take a block's identity away."""
    slot = find_slot(pool, pool.keys[block])
    first = pool.slots[slot]
    if first == block:
        if pool.twins[block] == NOBODY:
            close_gap(pool, slot)
        else:
            pool.slots[slot] = pool.twins[block]
    else:
        while pool.twins[first] != block:
            first = pool.twins[first]
        pool.twins[first] = pool.twins[block]
    pool.keys[block] = numba.uint64(0)
    pool.twins[block] = NOBODY


@inlined
def unlink(pool, block):
    """Take a block out of the free ones."""
    if is_ranked(pool) and pool.keys[block] != 0:
        heap.remove(pool.heap, pool.where, pool.ranks, pool.counts[CACHED], block)
    else:
        before, after = pool.before[block], pool.after[block]
        pool.after[before] = after
        pool.before[after] = before
    pool.counts[FREE] -= 1
    if pool.keys[block] != 0:
        pool.counts[CACHED] -= 1


@inlined
def link(pool, block, before):
    """Put a block into the free queue behind ``before``."""
    after = pool.after[before]
    pool.after[before] = block
    pool.before[block] = before
    pool.after[block] = after
    pool.before[after] = block
    pool.counts[FREE] += 1
    if pool.keys[block] != 0:
        pool.counts[CACHED] += 1


@inlined
def keep(pool, block):
    """Put a released block with an identity among the free ones of a ranked pool."""
    cached = pool.counts[CACHED]
    heap.place(pool.heap, pool.where, cached, block)
    heap.rise(pool.heap, pool.where, pool.ranks, cached)
    pool.counts[FREE] += 1
    pool.counts[CACHED] += 1


@inlined
def rank(pool, block, rank):
    """Give a block of a ranked pool another rank."""
    if pool.references[block] == 0 and pool.keys[block] != 0:
        heap.move(pool.heap, pool.where, pool.ranks, pool.counts[CACHED], block, rank)
    else:
        pool.ranks[block] = rank


@inlined
def allocate(pool):
    """Take the free block that goes first for one request. There must be one."""
    sentinel = pool.references.shape[0]
    block = pool.after[sentinel]
    if block == sentinel:
        block = pool.heap[0]
    unlink(pool, block)
    if pool.keys[block] != 0:
        forget(pool, block)
    pool.references[block] = 1
    return block


@inlined
def refer(pool, block):
    """Let one more request use a block; True when nobody did."""
    idle = pool.references[block] == 0
    if idle:
        unlink(pool, block)
    pool.references[block] += 1
    return idle


@inlined
def release(pool, block):
    """Let one request less use a block; True when nobody does any more."""
    pool.references[block] -= 1
    if pool.references[block] > 0:
        return False
    if is_ranked(pool) and pool.keys[block] != 0:
        keep(pool, block)
        return True
    sentinel = pool.references.shape[0]
    link(pool, block, pool.before[sentinel] if pool.keys[block] != 0 else sentinel)
    return True


@inlined
def forget_all(pool):
    """Take the identities of all blocks away, as a restart does; nobody may refer to any."""
    if is_ranked(pool):
        for i in range(pool.counts[CACHED]):
            block = pool.heap[i]
            pool.keys[block] = 0
            pool.counts[FREE] -= 1
            link(pool, block, pool.before[pool.references.shape[0]])
    pool.keys[:] = 0
    pool.twins[:] = NOBODY
    pool.slots[:] = NOBODY
    pool.counts[CACHED] = 0
