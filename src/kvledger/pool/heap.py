"""A heap of blocks by a number each, the greatest on top, in arrays that also tell where each block is (compiled)."""

from __future__ import annotations

from kvledger.pool.compiled import inlined


@inlined
def place(heap, where, at, node):
    """Put a block at a place of the heap."""
    heap[at] = node
    where[node] = at


@inlined
def rise(heap, where, order, at):
    """Move a block up the heap as long as it goes before its parent."""
    node = heap[at]
    while at > 0:
        up = (at - 1) >> 1
        if order[heap[up]] >= order[node]:
            break
        place(heap, where, at, heap[up])
        at = up
    place(heap, where, at, node)


@inlined
def sink(heap, where, order, size, at):
    """Move a block down the heap as long as a child goes before it."""
    node = heap[at]
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and order[heap[down + 1]] > order[heap[down]]:
            down += 1
        if order[heap[down]] <= order[node]:
            break
        place(heap, where, at, heap[down])
        at = down
    place(heap, where, at, node)


@inlined
def move(heap, where, order, size, node, rank):
    """Give a block of the heap another number."""
    risen = rank > order[node]
    order[node] = rank
    if risen:
        rise(heap, where, order, where[node])
    else:
        sink(heap, where, order, size, where[node])


@inlined
def remove(heap, where, order, size, node):
    """Take a block out of a heap of ``size``."""
    at = where[node]
    last = heap[size - 1]
    if last != node:
        place(heap, where, at, last)
        rise(heap, where, order, at)
        sink(heap, where, order, size - 1, where[last])
