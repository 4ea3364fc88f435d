"""Block tables that fork: samples of one request share blocks by reference and copy them on write (compiled).

A group of ``width`` sequences shares the blocks of its prompt. The first of them to write into a shared, partly filled
block gets a copy of it; the last one left writes in place (PagedAttention, SOSP'23, section 4.4)::

    prompt of 6 in blocks of 4, two samples, one token each:

    sample 0 | a b c d | e f x . |      the first block is shared, the second was copied when x was written
    sample 1 |         | e f y . |

Tokens of a group are counted in one line: the prompt, then one token of every sequence in turn. Token ``t`` of that
line is token ``prompt + (t - prompt) // width`` of sequence ``(t - prompt) % width``. Before its prompt is computed
a group is one sequence. A group that was swapped out has its table in the host pool, shared in the same way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from kvledger.pool import prefix
from kvledger.pool.compiled import called, inlined

Array = Any  # a numpy array; numba knows its type

# Columns of `ForkTables.groups`: sequences, whether they are candidates of a search, whether the table is forked, and
# the blocks it has in the host pool (0: it is not there).
WIDTH, BEAM, FORKED, HOSTED = range(4)

# Numbers of `ForkTables.counts`: slots filled on the device, and blocks copied on write.
FILLED, COPIES = range(2)

LEADER = np.int64(0)
"""The sequence that computes the prompt; written out, the number would make kernels of its own."""


class ForkTables(NamedTuple):
    """Two pools, and the tables of all groups by slot."""

    pool: prefix.BlockPool
    host: prefix.BlockPool
    rows: Array  # (slots, width, blocks of the longest request) int32
    spare: Array  # (width, blocks of the longest request) int32: the rows while they are mixed anew
    parents: Array  # (width,) int32
    filled: Array  # (blocks,) int32: filled slots of each block
    host_filled: Array  # (host blocks,) int32
    marks: Array  # (blocks of the larger pool,) int32: zeros between calls
    groups: Array  # (slots, 4) int64
    counts: Array  # (2,) int64


@inlined
def up(tokens, block):
    """Return how many blocks hold ``tokens``."""
    return (tokens + block - 1) // block


@inlined
def forked_blocks(prompt, output, width, block):
    """Return the most blocks that ``width`` sequences hold when each has computed ``output`` tokens of its own."""
    if output <= 0 or width == 1:
        return up(prompt + output, block)
    return prompt // block + width * (up(prompt + output, block) - prompt // block)


@inlined
def own_tokens(prompt, computed, width, j):
    """Return the tokens that sequence ``j`` has of its own when ``computed`` of the group's line are there."""
    after = computed - prompt
    if after <= 0:
        return 0
    return after // width + (1 if after % width > j else 0)


@inlined
def line_length(prompt, generated, width):
    """Return the tokens of the group's line when each sequence has ``generated`` tokens."""
    return prompt + width * generated


@inlined
def logical_tokens(prompt, computed, width, forked):
    """Return the tokens of all sequences, shared ones counted for each."""
    return width * prompt + computed - prompt if forked else computed


@inlined
def logical_blocks(prompt, computed, width, forked, block):
    """Return the blocks that the sequences would hold without sharing."""
    if not forked:
        return up(computed, block)
    rounds, more = (computed - prompt) // width, (computed - prompt) % width
    return more * up(prompt + rounds + 1, block) + (width - more) * up(prompt + rounds, block)


@called
def count_needed(t, slot, prompt, computed, n, block):
    """Count the blocks that ``n`` more tokens of a group's line take, copies on write included."""
    needed = 0
    end = computed + n
    group = t.groups[slot]
    width = group[WIDTH]
    if computed < prompt:
        needed += up(min(end, prompt), block) - up(computed, block)
    if end <= prompt:
        return needed
    references = t.host.references if group[HOSTED] > 0 else t.pool.references
    touched = 0
    for j in range(width):
        before = prompt + own_tokens(prompt, computed, width, j)
        after = prompt + own_tokens(prompt, end, width, j)
        if after == before:
            continue
        needed += up(after, block) - up(before, block)
        if before % block == 0:
            continue
        if group[FORKED] == 0:  # the prompt's last block, which all of them will share
            touched += 1
            needed += touched < width
            continue
        last = t.rows[slot, j, before // block]
        t.marks[last] += 1
        needed += t.marks[last] < references[last]
    if group[FORKED] == 1:
        for j in range(width):
            before = prompt + own_tokens(prompt, computed, width, j)
            if before % block != 0:
                t.marks[t.rows[slot, j, before // block]] = 0
    return needed


@inlined
def fill(t, slot, j, begin, end, block):
    """Write tokens ``begin`` to ``end`` of a sequence into its blocks, new ones taken from the pool."""
    for index in range(up(begin, block), up(end, block)):
        t.rows[slot, j, index] = prefix.allocate(t.pool)
        t.filled[t.rows[slot, j, index]] = 0
    for index in range(begin // block, up(end, block)):
        t.filled[t.rows[slot, j, index]] = min(block, end - index * block)
    t.counts[FILLED] += end - begin


@inlined
def let_go(t, block):
    """Release one reference to a block of the device."""
    if prefix.release(t.pool, block):
        t.counts[FILLED] -= t.filled[block]


@inlined
def own_last(t, slot, j, tokens, block):
    """Copy the partly filled block that a sequence is about to write into, when others refer to it."""
    last = t.rows[slot, j, tokens // block]
    if t.pool.references[last] == 1:
        return
    copy = prefix.allocate(t.pool)
    t.filled[copy] = tokens % block
    t.counts[FILLED] += tokens % block
    t.counts[COPIES] += 1
    t.pool.references[last] -= 1
    t.rows[slot, j, tokens // block] = copy


@inlined
def fork(t, slot, prompt, block):
    """Let all sequences of a group refer to the blocks of its prompt."""
    width = t.groups[slot, WIDTH]
    t.groups[slot, FORKED] = 1
    for index in range(up(prompt, block)):
        shared = t.rows[slot, 0, index]
        t.pool.references[shared] += width - 1
        for j in range(1, width):
            t.rows[slot, j, index] = shared


@called
def extend(t, slot, prompt, computed, n, block):
    """Write ``n`` more tokens of a group's line; False, and nothing is changed, when there are too few blocks."""
    if count_needed(t, slot, prompt, computed, n, block) > t.pool.counts[prefix.FREE]:
        return False
    end = computed + n
    width = t.groups[slot, WIDTH]
    if computed < prompt:
        fill(t, slot, LEADER, computed, min(end, prompt), block)
    if end <= prompt:
        return True
    if t.groups[slot, FORKED] == 0:
        fork(t, slot, prompt, block)
    for j in range(width):
        before = prompt + own_tokens(prompt, computed, width, j)
        after = prompt + own_tokens(prompt, end, width, j)
        if after > before:
            if before % block != 0:
                own_last(t, slot, j, before, block)
            fill(t, slot, j, before, after, block)
    return True


@inlined
def blocks_of_row(t, slot, prompt, computed, j, block):
    """Return the blocks of one sequence; 0 for those that do not exist before the fork."""
    group = t.groups[slot]
    if group[FORKED] == 0:
        return up(computed, block) if j == 0 else 0
    return up(prompt + own_tokens(prompt, computed, group[WIDTH], j), block)


@called
def give_up(t, slot, prompt, computed, block):
    """Release all blocks of a group, wherever they are."""
    group = t.groups[slot]
    for j in range(group[WIDTH]):
        for index in range(blocks_of_row(t, slot, prompt, computed, j, block) - 1, -1, -1):
            if group[HOSTED] > 0:
                prefix.release(t.host, t.rows[slot, j, index])
            else:
                let_go(t, t.rows[slot, j, index])
    group[FORKED] = 0
    group[HOSTED] = 0


@called
def reselect(t, slot, prompt, computed, block, key):
    """Draw the parent of every candidate anew from the living ones: some fork, others die (`key`: of the draw)."""
    width = t.groups[slot, WIDTH]
    held = blocks_of_row(t, slot, prompt, computed, LEADER, block)
    for j in range(width):
        t.parents[j] = numba.int64(prefix.mix(key + numba.uint64(j)) % numba.uint64(width))
        for index in range(held):
            t.spare[j, index] = t.rows[slot, j, index]
    for j in range(width):
        for index in range(held):
            new = t.spare[t.parents[j], index]
            if new != t.spare[j, index]:
                t.pool.references[new] += 1
                t.rows[slot, j, index] = new
    for j in range(width):
        for index in range(held):
            if t.rows[slot, j, index] != t.spare[j, index]:
                let_go(t, t.spare[j, index])


@called
def swap_out(t, slot, prompt, computed, block):
    """Move the blocks of a group to the host; False, and nothing is changed, when it has too few free ones."""
    group = t.groups[slot]
    distinct = 0
    for j in range(group[WIDTH]):
        for index in range(blocks_of_row(t, slot, prompt, computed, j, block)):
            distinct += t.marks[t.rows[slot, j, index]] == 0
            t.marks[t.rows[slot, j, index]] = 1
    for j in range(group[WIDTH]):
        for index in range(blocks_of_row(t, slot, prompt, computed, j, block)):
            t.marks[t.rows[slot, j, index]] = 0
    if distinct > t.host.counts[prefix.FREE]:
        return False
    for j in range(group[WIDTH]):
        for index in range(blocks_of_row(t, slot, prompt, computed, j, block)):
            old = t.rows[slot, j, index]
            if t.marks[old] == 0:
                t.marks[old] = 1 + prefix.allocate(t.host)
                t.host_filled[t.marks[old] - 1] = t.filled[old]
            else:
                t.host.references[t.marks[old] - 1] += 1
            t.spare[j, index] = old
            t.rows[slot, j, index] = t.marks[old] - 1
    for j in range(group[WIDTH]):  # others may go on using a block that a prefix cache shares
        for index in range(blocks_of_row(t, slot, prompt, computed, j, block) - 1, -1, -1):
            t.marks[t.spare[j, index]] = 0
            let_go(t, t.spare[j, index])
    group[HOSTED] = distinct
    return True


@called
def swap_in(t, slot, prompt, computed, block):
    """Move the blocks of a group back to the device, which must have room for them."""
    group = t.groups[slot]
    for j in range(group[WIDTH]):
        for index in range(blocks_of_row(t, slot, prompt, computed, j, block)):
            old = t.rows[slot, j, index]
            if t.marks[old] == 0:
                new = prefix.allocate(t.pool)
                t.marks[old] = 1 + new
                t.filled[new] = t.host_filled[old]
                t.counts[FILLED] += t.filled[new]
            else:
                t.pool.references[t.marks[old] - 1] += 1
            t.rows[slot, j, index] = t.marks[old] - 1
            if prefix.release(t.host, old):
                t.marks[old] = 0
    group[HOSTED] = 0


def new_fork_tables(*, blocks: int, host_blocks: int, slots: int, width: int, longest_blocks: int) -> ForkTables:
    """Return empty tables over a pool of free blocks and a host pool."""
    return ForkTables(
        pool=prefix.new_pool(blocks),
        host=prefix.new_pool(host_blocks),
        rows=np.zeros((slots, width, longest_blocks), np.int32),
        spare=np.zeros((width, longest_blocks), np.int32),
        parents=np.zeros(width, np.int32),
        filled=np.zeros(blocks, np.int32),
        host_filled=np.zeros(host_blocks, np.int32),
        marks=np.zeros(max(blocks, host_blocks), np.int32),
        groups=np.zeros((slots, 4), np.int64),
        counts=np.zeros(2, np.int64),
    )
