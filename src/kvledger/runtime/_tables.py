"""What a running engine does with the block tables of `pool`, besides what a replay does: fork and swap (compiled).

Sequences that were forked share every block. Before one of them writes into a block that another still refers to, it
takes a block of its own and the content is copied::

    a      | 4 | 9 |            a      | 4 | 9 |
    fork b | 4 | 9 |   writes   b      | 4 | 2 |   and 9 is copied into 2; a now writes into 9 in place

The content of a block is known by a chain id a block; a sequence in ``slot`` owns the ids from ``offsets[slot]`` on.
"""

from __future__ import annotations

from typing import Any

from kvledger.pool import prefix
from kvledger.pool.compiled import compiled, inlined
from kvledger.pool.group_hits import count_asked, enter, find_prefix
from kvledger.pool.group_tables import (
    BLOCK,
    CAP,
    NONE,
    PROMPT,
    count_missing,
    give_up,
    identify,
    lengthen,
    skipped_tokens,
    take_block,
    trim,
    up,
)

Array = Any  # a numpy array; numba knows its type

# Numbers of `amounts`, in bytes.
USED, HELD, LOGICAL, STALE = range(4)


@inlined
def is_written_by_others(t, slot, g, computed):
    """Tell whether the next token goes into a block that another sequence refers to as well."""
    block = t.groups[g, BLOCK]
    if computed % block == 0:
        return False
    entry = t.blocks[slot, g, computed // block]
    return entry != NONE and t.pool.references[entry] > 1


@inlined
def unshare(t, slot, computed, copies, count):
    """Take blocks of its own for what the next token would write into; return how many copies are noted by now."""
    for g in range(t.groups.shape[0]):
        if is_written_by_others(t, slot, g, computed):
            index = computed // t.groups[g, BLOCK]
            old = t.blocks[slot, g, index]
            take_block(t, slot, g, index)
            prefix.release(t.pool, old)
            copies[count, 0] = old
            copies[count, 1] = t.blocks[slot, g, index]
            count += 1
    return count


@compiled
def extend_all(t: Any, slots: Array, computed: Array, counts: Array, start: int, copies: Array, copied: int) -> Any:
    """Make room for ``counts`` more tokens of each sequence from ``start`` on, in order.

    Return the number of sequences that have their room (all of them unless blocks run out), and of copies to make.
    """
    for i in range(start, slots.shape[0]):
        slot, done, n = slots[i], computed[i], counts[i]
        trim(t, slot, done)
        missing = count_missing(t, slot, done + n)
        for g in range(t.groups.shape[0]):
            missing += is_written_by_others(t, slot, g, done)
        if missing > t.pool.counts[prefix.FREE]:
            return i, copied
        copied = unshare(t, slot, done, copies, copied)
        lengthen(t, slot, done + n)
        identify(t, slot, slot, done + n)
    return slots.shape[0], copied


@compiled
def admit(t: Any, slot: int, tokens: int, prompt: int, budget: int, spare: int, whole: int) -> Any:
    """Give a waiting sequence its cached prefix and the blocks of its first chunk.

    Return the tokens found and those to compute, and the blocks that the whole of it asks for. No tokens to compute
    means that it was refused.
    """
    t.ends[slot, PROMPT] = prompt
    hit = find_prefix(t, slot, slot, tokens)
    n = min(tokens - hit, budget)
    free = t.pool.counts[prefix.FREE]
    asked = count_asked(t, slot, hit, tokens, True)
    if count_asked(t, slot, hit, hit + n, False) + spare > free or (whole == 1 and asked + spare > free):
        return hit, 0, asked
    enter(t, slot, slot, hit, n)
    return hit, n, asked


@compiled
def readmit(t: Any, slot: int, firsts: Array, ends: Array, spare: int, whole: int, counts: Array) -> int:
    """Give a sequence that was swapped out blocks again; 0 when it is refused.

    ``firsts`` and ``ends``: (groups,) int64, the entries whose content comes back. ``counts``: computed tokens, tokens
    to compute now, and all known tokens.
    """
    computed, n, tokens = counts[0], counts[1], counts[2]
    first, most = 0, 0
    for g in range(t.groups.shape[0]):
        now = max(ends[g], up(computed + n, t.groups[g, BLOCK])) - firsts[g]
        first += now
        most += max(now, min(up(tokens, t.groups[g, BLOCK]) - firsts[g], t.groups[g, CAP]))
    if (most if whole == 1 else first) + spare > t.pool.counts[prefix.FREE]:
        return 0
    for g in range(t.groups.shape[0]):
        for index in range(firsts[g]):
            t.blocks[slot, g, index] = NONE
        t.firsts[slot, g] = firsts[g]
        t.lengths[slot, g] = firsts[g]
        t.known[slot, g] = firsts[g]
    lengthen(t, slot, computed + n)
    identify(t, slot, slot, computed + n)
    return 1


@compiled
def fork(t: Any, parent: int, child: int) -> None:
    """Let the sequence of a new slot refer to every block of another."""
    for g in range(t.groups.shape[0]):
        for index in range(t.lengths[parent, g]):
            block = t.blocks[parent, g, index] if index >= t.firsts[parent, g] else NONE
            t.blocks[child, g, index] = block
            if block != NONE:
                prefix.refer(t.pool, block)
        t.lengths[child, g] = t.lengths[parent, g]
        t.firsts[child, g] = t.firsts[parent, g]
        t.known[child, g] = t.known[parent, g]
    for column in range(t.ends.shape[1]):
        t.ends[child, column] = t.ends[parent, column]


@compiled
def free_behind(t: Any, slot: int, computed: int) -> None:
    """Give back the blocks of a sequence that no further token needs."""
    trim(t, slot, computed)


@compiled
def free(t: Any, slot: int) -> None:
    """Let go of all blocks of a sequence, the last first."""
    give_up(t, slot)


@compiled
def disown(t: Any, slot: int) -> None:
    """Take the identities of a sequence's blocks away, so that nobody finds them any more."""
    for g in range(t.groups.shape[0]):
        for index in range(t.firsts[slot, g], t.lengths[slot, g]):
            block = t.blocks[slot, g, index]
            if block != NONE and t.pool.keys[block] != 0:
                prefix.forget(t.pool, block)


@compiled
def drop_cached(t: Any) -> int:
    """Forget every cached block that nobody refers to; return how many there were."""
    dropped = 0
    for block in range(t.pool.references.shape[0]):
        if t.pool.references[block] == 0 and t.pool.keys[block] != 0:
            prefix.forget(t.pool, block)
            t.pool.counts[prefix.CACHED] -= 1
            dropped += 1
    return dropped


@compiled
def place_tokens(t: Any, slots: Array, starts: Array, counts: Array, places: Array) -> None:
    """Write where each token of a batch is stored: ``places`` (groups, tokens) int64, block times size plus offset."""
    at = 0
    for i in range(slots.shape[0]):
        for position in range(starts[i], starts[i] + counts[i]):
            for g in range(t.groups.shape[0]):
                block = t.groups[g, BLOCK]
                places[g, at] = t.blocks[slots[i], g, position // block] * block + position % block
            at += 1


@compiled
def take_amounts(
    t: Any, slots: Array, computed: Array, before: Array, token_bytes: Array, marks: Array, amounts: Array
) -> None:
    """Add up what the blocks of the running sequences hold, each block once.

    A slot is in use when it is filled and the next token of some sequence (the one after ``before``) still reaches it.
    ``token_bytes``: (groups,) int64. ``marks``: (3, blocks) int32, scratch: filled and stale slots of the blocks met,
    and their numbers. ``amounts``: (4,) int64, out.
    """
    amounts[:] = 0
    for g in range(t.groups.shape[0]):
        block = t.groups[g, BLOCK]
        met = 0
        for i in range(slots.shape[0]):
            slot = slots[i]
            skipped = skipped_tokens(t, g, before[i])
            for index in range(t.firsts[slot, g], t.lengths[slot, g]):
                entry = t.blocks[slot, g, index]
                if entry == NONE:
                    continue
                filled = max(0, min(block, computed[i] - index * block))
                stale = max(0, min(filled, skipped - index * block))
                amounts[LOGICAL] += (filled - stale) * token_bytes[g]
                if marks[0, entry] == 0:
                    marks[2, met] = entry
                    marks[0, entry] = filled + 1
                    marks[1, entry] = stale
                    met += 1
                else:
                    marks[0, entry] = max(marks[0, entry], filled + 1)
                    marks[1, entry] = min(marks[1, entry], stale)
        for i in range(met):
            entry = marks[2, i]
            filled, stale = marks[0, entry] - 1, marks[1, entry]
            amounts[USED] += (filled - stale) * token_bytes[g]
            amounts[STALE] += stale * token_bytes[g]
            marks[0, entry] = 0
        amounts[HELD] += met
