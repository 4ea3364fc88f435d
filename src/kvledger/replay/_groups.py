"""Block tables of several groups of layers: one step of the scheduler, as vLLM 0.32 takes it (compiled).

The scheduler is that of `_step`; who holds which block is the matter of `pool.group_tables`. Every running request is
looked at in every step, because any of them may give blocks back. Amounts are in bytes, as groups differ in what a
token costs: a unit of the pool is a block, and ``I_BLOCK`` its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvledger.pool import prefix
from kvledger.pool.compiled import called, compiled, inlined
from kvledger.pool.group_hits import count_asked, enter, find_prefix, hits_fresh_state
from kvledger.pool.group_tables import (
    ALIGNED_STATES,
    BLOCK,
    FRESH,
    JUNCTION,
    PROMPT,
    Tables,
    extend,
    give_up,
)
from kvledger.replay._group_accounts import Amounts, account_groups, take_amounts
from kvledger.replay._layout import *
from kvledger.replay._queue import LAST, emit_one, head_slot, leave, note_scheduled, open_step, put_in_front, seat
from kvledger.replay._record import begin_bucket, close_step, step_seconds
from kvledger.replay._restart import begin_restart
from kvledger.replay._step import compute

# Numbers of `Grouped.counts`.
G_HITS, G_QUERIES, G_AGAIN = range(3)


class Grouped(NamedTuple):
    """The tables, what is counted of the prefix cache, and the amounts of the current step."""

    tables: Tables
    counts: Array  # (3,) int64
    amounts: Amounts


@inlined
def cut_chunk(st, t, slot, start, n):
    """Cut a chunk of prefill so that it ends where the state of every block is written.

    vLLM 0.32, ``_mamba_block_aligned_split``: with a prefix cache, chunks end at block boundaries, at the last boundary
    before the end, and where another group was seen to reach.
    """
    row = st.slots[slot]
    tokens, prompt = row[S_PROMPT] + row[S_GENERATED], row[S_PROMPT]
    prefill_end = max(prompt, tokens - 1)
    if t.numbers[ALIGNED_STATES] == 0 or start >= prefill_end:
        return n
    block = t.groups[0, BLOCK]
    end = start + n
    if end < prefill_end:
        aligned = end // block * block
        if aligned > start or block <= st.ints[I_BUDGET]:
            end = aligned
    junction = t.ends[slot, JUNCTION]
    stop = end
    last = (tokens - 1) // block * block
    if start < last < stop:
        stop = last
    if start % block != 0 and (start // block + 1) * block < stop:
        stop = (start // block + 1) * block
    if start < junction < end:
        floored = start + (junction - start) // block * block
        if start < floored < stop:
            stop = floored
    return max(stop - start, 0)


@inlined
def preempt(st, t):
    """Take everything from the request admitted last and put it at the front of the queue."""
    ints = st.ints
    ints[I_RUNNING] -= 1
    slot = st.lists[ORDER, ints[I_RUNNING]]
    ints[I_RECOMPUTED] += st.slots[slot, S_COMPUTED]
    st.slots[slot, S_COMPUTED] = 0
    give_up(t, slot)
    put_in_front(st, slot)
    return slot


@inlined
def make_place(st, t, slot, n):
    """Take blocks for ``n`` more tokens, preempting the last as long as it takes; False when it was the last."""
    row = st.slots[slot]
    while not extend(t, slot, row[S_REQUEST], row[S_COMPUTED], n):
        if preempt(st, t) == slot:
            return False
    return True


@inlined
def schedule(st, t):
    """Phase 2: extend the running requests in admission order; return the tokens left of the budget."""
    ints = st.ints
    budget = ints[I_BUDGET]
    i = 0
    while i < ints[I_RUNNING] and budget > 0:
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        n = min(row[S_PROMPT] + row[S_GENERATED] - row[S_COMPUTED], budget)
        n = cut_chunk(st, t, slot, row[S_COMPUTED], n)
        if n > 0 and not make_place(st, t, slot, n):
            break
        row[S_NOW] = n
        budget -= n
        i += 1
    note_scheduled(st, i)
    return budget


@inlined
def admit_one(st, gr, slot, budget):
    """Give the head of the queue its cached prefix and its first chunk; return the tokens of that, 0 when refused."""
    ints, t = st.ints, gr.tables
    row = st.slots[slot]
    tokens = row[S_PROMPT] + row[S_GENERATED]
    t.ends[slot, PROMPT] = row[S_PROMPT]
    hit = find_prefix(t, slot, row[S_REQUEST], tokens)
    n = cut_chunk(st, t, slot, hit, min(tokens - hit, budget))
    if n == 0:
        return 0
    spare = ints[I_WATERMARK] if ints[I_RUNNING] > 0 else 0
    free = t.pool.counts[prefix.FREE]
    whole = count_asked(t, slot, hit, tokens, True)
    refused = count_asked(t, slot, hit, hit + n, False) + spare > free
    if ints[I_WHOLE] == 1 and whole + spare > free:
        refused = True
    if refused or hits_fresh_state(t, row[S_REQUEST]):
        if free >= whole:
            ints[I_REFUSED_WHILE_FREE] += 1
        return 0
    enter(t, slot, row[S_REQUEST], hit, n)
    row[S_COMPUTED] = hit
    if ints[I_STACKED] > 0:
        gr.counts[G_AGAIN] += hit
    else:
        gr.counts[G_HITS] += hit
        gr.counts[G_QUERIES] += tokens
    return n


@inlined
def admit_waiting(st, log, trace, gr, budget):
    """Phase 3: admit from the head of the queue until it is refused."""
    ints = st.ints
    while budget > 0 and ints[I_RUNNING] < ints[I_MAX_SEQS] and ints[I_WAITING] > 0:
        slot = head_slot(st, trace)
        n = admit_one(st, gr, slot, budget)
        if n == 0:
            return
        seat(st, log, trace, slot, n)
        budget -= n


@inlined
def emit_tokens(st, log, trace, t):
    """Phase 5: requests with everything computed emit a token; those that have all of theirs end and let go."""
    ints = st.ints
    kept = 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        st.lists[ORDER, kept] = slot
        kept += 1
        if emit_one(st, log, trace, slot) == LAST:
            give_up(t, slot)
            leave(st, log, trace, slot)
            kept -= 1
    ints[I_RUNNING] = kept


@called
def group_step(st, log, trace, gr):
    """Run one whole step."""
    ints, floats, t = st.ints, st.floats, gr.tables
    ints[I_PREEMPTED_NOW] = 0
    t.numbers[FRESH] = 0
    budget = schedule(st, t)
    if ints[I_PREEMPTED_NOW] == 0:
        admit_waiting(st, log, trace, gr, budget)
    prefill, decodes, _ = compute(st)
    read = take_amounts(st, t, gr.amounts)
    ints[I_FREE] = t.pool.counts[prefix.FREE]
    begin_bucket(st, log)
    if log.rows.shape[0] > 0:
        log.rows[ints[I_ROWS], ROW_CACHED] = t.pool.counts[prefix.CACHED] * ints[I_BLOCK]
    seconds = step_seconds(floats, prefill, decodes, read)
    account_groups(st, log, t, gr.amounts, seconds)
    close_step(st, log, seconds)
    emit_tokens(st, log, trace, t)
    ints[I_USED] = 0
    ints[I_FREE] = t.pool.counts[prefix.FREE]


@compiled
def restart(st, gr):
    """Restart the server: everything that runs and all that is cached is lost; False when it gets nowhere."""
    ints, t = st.ints, gr.tables
    while ints[I_RUNNING] > 0:
        preempt(st, t)
        ints[I_PREEMPTIONS] -= 1
    prefix.forget_all(t.pool)
    ints[I_FREE] = t.pool.counts[prefix.FREE]
    return begin_restart(st)


@compiled
def run_groups(st, log, trace, gr, most):
    """Go on for up to ``most`` steps; return PAUSED, or why `open_step` takes no further one."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == GO:
            group_step(st, log, trace, gr)
        elif reason != IDLE:
            return reason
    return PAUSED
