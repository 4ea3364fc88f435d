"""Contiguous extents in one address space: a list of holes in order of address.

All functions are compiled and work in place on ``starts`` and ``sizes``, both (limit,) int64, of which the first
``meta[COUNT]`` entries are holes, sorted by address, never adjacent, never empty. ``meta[ROVER]`` is the address where
next fit goes on. A hole list over ``n`` live extents has at most ``n + 1`` holes, so arrays of that length suffice.
Units are the caller's (tokens in the replay).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.pool.compiled import shared

COUNT = 0
ROVER = 1

BEST = 0
FIRST = 1
NEXT = 2
WORST = 3
BUDDY = 4

Array = Any  # a numpy array; numba knows its type


@shared
def reset(starts: Array, sizes: Array, meta: Array, capacity: int) -> None:
    """Make the whole space one hole."""
    starts[0] = 0
    sizes[0] = capacity
    meta[COUNT] = 1 if capacity > 0 else 0
    meta[ROVER] = 0


@shared
def find_hole(starts: Array, sizes: Array, meta: Array, size: int, placement: int) -> int:
    """Find the hole that ``placement`` chooses for ``size``; -1 when none is large enough. O(holes)."""
    count = meta[COUNT]
    chosen = -1
    if placement == FIRST:
        for i in range(count):
            if sizes[i] >= size:
                return i
    elif placement == NEXT:
        rover = meta[ROVER]
        for i in range(count):
            if sizes[i] >= size:
                if starts[i] >= rover:
                    return i
                if chosen < 0:
                    chosen = i
    elif placement == BEST:
        for i in range(count):
            if sizes[i] >= size and (chosen < 0 or sizes[i] < sizes[chosen]):
                chosen = i
    else:
        for i in range(count):
            if sizes[i] >= size and (chosen < 0 or sizes[i] > sizes[chosen]):
                chosen = i
    return chosen


@shared
def take(starts: Array, sizes: Array, meta: Array, hole: int, size: int) -> int:
    """Cut ``size`` from the low end of a hole and return its address."""
    address = starts[hole]
    if sizes[hole] == size:
        for i in range(hole, meta[COUNT] - 1):
            starts[i] = starts[i + 1]
            sizes[i] = sizes[i + 1]
        meta[COUNT] -= 1
    else:
        starts[hole] += size
        sizes[hole] -= size
    meta[ROVER] = address + size
    return int(address)


@shared
def release(starts: Array, sizes: Array, meta: Array, address: int, size: int) -> None:
    """Return an extent and join it with the holes beside it. O(holes)."""
    count = meta[COUNT]
    low, high = 0, count
    while low < high:
        mid = (low + high) // 2
        if starts[mid] < address:
            low = mid + 1
        else:
            high = mid
    joins_before = low > 0 and starts[low - 1] + sizes[low - 1] == address
    joins_after = low < count and address + size == starts[low]
    if joins_before and joins_after:
        sizes[low - 1] += size + sizes[low]
        for i in range(low, count - 1):
            starts[i] = starts[i + 1]
            sizes[i] = sizes[i + 1]
        meta[COUNT] = count - 1
    elif joins_before:
        sizes[low - 1] += size
    elif joins_after:
        starts[low] = address
        sizes[low] += size
    else:
        for i in range(count, low, -1):
            starts[i] = starts[i - 1]
            sizes[i] = sizes[i - 1]
        starts[low] = address
        sizes[low] = size
        meta[COUNT] = count + 1


@shared
def count_external(sizes: Array, meta: Array, size: int) -> int:
    """Count the free units lost to non-contiguity for requests of ``size``.

    With holes h_i and F = sum h_i: size * (floor(F / size) - sum floor(h_i / size)).
    """
    free = 0
    whole = 0
    for i in range(meta[COUNT]):
        free += sizes[i]
        if sizes[i] >= size:
            whole += sizes[i] // size
    return size * (free // size - whole)


def new_holes(limit: int) -> tuple[Array, Array, Array]:
    """Return empty arrays ``(starts, sizes, meta)`` for up to ``limit`` live extents."""
    return np.zeros(limit + 2, np.int64), np.zeros(limit + 2, np.int64), np.zeros(2, np.int64)
