"""Extents inside segments that round as PyTorch's caching allocator does (c10/cuda/CUDACachingAllocator, 2.x).

Sizes are in units of 512 bytes, the allocator's own rounding. Blocks up to 1 MiB come from segments of 2 MiB; larger
ones from segments of 20 MiB, or of their own size rounded up to 2 MiB from 10 MiB on. The smallest free block of the
right kind that will do is taken and split when what is left is at least 512 bytes (small) or more than 1 MiB (large).
When none will do, a segment is asked of the device; when the device has no more, all wholly free segments are given
back first. A freed block joins the free blocks beside it in its segment.

``blocks`` is (FIELDS, limit) int64, sorted by address, of which the first ``meta[COUNT]`` columns are blocks. Segments
lie apart, so that their blocks never join. ``meta[SEGMENT_UNITS]`` is what all segments take from the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.pool.compiled import shared

ADDRESS, SIZE, USED, SEGMENT, SEGMENT_SIZE = range(5)
FIELDS = 5
COUNT, SEGMENT_UNITS, NEXT_ADDRESS = range(3)

UNIT_BYTES = 512
SMALL = 2**20 // UNIT_BYTES
SMALL_SEGMENT = 2 * 2**20 // UNIT_BYTES
LARGE_SEGMENT = 20 * 2**20 // UNIT_BYTES
LARGE = 10 * 2**20 // UNIT_BYTES

Array = Any  # a numpy array; numba knows its type


@shared
def segment_size(size: int) -> int:
    """Return the size of the segment that is asked of the device for a block of ``size``."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < LARGE:
        return LARGE_SEGMENT
    return (size + SMALL_SEGMENT - 1) // SMALL_SEGMENT * SMALL_SEGMENT


@shared
def find_block(blocks: Array, meta: Array, size: int) -> int:
    """Find the smallest free block of the right kind that holds ``size``; -1 when there is none. O(blocks)."""
    chosen = -1
    for i in range(meta[COUNT]):
        kind_fits = (blocks[SEGMENT_SIZE, i] == SMALL_SEGMENT) == (size <= SMALL)
        better = chosen < 0 or blocks[SIZE, i] < blocks[SIZE, chosen]
        if blocks[USED, i] == 0 and kind_fits and blocks[SIZE, i] >= size and better:
            chosen = i
    return chosen


@shared
def count_releasable(blocks: Array, meta: Array) -> int:
    """Count the units of wholly free segments."""
    units = 0
    for i in range(meta[COUNT]):
        if blocks[USED, i] == 0 and blocks[SIZE, i] == blocks[SEGMENT_SIZE, i]:
            units += blocks[SIZE, i]
    return units


@shared
def release_segments(blocks: Array, meta: Array) -> None:
    """Give all wholly free segments back to the device."""
    kept = 0
    for i in range(meta[COUNT]):
        if blocks[USED, i] == 0 and blocks[SIZE, i] == blocks[SEGMENT_SIZE, i]:
            meta[SEGMENT_UNITS] -= blocks[SIZE, i]
        else:
            for f in range(FIELDS):
                blocks[f, kept] = blocks[f, i]
            kept += 1
    meta[COUNT] = kept


@shared
def can_allocate(blocks: Array, meta: Array, size: int, capacity: int) -> bool:
    """Tell whether a block of ``size`` can be had, if need be by giving free segments back."""
    if find_block(blocks, meta, size) >= 0:
        return True
    return bool(segment_size(size) <= capacity - meta[SEGMENT_UNITS] + count_releasable(blocks, meta))


@shared
def insert(blocks: Array, meta: Array, at: int) -> None:
    """Make room for one more block at index ``at``."""
    for i in range(meta[COUNT], at, -1):
        for f in range(FIELDS):
            blocks[f, i] = blocks[f, i - 1]
    meta[COUNT] += 1


@shared
def allocate(blocks: Array, meta: Array, size: int, capacity: int) -> int:
    """Take a block of at least ``size`` and return its index; -1 when the device has no room for it."""
    chosen = find_block(blocks, meta, size)
    if chosen < 0:
        segment = segment_size(size)
        if meta[SEGMENT_UNITS] + segment > capacity:
            release_segments(blocks, meta)
        if meta[SEGMENT_UNITS] + segment > capacity:
            return -1
        chosen = meta[COUNT]
        meta[COUNT] += 1
        blocks[ADDRESS, chosen] = meta[NEXT_ADDRESS]
        blocks[SIZE, chosen] = segment
        blocks[SEGMENT, chosen] = meta[NEXT_ADDRESS]
        blocks[SEGMENT_SIZE, chosen] = segment
        meta[NEXT_ADDRESS] += segment + 1
        meta[SEGMENT_UNITS] += segment
    left = blocks[SIZE, chosen] - size
    if left > (0 if size <= SMALL else SMALL):
        insert(blocks, meta, chosen + 1)
        blocks[SIZE, chosen] = size
        blocks[ADDRESS, chosen + 1] = blocks[ADDRESS, chosen] + size
        blocks[SIZE, chosen + 1] = left
        blocks[USED, chosen + 1] = 0
        blocks[SEGMENT, chosen + 1] = blocks[SEGMENT, chosen]
        blocks[SEGMENT_SIZE, chosen + 1] = blocks[SEGMENT_SIZE, chosen]
    blocks[USED, chosen] = 1
    return chosen


@shared
def find_address(blocks: Array, meta: Array, address: int) -> int:
    """Find the block at ``address``."""
    low, high = 0, meta[COUNT]
    while low < high:
        mid = (low + high) // 2
        if blocks[ADDRESS, mid] < address:
            low = mid + 1
        else:
            high = mid
    return low


@shared
def remove(blocks: Array, meta: Array, at: int) -> None:
    """Close the gap that the block at index ``at`` leaves."""
    for i in range(at, meta[COUNT] - 1):
        for f in range(FIELDS):
            blocks[f, i] = blocks[f, i + 1]
    meta[COUNT] -= 1


@shared
def release(blocks: Array, meta: Array, address: int) -> None:
    """Return a block and join it with the free ones beside it in its segment."""
    at = find_address(blocks, meta, address)
    blocks[USED, at] = 0
    after = at + 1
    if after < meta[COUNT] and blocks[USED, after] == 0 and blocks[SEGMENT, after] == blocks[SEGMENT, at]:
        blocks[SIZE, at] += blocks[SIZE, after]
        remove(blocks, meta, after)
    before = at - 1
    if before >= 0 and blocks[USED, before] == 0 and blocks[SEGMENT, before] == blocks[SEGMENT, at]:
        blocks[SIZE, before] += blocks[SIZE, at]
        remove(blocks, meta, at)


@shared
def count_external(blocks: Array, meta: Array, size: int, capacity: int) -> int:
    """Count the free units lost to non-contiguity for requests of ``size``.

    The holes are the free blocks of segments in use, and all that the device has or would get back, as one.
    """
    rest = capacity - meta[SEGMENT_UNITS] + count_releasable(blocks, meta)
    free = rest
    whole = rest // size
    for i in range(meta[COUNT]):
        if blocks[USED, i] == 0 and blocks[SIZE, i] != blocks[SEGMENT_SIZE, i]:
            free += blocks[SIZE, i]
            whole += blocks[SIZE, i] // size
    return int(size * (free // size - whole))


def new_blocks(limit: int) -> Array:
    """Return an empty array ``blocks`` for up to ``limit`` blocks."""
    return np.zeros((FIELDS, limit), np.int64)
