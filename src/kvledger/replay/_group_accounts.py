"""What the blocks of several groups of layers hold at a step, in bytes (compiled).

A token's slot is ``used`` while its group still needs it in this step: the window of the step's first token reaches
back ``window - 1`` tokens, a chunk to its start. Slots before that in a block that is still held are stale::

    window 6, blocks of 4, 13 tokens computed before this step, 1 in it:

    | . . . . | . . . . | x x x x | x x . . |      2 blocks were given back
                          8 . . .   12 13          first needed: 13 - 6 + 1 = 8, so nothing is stale

What a block has beyond its used slots (its tail, stale slots, padding of pages and groups) is ``internal``. A block
that several requests use counts once, with every slot that one of them needs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvledger.pool import prefix
from kvledger.pool.compiled import compiled, inlined
from kvledger.pool.group_tables import BLOCK, KIND, NONE, STATE, skipped_tokens
from kvledger.pool.groups import BlockGroups
from kvledger.replay._layout import *

# Numbers of `Amounts.sums`, in bytes; the tokens of a block count as many bytes as one token of their group.
M_LOGICAL, M_STALE, M_READ, M_TOUCHED = range(4)


class Amounts(NamedTuple):
    """What a step adds up, and what it needs to tell blocks of several users apart."""

    slot_bytes: Array  # (groups,) int64: bytes of one slot, a token or a state
    block_slots: Array  # (groups,) int64: slots of one block
    sums: Array  # (4,) int64
    users: Array  # (blocks,) int32: users in whose view a shared block begins with stale slots
    least: Array  # (blocks,) int32: the fewest of those slots
    touched: Array  # (blocks,) int32: the blocks met in this step
    touched_group: Array  # (blocks,) int32


@inlined
def stale_slots(t, g, index, skipped):
    """Return how many slots of an entry lie before the first token its group still needs."""
    block = t.groups[g, BLOCK]
    if t.groups[g, KIND] == STATE:
        return 1 if (index + 1) * block <= skipped else 0
    return min(block, skipped - index * block)


@inlined
def meet_stale(t, m, slot, g, skipped):
    """Add up the stale slots of one request in one group; blocks of several users are set aside."""
    seen = 0
    index = t.firsts[slot, g]
    while index < t.lengths[slot, g] and index * t.groups[g, BLOCK] < skipped:
        block = t.blocks[slot, g, index]
        stale = 0 if block == NONE else stale_slots(t, g, index, skipped)
        if stale > 0:
            seen += stale
            if t.pool.references[block] == 1:
                m.sums[M_STALE] += stale * m.slot_bytes[g]
            else:
                if m.users[block] == 0:
                    m.touched[m.sums[M_TOUCHED]] = block
                    m.touched_group[m.sums[M_TOUCHED]] = g
                    m.sums[M_TOUCHED] += 1
                    m.least[block] = stale
                m.users[block] += 1
                m.least[block] = min(m.least[block], stale)
        index += 1
    return seen


@inlined
def count_filled(t, slot, g, computed):
    """Return the slots that the blocks of one request in one group have filled, and those that are empty."""
    first, entries = t.firsts[slot, g], t.lengths[slot, g]
    if t.groups[g, KIND] == STATE:
        states = 0
        for index in range(first, entries):
            states += t.blocks[slot, g, index] != NONE
        return states, 0
    nothing = 0
    while first + nothing < entries and t.blocks[slot, g, first + nothing] == NONE:
        nothing += 1
    begin = (first + nothing) * t.groups[g, BLOCK]
    return max(0, computed - begin), max(0, entries * t.groups[g, BLOCK] - max(computed, begin))


@inlined
def take_amounts(st, t, m):
    """Set ``I_USED`` to the bytes in use at this step; return what it reads, in tokens of all groups."""
    ints = st.ints
    for i in range(m.sums.shape[0]):
        m.sums[i] = 0
    used = 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        before = row[S_COMPUTED] - row[S_NOW]
        needed = 0
        for g in range(t.groups.shape[0]):
            filled, empty = count_filled(t, slot, g, row[S_COMPUTED])
            stale = meet_stale(t, m, slot, g, skipped_tokens(t, g, before))
            needed += (filled - stale) * m.slot_bytes[g]
            used -= empty * m.slot_bytes[g]
        m.sums[M_LOGICAL] += needed
        if row[S_NOW] > 0:
            m.sums[M_READ] += needed
    for i in range(m.sums[M_TOUCHED]):
        block = m.touched[i]
        if m.users[block] == t.pool.references[block]:
            m.sums[M_STALE] += m.least[block] * m.slot_bytes[m.touched_group[i]]
        m.users[block] = 0
    for g in range(t.groups.shape[0]):
        used += t.held[g] * m.block_slots[g] * m.slot_bytes[g]
    ints[I_USED] = used - m.sums[M_STALE]
    whole = 0
    for g in range(t.groups.shape[0]):
        if t.groups[g, KIND] != STATE:
            whole += m.slot_bytes[g]
    return m.sums[M_READ] / whole if whole > 0 else 0.0


@compiled
def fill_blocks(st, t, m, used):
    """Set ``used`` to the bytes of each block that a running request still needs for its next step.

    Of a shared block, every slot counts that one of its users needs; a block that nobody reads has none.
    """
    for block in range(used.shape[0]):
        used[block] = 0
    for i in range(st.ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        computed = st.slots[slot, S_COMPUTED]
        for g in range(t.groups.shape[0]):
            size, skipped = t.groups[g, BLOCK], skipped_tokens(t, g, computed)
            for index in range(t.firsts[slot, g], t.lengths[slot, g]):
                block = t.blocks[slot, g, index]
                if block == NONE:
                    continue
                filled = 1 if t.groups[g, KIND] == STATE else min(size, max(0, computed - index * size))
                needed = filled - max(0, stale_slots(t, g, index, skipped))
                used[block] = max(used[block], needed * m.slot_bytes[g])


@inlined
def account_groups(st, log, t, m, seconds):
    """Add what only block tables of several groups have: cached, saved and stale bytes."""
    ints = st.ints
    cached = t.pool.counts[prefix.CACHED] * ints[I_BLOCK] * seconds
    saved = (m.sums[M_LOGICAL] - ints[I_USED]) * seconds
    stale = m.sums[M_STALE] * seconds
    bucket = log.timeline[ints[I_BUCKET]]
    log.busy[A_CACHED] += cached
    log.busy[A_SAVED] += saved
    log.busy[A_STALE] += stale
    bucket[A_CACHED] += cached
    bucket[A_SAVED] += saved
    bucket[A_STALE] += stale
    if ints[I_WAITING] > 0:
        log.saturated[A_CACHED] += cached
        log.saturated[A_SAVED] += saved
        log.saturated[A_STALE] += stale


def new_amounts(groups: BlockGroups, *, blocks: int) -> Amounts:
    """Return the amounts of a pool of ``blocks``, all zero."""
    states = [group.token_bytes == 0 for group in groups.groups]
    slots = [1 if state else group.block_tokens for state, group in zip(states, groups.groups, strict=True)]
    sizes = [group.payload_bytes // count for group, count in zip(groups.groups, slots, strict=True)]
    return Amounts(
        slot_bytes=np.array(sizes, np.int64),
        block_slots=np.array(slots, np.int64),
        sums=np.zeros(4, np.int64),
        users=np.zeros(blocks, np.int32),
        least=np.zeros(blocks, np.int32),
        touched=np.zeros(blocks, np.int32),
        touched_group=np.zeros(blocks, np.int32),
    )
