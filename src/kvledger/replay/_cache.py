"""A prefix cache alone, one request after the other: naming blocks, and three ways to choose what goes (compiled).

Blocks form a tree: the parent of a block is the block before it. All three evictions keep what they need in arrays over
the distinct blocks, so a run costs a few operations for every block of every request.
"""

from __future__ import annotations

from typing import Any

import numba

from kvledger.pool.compiled import compiled, inlined
from kvledger.pool.heap import place, rise, sink
from kvledger.pool.prefix import mix

Array = Any  # a numpy array; numba knows its type

NOTHING = -1

# How the content of a block is known; the same numbers as in `identity`.
BY_CHAIN, BY_STREAM, UNKNOWN = range(3)

# Numbers of a run's result.
R_HITS, R_ALL_HITS, R_FILLED = range(3)


@inlined
def key_of_block(how, grain, ids, first_id, covered, request, index, begin, end):
    """Return the identity of tokens ``begin`` to ``end`` of a request: shared as far as known, else its own."""
    if end <= covered and how == BY_STREAM:
        return mix(numba.uint64(begin) | (numba.uint64(1) << numba.uint64(62))) + numba.uint64(end - begin)
    if end <= covered and how == BY_CHAIN:
        at = (end - 1) // grain
        inside = numba.uint64(end - at * grain)
        return mix(mix(numba.uint64(ids[first_id + at])) + inside)
    return mix(
        (numba.uint64(request) << numba.uint64(28)) | numba.uint64(index) | (numba.uint64(1) << numba.uint64(63))
    )


@compiled
def name_blocks(
    how: int,
    grain: int,
    ids: Array,
    id_offsets: Array,
    covered: Array,
    ends: Array,
    block: int,
    offsets: Array,
    nodes: Array,
    tokens: Array,
    slots: Array,
    keys: Array,
) -> int:
    """Number the distinct blocks of all requests from 0; return how many there are.

    ``ends``: tokens of each request that are looked at. ``slots``: (power of two) int32, all -1. ``keys``: uint64.
    """
    mask = numba.uint64(slots.shape[0] - 1)
    count = 0
    for request in range(ends.shape[0]):
        known = covered[request] if how != UNKNOWN else 0
        first_id = id_offsets[request] if how == BY_CHAIN else 0
        for i in range(offsets[request], offsets[request + 1]):
            index = i - offsets[request]
            begin = index * block
            end = min(begin + block, ends[request])
            key = key_of_block(how, grain, ids, first_id, known, request, index, begin, end)
            slot = key & mask
            while slots[slot] != NOTHING and keys[slots[slot]] != key:
                slot = (slot + numba.uint64(1)) & mask
            if slots[slot] == NOTHING:
                slots[slot] = count
                keys[count] = key
                count += 1
            nodes[i] = slots[slot]
            tokens[i] = end - begin
    return count


@compiled
def find_next_uses(offsets: Array, nodes: Array, upcoming: Array, out: Array) -> None:
    """Note for every block of every request which request uses it next; the number of requests when none does.

    ``upcoming``: (distinct,) int32, filled with the number of requests.
    """
    for request in range(offsets.shape[0] - 2, -1, -1):
        for i in range(offsets[request], offsets[request + 1]):
            out[i] = upcoming[nodes[i]]
            upcoming[nodes[i]] = request


@inlined
def count_hits(offsets, nodes, tokens, most, present, request, first, out):
    """Count the leading blocks of a request that are present, and add their tokens to the result."""
    begin, end = offsets[request], offsets[request + 1]
    hits = 0
    while begin + hits < end and present[nodes[begin + hits]] >= 0:
        if hits < most[request]:
            out[R_ALL_HITS] += tokens[begin + hits]
            if request >= first:
                out[R_HITS] += tokens[begin + hits]
        hits += 1
    return hits


@compiled
def run_lru(
    offsets: Array, nodes: Array, tokens: Array, most: Array, first: int, capacity: int, scratch: Array, out: Array
) -> None:
    """Evict the block used longest ago that no cached block follows.

    Recency is that of requests, and within one request its last block is the oldest: so a list in that order never
    has a parent before its child, and its head is always such a block. ``scratch``: (3, distinct + 1) int32: the last
    request that used a block (-1: absent), and the list, forwards and backwards, closed by the entry ``distinct``.
    """
    used, after, before = scratch[0], scratch[1], scratch[2]
    end = used.shape[0] - 1
    used[:] = NOTHING
    after[end] = before[end] = end
    size = 0
    for request in range(offsets.shape[0] - 1):
        if request == first:
            out[R_FILLED] = size >= capacity
        hits = count_hits(offsets, nodes, tokens, most, used, request, first, out)
        begin = offsets[request]
        for i in range(begin + hits - 1, begin - 1, -1):  # to the young end, the first block last
            node = nodes[i]
            after[before[node]], before[after[node]] = after[node], before[node]
            used[node] = request
            last = before[end]
            after[last], before[node], after[node], before[end] = node, last, end, node
        younger = nodes[begin + hits - 1] if hits > 0 else end
        for i in range(begin + hits, offsets[request + 1]):
            if size == capacity:
                victim = after[end]
                if victim == end or used[victim] == request:
                    break
                used[victim] = NOTHING
                after[end], before[after[victim]] = after[victim], end
                size -= 1
            node = nodes[i]
            used[node] = request
            older = before[younger]
            after[older], before[node], after[node], before[younger] = node, older, younger, node
            younger = node
            size += 1


@compiled
def run_fifo(
    offsets: Array, nodes: Array, tokens: Array, most: Array, first: int, capacity: int, scratch: Array, out: Array
) -> None:
    """Evict the block that came first, wherever it stands; what follows it is then cached in vain.

    ``scratch``: (3, distinct + 1) int32; the second row is the queue, a ring.
    """
    present, queue = scratch[0], scratch[1]
    ring = queue.shape[0]
    present[:] = NOTHING
    size, head = 0, 0
    for request in range(offsets.shape[0] - 1):
        if request == first:
            out[R_FILLED] = size >= capacity
        count_hits(offsets, nodes, tokens, most, present, request, first, out)
        if capacity == 0:
            continue
        for i in range(offsets[request], offsets[request + 1]):
            node = nodes[i]
            if present[node] >= 0:
                continue
            if size == capacity:
                present[queue[head]] = NOTHING
                head = head + 1 if head + 1 < ring else 0
                size -= 1
            at = head + size
            queue[at if at < ring else at - ring] = node
            present[node] = request
            size += 1


@compiled
def run_belady(
    offsets: Array,
    nodes: Array,
    tokens: Array,
    most: Array,
    first: int,
    capacity: int,
    scratch: Array,
    order: Array,
    next_uses: Array,
    out: Array,
) -> None:
    """Evict the block whose next use is furthest, and keep nothing that would be needed later than what it replaces.

    A child is never needed before its parent; of blocks needed at the same time the deeper goes first. ``scratch``:
    (3, distinct + 1) int32: place in the heap (-1: absent), and the heap. ``order``: (distinct + 1,) int64.
    """
    where, heap = scratch[0], scratch[1]
    where[:] = NOTHING
    size = 0
    for request in range(offsets.shape[0] - 1):
        if request == first:
            out[R_FILLED] = size >= capacity
        hits = count_hits(offsets, nodes, tokens, most, where, request, first, out)
        begin = offsets[request]
        for i in range(begin, begin + hits):  # its next use is later now
            node = nodes[i]
            order[node] = (numba.int64(next_uses[i]) << 32) | (i - begin)
            rise(heap, where, order, where[node])
        for i in range(begin + hits, offsets[request + 1]):
            node = nodes[i]
            if size == capacity:
                if size == 0 or (order[heap[0]] >> 32) <= next_uses[i]:
                    break
                where[heap[0]] = NOTHING
                size -= 1
                if size > 0:
                    place(heap, where, 0, heap[size])
                    sink(heap, where, order, size, 0)
            order[node] = (numba.int64(next_uses[i]) << 32) | (i - begin)
            place(heap, where, size, node)
            size += 1
            rise(heap, where, order, size - 1)
