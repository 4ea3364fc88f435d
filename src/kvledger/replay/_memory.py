"""What the policies do when a request asks for memory, grows, or leaves (compiled).

Free memory is counted in blocks for block tables and in tokens for extents. Every change of who holds what sets
``I_DIRTY``, so that external fragmentation is recomputed only then.
"""

from __future__ import annotations

from kvledger.pool import buddy, extents, segments, sizes
from kvledger.pool.compiled import called, inlined
from kvledger.pool.forks import forked_blocks
from kvledger.replay._layout import *
from kvledger.replay._segmented import (
    external_in_segments,
    give_back_to_segments,
    has_segments,
    place_in_segments,
    room_in_segments,
)


@inlined
def blocks_of(tokens, block):
    """Return how many blocks hold ``tokens``."""
    return (tokens + block - 1) // block


@inlined
def extent_size(ints, tokens):
    """Return the size of an extent made for ``tokens``: buffer, granularity and the buddy's power of two."""
    size = sizes.align_up(tokens + ints[I_BUFFER], ints[I_GRAIN])
    if ints[I_PLACEMENT] == SEGMENTS:
        return (size * ints[I_TOKEN_BYTES] + segments.UNIT_BYTES - 1) // segments.UNIT_BYTES
    if ints[I_PLACEMENT] == extents.BUDDY:
        size = sizes.power_of_two(size)
    return size


@inlined
def device_size(ints, size):
    """Return what an extent of ``size`` takes when the pool is empty: its whole segment."""
    return segments.segment_size(size) if ints[I_PLACEMENT] == SEGMENTS else size


@inlined
def fitting_tokens(ints, size):
    """Return the tokens that an extent of ``size`` holds beside its buffer."""
    if ints[I_PLACEMENT] == SEGMENTS:
        return size * segments.UNIT_BYTES // ints[I_TOKEN_BYTES] - ints[I_BUFFER]
    return size - ints[I_BUFFER]


@inlined
def grown_size(ints, tokens):
    """Return the size of a growing extent that must hold ``tokens``."""
    return extent_size(ints, sizes.grown_tokens(ints[I_GROWTH], tokens, ints[I_STEP]))


@inlined
def asked_units(ints, prompt, output, limit, tokens):
    """Return the units that a waiting request asks for: blocks, or the size of one extent."""
    memory = ints[I_MEMORY]
    if memory == DEMAND:
        return blocks_of(tokens, ints[I_BLOCK])
    if memory == UPFRONT or memory == PROMISE:
        return blocks_of(prompt + limit, ints[I_BLOCK])
    if memory == EXTENT:
        return extent_size(ints, sizes.reserved_tokens(ints[I_RESERVATION], prompt, output, limit, ints[I_MAX_LEN]))
    return grown_size(ints, tokens)


@inlined
def never_fits(ints, prompt, output, limit, samples):
    """Tell whether a request of so many samples could not run even alone.

    A growing extent needs its last size and the one before it at the same time, while it is copied.
    """
    memory = ints[I_MEMORY]
    stored = prompt + output - 1
    if memory == FORKS:
        return forked_blocks(prompt, output - 1, samples, ints[I_BLOCK]) > ints[I_CAPACITY]
    if memory == GROUPS:
        return stored > ints[I_MOST_TOKENS]
    if memory == BATCH:
        return prompt + output > ints[I_CAPACITY]
    if memory != GROWING:
        return asked_units(ints, prompt, output, limit, stored) > ints[I_CAPACITY]
    last = grown_size(ints, stored)
    most = device_size(ints, last)
    if grown_size(ints, min(prompt, ints[I_BUDGET])) < last:
        before = sizes.previous_grown_tokens(ints[I_GROWTH], stored, ints[I_STEP])
        most += device_size(ints, extent_size(ints, max(before, 0)))
    return most > ints[I_CAPACITY]


@inlined
def has_room(st, size):
    """Tell whether one extent of ``size`` can be placed now."""
    if has_segments(st):
        return room_in_segments(st, size)
    if st.ints[I_PLACEMENT] == extents.BUDDY:
        return buddy.can_allocate(st.space[COUNTS], buddy.order_of(size))
    return extents.find_hole(st.space[HOLES], st.space[SIZES], st.space[META], size, st.ints[I_PLACEMENT]) >= 0


@inlined
def place(st, size):
    """Place one extent and return its address, its size in ``I_PLACED``; -1 when there is no room."""
    ints = st.ints
    ints[I_PLACED] = size
    if has_segments(st):
        address = place_in_segments(st, size)
        size = ints[I_PLACED]
    elif ints[I_PLACEMENT] == extents.BUDDY:
        address = buddy.allocate(st.space[BUDDIES:], st.space[COUNTS], buddy.order_of(size))
    else:
        hole = extents.find_hole(st.space[HOLES], st.space[SIZES], st.space[META], size, ints[I_PLACEMENT])
        address = -1 if hole < 0 else extents.take(st.space[HOLES], st.space[SIZES], st.space[META], hole, size)
    if address >= 0:
        ints[I_FREE] -= size
        ints[I_HELD] += size
        ints[I_DIRTY] = 1
    return address


@inlined
def give_back(st, address, size):
    """Return one extent."""
    ints = st.ints
    if has_segments(st):
        give_back_to_segments(st, address)
    elif ints[I_PLACEMENT] == extents.BUDDY:
        buddy.release(st.space[BUDDIES:], st.space[COUNTS], address, buddy.order_of(size))
    else:
        extents.release(st.space[HOLES], st.space[SIZES], st.space[META], address, size)
    ints[I_FREE] += size
    ints[I_HELD] -= size
    ints[I_DIRTY] = 1
    ints[I_BLOCKED] = 0


@inlined
def admit(st, slot, n, asked):
    """Give a waiting request the memory of its first ``n`` tokens; False when it must go on waiting."""
    ints = st.ints
    row = st.slots[slot]
    memory = ints[I_MEMORY]
    spare = ints[I_WATERMARK] if ints[I_SCHEDULED] > 0 else 0
    prompt, limit = row[S_PROMPT], row[S_LIMIT]
    row[S_KEPT] = 0
    row[S_NEVER] = 0
    if memory == DEMAND:
        first = blocks_of(n, ints[I_BLOCK])
        if (asked if ints[I_WHOLE] else first) + spare > ints[I_FREE]:
            return False
        row[S_UNITS] = first
        ints[I_FREE] -= first
    elif memory == UPFRONT:
        if asked + spare > ints[I_FREE]:
            return False
        row[S_UNITS] = asked
        ints[I_FREE] -= asked
        row[S_KEPT] = prompt + limit
    elif memory == PROMISE:
        if asked + spare > ints[I_CAPACITY] - ints[I_PROMISED]:
            return False
        ints[I_PROMISED] += asked
        row[S_UNITS] = blocks_of(n, ints[I_BLOCK])
        ints[I_FREE] -= row[S_UNITS]
        row[S_KEPT] = prompt + limit
    else:
        size = asked
        if memory == GROWING:
            if ints[I_WHOLE] and not has_room(st, asked):
                return False
            size = grown_size(ints, n)
        address = place(st, size)
        if address < 0:
            return False
        row[S_ADDRESS] = address
        row[S_UNITS] = ints[I_PLACED]
        row[S_FITS] = fitting_tokens(ints, ints[I_PLACED])
        if memory == EXTENT:
            row[S_KEPT] = sizes.reserved_tokens(ints[I_RESERVATION], prompt, row[S_OUTPUT], limit, ints[I_MAX_LEN])
    if row[S_KEPT] > 0:
        row[S_NEVER] = max(0, row[S_KEPT] - (prompt + row[S_OUTPUT] - 1))
    ints[I_KEPT] += row[S_KEPT]
    ints[I_NEVER] += row[S_NEVER]
    return True


@called
def extend(st, slot, n):
    """Make room for ``n`` more tokens of a running request; False when there is none."""
    ints = st.ints
    row = st.slots[slot]
    memory = ints[I_MEMORY]
    if memory == DEMAND or memory == PROMISE:
        more = blocks_of(row[S_COMPUTED] + n, ints[I_BLOCK]) - row[S_UNITS]
        if more > ints[I_FREE]:
            return False
        row[S_UNITS] += more
        ints[I_FREE] -= more
    elif memory == GROWING:
        if row[S_COMPUTED] + n > row[S_FITS]:
            size = grown_size(ints, row[S_COMPUTED] + n)
            address = place(st, size)
            if address < 0:
                return False
            give_back(st, row[S_ADDRESS], row[S_UNITS])
            ints[I_COPIED] += row[S_COMPUTED]
            row[S_ADDRESS] = address
            row[S_UNITS] = ints[I_PLACED]
            row[S_FITS] = fitting_tokens(ints, ints[I_PLACED])
    return True


@inlined
def free(st, slot):
    """Take back everything a request holds."""
    ints = st.ints
    row = st.slots[slot]
    memory = ints[I_MEMORY]
    if memory == EXTENT or memory == GROWING:
        give_back(st, row[S_ADDRESS], row[S_UNITS])
    else:
        ints[I_FREE] += row[S_UNITS]
        if memory == PROMISE:
            ints[I_PROMISED] -= blocks_of(row[S_PROMPT] + row[S_LIMIT], ints[I_BLOCK])
    ints[I_USED] -= row[S_COMPUTED]
    ints[I_KEPT] -= row[S_KEPT]
    ints[I_NEVER] -= row[S_NEVER]
    row[S_COMPUTED] = 0
    row[S_UNITS] = 0
    row[S_KEPT] = 0
    row[S_NEVER] = 0
    ints[I_BLOCKED] = 0


@inlined
def update_external(st):
    """Recompute external fragmentation for the size last asked, when anything it depends on has changed."""
    ints = st.ints
    if ints[I_DIRTY] == 0:
        return
    ints[I_DIRTY] = 0
    ints[I_EXTERNAL] = 0
    if ints[I_ASKED] > 0 and ints[I_MEMORY] >= EXTENT:
        if has_segments(st):
            ints[I_EXTERNAL] = external_in_segments(st)
        elif ints[I_PLACEMENT] == extents.BUDDY:
            ints[I_EXTERNAL] = buddy.count_external(st.space[COUNTS], buddy.order_of(ints[I_ASKED]))
        else:
            ints[I_EXTERNAL] = extents.count_external(st.space[SIZES], st.space[META], ints[I_ASKED])


@inlined
def held_tokens(ints):
    """Return the tokens that running requests keep from others."""
    memory = ints[I_MEMORY]
    if memory == PROMISE:
        return ints[I_PROMISED] * ints[I_BLOCK]
    if memory <= PROMISE:
        return (ints[I_CAPACITY] - ints[I_FREE]) * ints[I_BLOCK]
    return ints[I_HELD]


@inlined
def free_units(ints):
    """Return the units nobody holds or was promised."""
    if ints[I_MEMORY] == PROMISE:
        return ints[I_CAPACITY] - ints[I_PROMISED]
    return ints[I_FREE]


@inlined
def kept_tokens(ints):
    """Return the tokens the policy would hold at a grain of one token and without a buffer."""
    memory = ints[I_MEMORY]
    if memory <= DEMAND or memory == GROWING:
        return ints[I_USED]
    return ints[I_KEPT]
