"""What a prefix cache over several groups of layers finds, and whether a request gets in (compiled).

vLLM 0.32, ``v1/core/kv_cache_coordinator.py`` and ``allocate_slots``. Every group accepts the candidate length or
shortens it, until all agree::

    full       | x | x | x | x | x |   5 blocks, the longest run from the start
    window     | . | . | x | x | . |   a run long enough for the window, the rightmost
    agreed     | x   x   x   x |       and full attention is cut to it
"""

from __future__ import annotations

from kvledger.pool import prefix
from kvledger.pool.compiled import called, inlined
from kvledger.pool.content import group_key
from kvledger.pool.group_tables import (
    ALIGN,
    BLOCK,
    CACHING,
    CAP,
    CHUNK,
    FULL,
    JUNCTION,
    KIND,
    NEED,
    NONE,
    SETS,
    SPAN,
    WINDOW,
    identify,
    is_fresh,
    is_sparse,
    lengthen,
    skipped_tokens,
    up,
)


@inlined
def find_entry(t, slot, request, s, index):
    """Look one block up in all groups of a set, and note it in their tables; False when one lacks it."""
    for i in range(t.sets[s], t.sets[s + 1]):
        g = t.members[i]
        key = group_key(t.content, request, (index + 1) * t.groups[g, BLOCK], g)
        block = prefix.find_block(t.pool, key)
        if block == NONE:
            return False
        t.blocks[slot, g, index] = block
    return True


@inlined
def clear(t, slot, g, entries):
    """Note that the first entries of a table hold no block."""
    for index in range(entries):
        t.blocks[slot, g, index] = NONE


@inlined
def note_found(t, slot, s, nothing, entries):
    """Note that the first ``nothing`` of the ``entries`` found hold no block."""
    for i in range(t.sets[s], t.sets[s + 1]):
        g = t.members[i]
        clear(t, slot, g, nothing)
        t.found[g] = entries


@called
def find_run(t, slot, request, s, most):
    """Full attention: the longest run of blocks from the start."""
    block = t.groups[t.members[t.sets[s]], BLOCK]
    entries = 0
    while entries < most // block and find_entry(t, slot, request, s, entries):
        entries += 1
    return entries * block // t.numbers[ALIGN] * t.numbers[ALIGN]


@called
def find_window(t, slot, request, s, most):
    """Sliding window: the rightmost run of blocks that covers a window, else the run at the start."""
    g = t.members[t.sets[s]]
    block, need, align = t.groups[g, BLOCK], t.groups[g, NEED], t.numbers[ALIGN]
    run = 0
    for index in range(most // block - 1, -1, -1):
        if not find_entry(t, slot, request, s, index):
            run = 0
        elif run > 0 or (index + 1) * block % align == 0:
            run += 1
            if run >= need:
                note_found(t, slot, s, index, index + run)
                return (index + run) * block
    length = run * block // align * align
    note_found(t, slot, s, 0, length // block)
    return length


@called
def find_chunk(t, slot, request, s, most):
    """Chunk: nothing is needed of the chunks before, and then the longest run."""
    g = t.members[t.sets[s]]
    block = t.groups[g, BLOCK]
    before = most // t.groups[g, SPAN] * t.groups[g, SPAN] // block
    entries = before
    while entries < most // block and find_entry(t, slot, request, s, entries):
        entries += 1
    note_found(t, slot, s, before, entries)
    return entries * block


@called
def find_state(t, slot, request, s, most):
    """State: the last one that is there."""
    g = t.members[t.sets[s]]
    block = t.groups[g, BLOCK]
    for index in range(most // block - 1, -1, -1):
        if (index + 1) * block % t.numbers[ALIGN] == 0 and find_entry(t, slot, request, s, index):
            note_found(t, slot, s, index, index + 1)
            return (index + 1) * block
    note_found(t, slot, s, 0, 0)
    return 0


@inlined
def find_in_set(t, slot, request, s, most):
    """Return the longest prefix up to ``most`` tokens that the groups of a set have."""
    kind = t.groups[t.members[t.sets[s]], KIND]
    if kind == FULL:
        return find_run(t, slot, request, s, most)
    if kind == WINDOW:
        return find_window(t, slot, request, s, most)
    if kind == CHUNK:
        return find_chunk(t, slot, request, s, most)
    return find_state(t, slot, request, s, most)


@inlined
def find_prefix(t, slot, request, tokens):
    """Find the longest cached prefix of a waiting request of ``tokens`` that all groups agree on.

    Where some group reaches further is noted as the junction: the others will keep what lets a later request resume
    there.
    """
    for g in range(t.groups.shape[0]):
        t.found[g] = 0
    t.ends[slot, JUNCTION] = 0
    if t.numbers[CACHING] == 0:
        return 0
    sets = t.numbers[SETS]
    bounded = t.groups[t.members[0], KIND] == FULL
    once = sets == 1 or (sets == 2 and bounded)
    length, longest, whole = tokens - 1, 0, tokens - 1
    first = True
    while True:
        current = length
        for s in range(sets):
            if t.groups[t.members[t.sets[s]], KIND] == FULL and not first:
                current = min(current, whole)
                continue
            current = find_in_set(t, slot, request, s, current)
            longest = max(longest, current)
            if t.groups[t.members[t.sets[s]], KIND] == FULL:
                whole = current
        first = False
        if current >= length:
            break
        length = current
        if once:
            break
    for g in range(t.groups.shape[0]):
        if t.groups[g, KIND] == FULL:
            t.found[g] = up(length, t.groups[g, BLOCK])
    if longest > length and t.groups.shape[0] > 1:
        t.ends[slot, JUNCTION] = longest
    return length


@inlined
def count_idle(t, slot, g, start):
    """Count the blocks found from an entry on that nobody refers to: they leave the free queue when used."""
    idle = 0
    for index in range(start, t.found[g]):
        block = t.blocks[slot, g, index]
        idle += block != NONE and t.pool.references[block] == 0
    return idle


@called
def count_asked(t, slot, hit, total, capped):
    """Count the blocks that a waiting request takes from the queue for ``total`` tokens, ``hit`` of them found.

    ``capped`` counts of a window or chunk only what it can hold at once.
    """
    asked = 0
    for g in range(t.groups.shape[0]):
        needed = up(total, t.groups[g, BLOCK])
        if is_sparse(t, g):
            asked += max(0, min(needed - t.found[g], 1)) + count_idle(t, slot, g, 0)
            continue
        if capped:
            needed = min(needed, t.groups[g, CAP])
        skipped = skipped_tokens(t, g, hit) // t.groups[g, BLOCK]
        asked += max(0, needed - max(skipped, t.found[g])) + count_idle(t, slot, g, skipped)
    return asked


@called
def hits_fresh_state(t, request):
    """Tell whether the prefix found ends in a state that is only being written in this step."""
    for g in range(t.groups.shape[0]):
        if is_sparse(t, g) and t.found[g] > 0:
            if is_fresh(t, group_key(t.content, request, t.found[g] * t.groups[g, BLOCK], g)):
                return True
    return False


@inlined
def adopt(t, slot, hit):
    """Let a request use the prefix found, as far as its tokens are still needed."""
    for g in range(t.groups.shape[0]):
        skipped = skipped_tokens(t, g, hit) // t.groups[g, BLOCK]
        clear(t, slot, g, skipped)
        for index in range(skipped, t.found[g]):
            block = t.blocks[slot, g, index]
            if block != NONE and prefix.refer(t.pool, block):
                t.held[g] += 1
        t.lengths[slot, g] = max(skipped, t.found[g])
        t.firsts[slot, g] = skipped
        t.known[slot, g] = t.lengths[slot, g]


@called
def enter(t, slot, request, hit, n):
    """Give an admitted request the prefix found and the blocks of its first ``n`` tokens after it."""
    adopt(t, slot, hit)
    lengthen(t, slot, hit + n)
    identify(t, slot, request, hit + n)
