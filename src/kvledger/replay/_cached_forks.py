"""Forks beside a prefix cache: which blocks have an identity, and how a group finds its own again (compiled).

A full block of the prompt has the identity it has for every request. What a sample generates is its own, but for the
first, whose answer a trace may tell. Candidates of a search change what they continue, so that what they generate is
not looked for. After its prompt a group finds blocks again by rounds: one of each sample, or none.
"""

from __future__ import annotations

import numba

from kvledger.pool import prefix
from kvledger.pool.compiled import called, inlined
from kvledger.pool.content import chain_key
from kvledger.pool.forks import BEAM, FILLED, FORKED, HOSTED, WIDTH, own_tokens
from kvledger.replay._layout import *
from kvledger.replay._shared import H_AGAIN, H_HITS, H_QUERIES


@inlined
def key_of(fk, request, j, end, prompt):
    """Return the identity of the block of sequence ``j`` that ends with its token ``end``."""
    if end <= prompt or j == 0:
        return chain_key(fk.content, request, end)
    own = (numba.uint64(request) << numba.uint64(28)) | numba.uint64(end) | (numba.uint64(1) << numba.uint64(63))
    return prefix.mix(prefix.mix(own) + numba.uint64(j))


@called
def find_hits(st, fk, slot):
    """Note the leading blocks of a waiting group that are in the pool; return their number, and how many are idle."""
    t, row = fk.tables, st.slots[slot]
    block, prompt = st.ints[I_BLOCK], row[S_PROMPT]
    most = (prompt + row[S_GENERATED] - 1) // block
    hits, idle = 0, 0
    while hits < most:
        end = (hits + 1) * block
        if end > prompt and t.groups[slot, BEAM] == 1:
            break
        lanes = t.groups[slot, WIDTH] if end > prompt else 1
        found, unused = 0, 0
        while found < lanes:
            there = prefix.find_block(t.pool, key_of(fk, row[S_REQUEST], found, end, prompt))
            if there == prefix.NOBODY:
                break
            t.rows[slot, found, hits] = there
            unused += t.pool.references[there] == 0
            found += 1
        if found < lanes:
            break
        hits += 1
        idle += unused
    return hits, idle


@inlined
def use(t, block):
    """Let a sequence refer to a block that was found."""
    if prefix.refer(t.pool, block):
        t.counts[FILLED] += t.filled[block]


@called
def refer_hits(st, fk, slot, hits):
    """Let a group refer to the blocks that were noted, and count what they save; after its prompt it is forked."""
    t, row = fk.tables, st.slots[slot]
    block, prompt, width = st.ints[I_BLOCK], row[S_PROMPT], t.groups[slot, WIDTH]
    forked = hits * block > prompt
    for index in range(hits):
        use(t, t.rows[slot, 0, index])
        for j in range(1, width if forked else 1):
            if (index + 1) * block <= prompt:
                t.rows[slot, j, index] = t.rows[slot, 0, index]
            use(t, t.rows[slot, j, index])
    t.groups[slot, FORKED] = 1 if forked else 0
    tokens = hits * block
    row[S_COMPUTED] = tokens if not forked else prompt + width * (tokens - prompt)
    if st.ints[I_STACKED] > 0:
        fk.hits[H_AGAIN] += row[S_COMPUTED]
    else:
        fk.hits[H_HITS] += row[S_COMPUTED]
        fk.hits[H_QUERIES] += prompt


@called
def identify(st, fk, slot, computed, n):
    """Give identities to the blocks that ``n`` more tokens of a group's line fill."""
    t, row = fk.tables, st.slots[slot]
    block, prompt, width = st.ints[I_BLOCK], row[S_PROMPT], t.groups[slot, WIDTH]
    end = computed + n
    for index in range(computed // block, min(end, prompt) // block if computed < prompt else 0):
        key = key_of(fk, row[S_REQUEST], 0, (index + 1) * block, prompt)
        prefix.insert(t.pool, t.rows[slot, 0, index], key)
    if end <= prompt or t.groups[slot, BEAM] == 1:
        return
    for j in range(width):
        before = prompt + own_tokens(prompt, computed, width, j)
        after = prompt + own_tokens(prompt, end, width, j)
        for index in range(before // block, after // block):
            key = key_of(fk, row[S_REQUEST], j, (index + 1) * block, prompt)
            prefix.insert(t.pool, t.rows[slot, j, index], key)


@inlined
def bring_back(t, old, key):
    """Return the block of the device for one of the host, and whether it had to be moved (``key``: 0, or its own)."""
    if key != 0:
        there = prefix.find_block(t.pool, key)
        if there != prefix.NOBODY:
            use(t, there)
            return there, 0
    new = prefix.allocate(t.pool)
    t.filled[new] = t.host_filled[old]
    t.counts[FILLED] += t.filled[new]
    if key != 0:
        prefix.insert(t.pool, new, key)
    return new, 1


@called
def swap_in(st, fk, slot):
    """Bring the blocks of a group back, which must have room; return how many the device no longer had."""
    t, row = fk.tables, st.slots[slot]
    block, prompt, width = st.ints[I_BLOCK], row[S_PROMPT], t.groups[slot, WIDTH]
    moved = 0
    lanes = width if t.groups[slot, FORKED] == 1 else 1
    for j in range(lanes):
        tokens = row[S_COMPUTED]
        if t.groups[slot, FORKED] == 1:
            tokens = prompt + own_tokens(prompt, row[S_COMPUTED], width, j)
        for index in range((tokens + block - 1) // block):
            old, end = t.rows[slot, j, index], (index + 1) * block
            if t.marks[old] == 0:
                key = numba.uint64(0)
                if end <= tokens and (end <= prompt or t.groups[slot, BEAM] == 0):
                    key = key_of(fk, row[S_REQUEST], j, end, prompt)
                new, far = bring_back(t, old, key)
                t.marks[old] = 1 + new
                moved += far
            else:
                t.pool.references[t.marks[old] - 1] += 1
            t.rows[slot, j, index] = t.marks[old] - 1
            if prefix.release(t.host, old):
                t.marks[old] = 0
    t.groups[slot, HOSTED] = 0
    return moved
