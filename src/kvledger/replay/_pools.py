"""Two pools sized apart: one step of the scheduler over a pool of every token and one of a window (compiled).

The scheduler is that of `_step`. Amounts are in bytes, as a token costs differently in the two pools: a unit is
``I_BLOCK`` bytes, in which pages of both can be counted. Every running request is looked at in every step, because any
of them may give slots back.

Without a prefix cache, as SGLang 0.5.18 does it (``free_swa_out_of_window_slots``, ``chunk_cache``): before a chunk of
its prompt is computed, a request gives back the slots that the window of the chunk's first token does not reach; while
it decodes, only once ``lag`` tokens have come together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvledger.pool.compiled import called, compiled, inlined
from kvledger.pool.two_pools import TwoPools
from kvledger.replay._layout import *
from kvledger.replay._queue import LAST, emit_one, head_slot, leave, note_scheduled, open_step, put_in_front, seat
from kvledger.replay._record import begin_bucket, close_step, step_seconds
from kvledger.replay._restart import begin_restart
from kvledger.replay._step import compute

# The two pools: every token, and those that the window reaches.
WHOLE, NEAR = range(2)

# Numbers of `Pooled.shape`.
PAGE, REACH, LAG = range(3)

# Rows of `Pooled.tokens`, one column a pool: what it has, what is free, bytes of a token, the most held, heads refused.
T_SIZE, T_FREE, T_BYTES, T_PEAK, T_REFUSED = range(5)

# Columns of `Pooled.spans`: the slots of a request are those from 0 to its end, in the window's pool from its begin on.
BEGIN, END = range(2)


class Pooled(NamedTuple):
    """The two pools, and where each request's part of the second begins."""

    shape: Array  # (3,) int64: tokens of a page, of the window, of the lag
    tokens: Array  # (5, 2) int64
    spans: Array  # (max_num_seqs + 1, 2) int64, tokens in whole pages
    held: Array  # (2, 2) float64: tokens held times seconds of each pool, over busy time and while requests wait


@inlined
def pages_up(po, tokens):
    """Return ``tokens`` rounded up to pages."""
    return (tokens + po.shape[PAGE] - 1) // po.shape[PAGE] * po.shape[PAGE]


@inlined
def skipped(po, computed):
    """Return the leading tokens that the window needs no more when ``computed`` are there."""
    return max(0, computed - po.shape[REACH] + 1)


@inlined
def trim(po, slot, computed, decodes):
    """Give back the whole pages of the window's pool that no further token needs."""
    behind = skipped(po, computed)
    if decodes and behind < po.spans[slot, BEGIN] + po.shape[LAG]:
        return
    end = behind // po.shape[PAGE] * po.shape[PAGE]
    if end > po.spans[slot, BEGIN]:
        po.tokens[T_FREE, NEAR] += end - po.spans[slot, BEGIN]
        po.spans[slot, BEGIN] = end


@inlined
def take(po, slot, end):
    """Give a request its slots up to ``end`` tokens in both pools; False when either has too few."""
    more = pages_up(po, end) - po.spans[slot, END]
    if more > po.tokens[T_FREE, WHOLE] or more > po.tokens[T_FREE, NEAR]:
        return False
    po.tokens[T_FREE, WHOLE] -= more
    po.tokens[T_FREE, NEAR] -= more
    po.spans[slot, END] += more
    return True


@inlined
def give_up(st, po, slot):
    """Give back everything a request holds in both pools."""
    po.tokens[T_FREE, WHOLE] += po.spans[slot, END]
    po.tokens[T_FREE, NEAR] += po.spans[slot, END] - po.spans[slot, BEGIN]
    po.spans[slot, BEGIN], po.spans[slot, END] = 0, 0
    st.slots[slot, S_COMPUTED] = 0


@inlined
def preempt(st, po):
    """Take everything from the request admitted last and put it at the front of the queue."""
    ints = st.ints
    ints[I_RUNNING] -= 1
    slot = st.lists[ORDER, ints[I_RUNNING]]
    ints[I_RECOMPUTED] += st.slots[slot, S_COMPUTED]
    give_up(st, po, slot)
    put_in_front(st, slot)
    return slot


@inlined
def make_place(st, po, slot, n):
    """Take slots for ``n`` more tokens, preempting the last as long as it takes; False when it was the last."""
    row = st.slots[slot]
    end = row[S_COMPUTED] + n
    trim(po, slot, row[S_COMPUTED], n == 1 and row[S_GENERATED] > 0 and end == row[S_PROMPT] + row[S_GENERATED])
    while not take(po, slot, end):
        if preempt(st, po) == slot:
            return False
    return True


@inlined
def schedule(st, po):
    """Phase 2: extend the running requests in admission order; return the tokens left of the budget."""
    ints = st.ints
    budget = ints[I_BUDGET]
    i = 0
    while i < ints[I_RUNNING] and budget > 0:
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        n = min(row[S_PROMPT] + row[S_GENERATED] - row[S_COMPUTED], budget)
        if not make_place(st, po, slot, n):
            break
        row[S_NOW] = n
        budget -= n
        i += 1
    note_scheduled(st, i)
    return budget


@inlined
def asked_in_window(po, tokens, n):
    """Return the slots of the window's pool that a waiting request asks for (`TwoPools.asked_in_window`)."""
    return min(pages_up(po, tokens), pages_up(po, max(n, po.shape[REACH])) + po.shape[PAGE])


@inlined
def admit_one(st, po, slot, budget):
    """Give the head of the queue the slots of its first chunk; return the tokens of that, 0 when refused."""
    ints, tokens = st.ints, po.tokens
    row = st.slots[slot]
    known = row[S_PROMPT] + row[S_GENERATED]
    n = min(known, budget)
    whole, reach = pages_up(po, known), asked_in_window(po, known, n)
    full, window = (whole, reach) if ints[I_WHOLE] == 1 else (pages_up(po, n), pages_up(po, n))
    if ints[I_SCHEDULED] > 0:  # the same share of either pool is kept free
        full += ints[I_WATERMARK] * tokens[T_SIZE, WHOLE] // ints[I_CAPACITY]
        window += ints[I_WATERMARK] * tokens[T_SIZE, NEAR] // ints[I_CAPACITY]
    lacks_full, lacks_window = full > tokens[T_FREE, WHOLE], window > tokens[T_FREE, NEAR]
    if lacks_full or lacks_window:
        tokens[T_REFUSED, WHOLE] += lacks_full
        tokens[T_REFUSED, NEAR] += lacks_window
        asked = whole * tokens[T_BYTES, WHOLE] + reach * tokens[T_BYTES, NEAR]
        if free_bytes(po) >= asked:
            ints[I_REFUSED_WHILE_FREE] += 1
        return 0
    take(po, slot, n)
    return n


@inlined
def free_bytes(po):
    """Return what is free in both pools."""
    return po.tokens[T_FREE, WHOLE] * po.tokens[T_BYTES, WHOLE] + po.tokens[T_FREE, NEAR] * po.tokens[T_BYTES, NEAR]


@inlined
def admit_waiting(st, log, trace, po, budget):
    """Phase 3: admit from the head of the queue until it is refused."""
    ints = st.ints
    while budget > 0 and ints[I_RUNNING] < ints[I_MAX_SEQS] and ints[I_WAITING] > 0:
        slot = head_slot(st, trace)
        n = admit_one(st, po, slot, budget)
        if n == 0:
            return
        seat(st, log, trace, slot, n)
        budget -= n


@inlined
def take_amounts(st, po):
    """Set ``I_USED`` to the bytes in use at this step; return stale bytes, and what is read in tokens of all layers."""
    ints = st.ints
    full, window = po.tokens[T_BYTES, WHOLE], po.tokens[T_BYTES, NEAR]
    used, stale, read = 0, 0, 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        behind = skipped(po, row[S_COMPUTED] - row[S_NOW])
        needed = row[S_COMPUTED] * full + (row[S_COMPUTED] - behind) * window
        used += needed
        stale += (behind - po.spans[slot, BEGIN]) * window
        if row[S_NOW] > 0:
            read += needed
    ints[I_USED] = used
    return stale, read / (full + window)


@inlined
def account_pools(st, log, po, stale, seconds):
    """Add what only two pools have: stale bytes, and what is held in each."""
    waits = st.ints[I_WAITING] > 0
    log.busy[A_STALE] += stale * seconds
    log.timeline[st.ints[I_BUCKET]][A_STALE] += stale * seconds
    if waits:
        log.saturated[A_STALE] += stale * seconds
    for pool in range(2):
        held = po.tokens[T_SIZE, pool] - po.tokens[T_FREE, pool]
        po.tokens[T_PEAK, pool] = max(po.tokens[T_PEAK, pool], held)
        po.held[0, pool] += held * seconds
        if waits:
            po.held[1, pool] += held * seconds


@inlined
def emit_tokens(st, log, trace, po):
    """Phase 5: requests with everything computed emit a token; those that have all of theirs end and let go."""
    ints = st.ints
    kept = 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        st.lists[ORDER, kept] = slot
        kept += 1
        if emit_one(st, log, trace, slot) == LAST:
            give_up(st, po, slot)
            leave(st, log, trace, slot)
            kept -= 1
    ints[I_RUNNING] = kept


@called
def pooled_step(st, log, trace, po):
    """Run one whole step."""
    ints, floats = st.ints, st.floats
    ints[I_PREEMPTED_NOW] = 0
    budget = schedule(st, po)
    if ints[I_PREEMPTED_NOW] == 0:
        admit_waiting(st, log, trace, po, budget)
    prefill, decodes, _ = compute(st)
    stale, read = take_amounts(st, po)
    ints[I_FREE] = free_bytes(po) // ints[I_BLOCK]
    begin_bucket(st, log)
    seconds = step_seconds(floats, prefill, decodes, read)
    account_pools(st, log, po, stale, seconds)
    close_step(st, log, seconds)
    emit_tokens(st, log, trace, po)
    ints[I_USED] = 0
    ints[I_FREE] = free_bytes(po) // ints[I_BLOCK]


@compiled
def restart(st, po):
    """Restart the server: everything that runs is lost; False when it gets nowhere."""
    ints = st.ints
    while ints[I_RUNNING] > 0:
        preempt(st, po)
        ints[I_PREEMPTIONS] -= 1
    ints[I_FREE] = free_bytes(po) // ints[I_BLOCK]
    return begin_restart(st)


@compiled
def run_pools(st, log, trace, po, most):
    """Go on for up to ``most`` steps; return PAUSED, or why `open_step` takes no further one."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == GO:
            pooled_step(st, log, trace, po)
        elif reason != IDLE:
            return reason
    return PAUSED


def new_pooled(pools: TwoPools, *, total_bytes: int, max_seqs: int) -> Pooled:
    """Return two empty pools in ``total_bytes``."""
    sizes = pools.divide(total_bytes)
    tokens = np.zeros((5, 2), np.int64)
    tokens[T_SIZE] = tokens[T_FREE] = sizes
    tokens[T_BYTES] = pools.full_token_bytes, pools.window_token_bytes
    return Pooled(
        shape=np.array([pools.page_tokens, pools.window_tokens, pools.lag_tokens], np.int64),
        tokens=tokens,
        spans=np.zeros((max_seqs + 1, 2), np.int64),
        held=np.zeros((2, 2), np.float64),
    )
