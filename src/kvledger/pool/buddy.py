"""A buddy allocator over any capacity: its roots are the powers of two that sum to it.

A size is rounded up to a power of two; a larger free block is halved until it fits; a freed block joins its buddy while
that is free. Blocks lie at addresses that are multiples of their size, so a buddy is ``address ^ size``; roots are laid
out from large to small, which keeps that true, and a root never finds a buddy outside itself.

Arrays: ``free_blocks`` (ORDERS, limit) int64 holds the addresses of the free blocks of each order, of which the first
``counts[order]`` are valid. All functions are compiled and work in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.pool.compiled import shared

ORDERS = 63

Array = Any  # a numpy array; numba knows its type


@shared
def order_of(size: int) -> int:
    """Return the smallest order whose blocks hold ``size`` units."""
    order = 0
    while (1 << order) < size:
        order += 1
    return order


@shared
def reset(free_blocks: Array, counts: Array, capacity: int) -> None:
    """Make every root one free block."""
    counts[:] = 0
    address = 0
    for order in range(ORDERS - 1, -1, -1):
        if capacity & (1 << order):
            free_blocks[order, 0] = address
            counts[order] = 1
            address += 1 << order


@shared
def allocate(free_blocks: Array, counts: Array, order: int) -> int:
    """Take a block of ``order`` and return its address; -1 when none can be made.

    The smallest free block that will do is taken, of several the one at the lowest address; its upper halves stay free.
    """
    source = order
    while source < ORDERS and counts[source] == 0:
        source += 1
    if source == ORDERS:
        return -1
    lowest = 0
    for i in range(1, counts[source]):
        if free_blocks[source, i] < free_blocks[source, lowest]:
            lowest = i
    address = free_blocks[source, lowest]
    counts[source] -= 1
    free_blocks[source, lowest] = free_blocks[source, counts[source]]
    while source > order:
        source -= 1
        free_blocks[source, counts[source]] = address + (1 << source)
        counts[source] += 1
    return int(address)


@shared
def can_allocate(counts: Array, order: int) -> bool:
    """Tell whether a block of ``order`` can be made."""
    for source in range(order, ORDERS):
        if counts[source] > 0:
            return True
    return False


@shared
def release(free_blocks: Array, counts: Array, address: int, order: int) -> None:
    """Return a block and join it with its buddy as long as that is free."""
    while True:
        buddy = address ^ (1 << order)
        found = -1
        for i in range(counts[order]):
            if free_blocks[order, i] == buddy:
                found = i
                break
        if found < 0:
            free_blocks[order, counts[order]] = address
            counts[order] += 1
            return
        counts[order] -= 1
        free_blocks[order, found] = free_blocks[order, counts[order]]
        address = min(address, buddy)
        order += 1


@shared
def count_external(counts: Array, order: int) -> int:
    """Count the free units lost to non-contiguity for blocks of ``order``; the holes are the free blocks."""
    free = 0
    whole = 0
    for o in range(ORDERS):
        if counts[o] > 0:
            free += counts[o] << o
            if o >= order:
                whole += counts[o] << (o - order)
    return int(((free >> order) - whole) << order)


def new_free_blocks(limit: int) -> tuple[Array, Array]:
    """Return empty arrays ``(free_blocks, counts)`` for up to ``limit`` live blocks."""
    return np.zeros((ORDERS, limit + 2), np.int64), np.zeros(ORDERS, np.int64)
