"""Block tables of several groups of layers over one pool, as vLLM's KV cache manager keeps them (compiled).

vLLM 0.32, ``v1/core/single_type_kv_cache_manager.py``. A request has one table a group. An entry is a block, or -1
where the group needs none any more::

    full       | 4 | 9 | 2 | 7 |
    window     | -1| -1| 5 | 1 |     blocks behind the window were given back
    state      | -1| -1| 8 | 3 |     3 is being written, 8 is what it continues from
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvledger.pool import prefix
from kvledger.pool.compiled import called, inlined
from kvledger.pool.content import Content, group_key
from kvledger.pool.groups import BlockGroups, GroupKind

Array = Any  # a numpy array; numba knows its type

NONE = -1
"""An entry of a table without a block."""

# Columns of `Tables.groups`: the kind, sizes in tokens, blocks at most at admission, and blocks that a hit needs.
KIND, BLOCK, SPAN, CAP, NEED = range(5)
FULL, WINDOW, CHUNK, STATE = range(4)

# Numbers of `Tables.numbers`.
CACHING, ALIGN, SETS, FRESH, ALIGNED_STATES = range(5)

# Columns of `Tables.ends`: the tokens of the prompt, and where a longer prefix of some group was seen to end.
PROMPT, JUNCTION = range(2)


class Tables(NamedTuple):
    """The pool, the tables of all requests by slot, and what is known of their content."""

    pool: prefix.BlockPool
    content: Content
    groups: Array  # (groups, 5) int64
    sets: Array  # (sets + 1,) int64: where each set of groups that are looked up together begins in `members`
    members: Array  # (groups,) int64
    blocks: Array  # (slots, groups, blocks of the longest request) int32
    lengths: Array  # (slots, groups) int64: entries of each table
    firsts: Array  # (slots, groups) int64: entries before it hold no block
    known: Array  # (slots, groups) int64: leading entries whose identity is settled
    ends: Array  # (slots, 2) int64
    found: Array  # (groups,) int64: entries of the prefix that was just looked up
    held: Array  # (groups,) int64: blocks of each group that somebody refers to
    fresh: Array  # (2 * slots * groups,) uint64: states that got their identity in this step
    numbers: Array  # (5,) int64


@inlined
def up(tokens, block):
    """Return how many blocks hold ``tokens``."""
    return (tokens + block - 1) // block


@inlined
def skipped_tokens(t, g, computed):
    """Return the leading tokens that a group needs no more when ``computed`` are there."""
    kind = t.groups[g, KIND]
    if kind == WINDOW:
        return max(0, computed - t.groups[g, SPAN] + 1)
    if kind == CHUNK:
        return computed // t.groups[g, SPAN] * t.groups[g, SPAN]
    if kind == STATE:
        return max(0, computed - 1)
    return 0


@inlined
def is_sparse(t, g):
    """Tell whether a group allocates only the last block of what it computes: states, with a prefix cache."""
    return t.groups[g, KIND] == STATE and t.numbers[CACHING] == 1


@inlined
def take_block(t, slot, g, index):
    """Take the block of one entry from the pool."""
    t.blocks[slot, g, index] = prefix.allocate(t.pool)
    t.held[g] += 1


@inlined
def put_back(t, slot, g, index):
    """Let go of the block of one entry, if it has one."""
    block = t.blocks[slot, g, index]
    if block != NONE:
        t.blocks[slot, g, index] = NONE
        if prefix.release(t.pool, block):
            t.held[g] -= 1


@inlined
def trim(t, slot, computed):
    """Give back the blocks that no further token needs, the last first."""
    for g in range(t.groups.shape[0]):
        end = min(skipped_tokens(t, g, computed) // t.groups[g, BLOCK], t.lengths[slot, g])
        for index in range(end - 1, t.firsts[slot, g] - 1, -1):
            put_back(t, slot, g, index)
        t.firsts[slot, g] = max(t.firsts[slot, g], end)


@inlined
def count_missing(t, slot, total):
    """Count the blocks that a running request lacks for ``total`` tokens."""
    missing = 0
    for g in range(t.groups.shape[0]):
        more = max(0, up(total, t.groups[g, BLOCK]) - t.lengths[slot, g])
        missing += min(more, 1) if is_sparse(t, g) else more
    return missing


@inlined
def lengthen(t, slot, total):
    """Give every table its blocks up to ``total`` tokens. The pool must have them."""
    for g in range(t.groups.shape[0]):
        needed = up(total, t.groups[g, BLOCK])
        for index in range(t.lengths[slot, g], needed):
            if is_sparse(t, g) and index < needed - 1:
                t.blocks[slot, g, index] = NONE
            else:
                take_block(t, slot, g, index)
        t.lengths[slot, g] = max(t.lengths[slot, g], needed)


@inlined
def is_reachable(t, slot, g, index):
    """Tell whether a full block can ever serve a hit, so that it gets an identity.

    vLLM 0.32 keeps windows and states only where a later request can resume (``prefix_cache_retention_interval`` 0):
    at the end of the prompt, and where another group was seen to reach further.
    """
    kind, block, align = t.groups[g, KIND], t.groups[g, BLOCK], t.numbers[ALIGN]
    if kind != WINDOW and kind != STATE:
        return True
    for boundary in (t.ends[slot, PROMPT] - 1, t.ends[slot, JUNCTION]):
        end = boundary // align * align // block
        if end - t.groups[g, NEED] <= index < end:
            return True
    return False


@inlined
def note_fresh(t, key):
    """Remember a state that is written in this step, so that nobody reads it before the next."""
    if t.numbers[FRESH] < t.fresh.shape[0]:
        t.fresh[t.numbers[FRESH]] = key
        t.numbers[FRESH] += 1


@inlined
def is_fresh(t, key):
    """Tell whether a state is written in this step."""
    for i in range(t.numbers[FRESH]):
        if t.fresh[i] == key:
            return True
    return False


@called
def identify(t, slot, request, total):
    """Give identities to the blocks that are full when ``total`` tokens are computed."""
    if t.numbers[CACHING] == 0:
        return
    align = t.numbers[ALIGN]
    whole = total // align * align
    for g in range(t.groups.shape[0]):
        block = t.groups[g, BLOCK]
        for index in range(t.known[slot, g], whole // block):
            if t.blocks[slot, g, index] != NONE and is_reachable(t, slot, g, index):
                key = group_key(t.content, request, (index + 1) * block, g)
                prefix.insert(t.pool, t.blocks[slot, g, index], key)
                if t.groups[g, KIND] == STATE:
                    note_fresh(t, key)
        t.known[slot, g] = max(t.known[slot, g], whole // block)
        if t.groups[g, KIND] == STATE and 0 < whole == (t.ends[slot, PROMPT] - 1) // align * align:
            if t.blocks[slot, g, whole // block - 1] != NONE:
                note_fresh(t, group_key(t.content, request, whole, g))


@inlined
def extend(t, slot, request, computed, n):
    """Make room for ``n`` more tokens of a running request; False when there are too few blocks."""
    trim(t, slot, computed)
    if count_missing(t, slot, computed + n) > t.pool.counts[prefix.FREE]:
        return False
    lengthen(t, slot, computed + n)
    identify(t, slot, request, computed + n)
    return True


@called
def give_up(t, slot):
    """Let go of all blocks of a request, group by group, the last first."""
    for g in range(t.groups.shape[0]):
        for index in range(t.lengths[slot, g] - 1, t.firsts[slot, g] - 1, -1):
            put_back(t, slot, g, index)
        t.lengths[slot, g] = 0
        t.firsts[slot, g] = 0
        t.known[slot, g] = 0


def new_tables(
    groups: BlockGroups,
    content: Content,
    *,
    blocks: int,
    slots: int,
    longest_tokens: int,
    in_flight_tokens: int,
    max_model_len: int,
    caching: bool,
) -> Tables:
    """Return empty tables over a pool of free blocks."""
    kinds = list(GroupKind)
    columns = np.zeros((len(groups.groups), 5), np.int64)
    for column, group in zip(columns, groups.groups, strict=True):
        column[KIND] = kinds.index(group.kind)
        column[BLOCK] = group.block_tokens
        column[SPAN] = group.span_tokens
        limit = group.most_blocks(max_model_len, in_flight_tokens=in_flight_tokens, max_model_len=max_model_len)
        column[CAP] = limit
        column[NEED] = -(-(group.span_tokens - 1) // group.block_tokens) if group.kind is GroupKind.WINDOW else 1
    sets, members = _lookup_sets(groups)
    count = len(groups.groups)
    longest = max(-(-longest_tokens // group.block_tokens) + 2 for group in groups.groups)
    align = groups.alignment_tokens if caching else 1
    states = int(caching and groups.has_states)
    return Tables(
        pool=prefix.new_pool(blocks),
        content=content,
        groups=columns,
        sets=sets,
        members=members,
        blocks=np.empty((slots, count, longest), np.int32),
        lengths=np.zeros((slots, count), np.int64),
        firsts=np.zeros((slots, count), np.int64),
        known=np.zeros((slots, count), np.int64),
        ends=np.zeros((slots, 2), np.int64),
        found=np.zeros(count, np.int64),
        held=np.zeros(count, np.int64),
        fresh=np.zeros(2 * slots * count if states else 0, np.uint64),
        numbers=np.array([int(caching), align, len(sets) - 1, 0, states], np.int64),
    )


def _lookup_sets(groups: BlockGroups) -> tuple[Array, Array]:
    """Return the sets of groups that keep the same tokens; full attention, whose hits bound the others, first."""
    by_reach: dict[tuple[GroupKind, int, int], list[int]] = {}
    for number, group in enumerate(groups.groups):
        by_reach.setdefault((group.kind, group.block_tokens, group.span_tokens), []).append(number)
    ordered = sorted(by_reach.items(), key=lambda item: item[0][0] is not GroupKind.FULL)
    sets = np.cumsum([0, *(len(numbers) for _, numbers in ordered)]).astype(np.int64)
    return sets, np.array([number for _, numbers in ordered for number in numbers], np.int64)
