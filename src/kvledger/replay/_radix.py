"""Block tables over a radix tree: one step of the scheduler (compiled).

The scheduler is that of `_step`; what a request stores is that of SGLang (`pool.radix`). A request takes over its
longest stored prefix, locks it, and holds pages of its own for the rest. What a step of its prefill has computed goes
into the tree at the end of that step, where a copy of what is there already is given back; what it decodes goes there
when it ends. A preempted request gives up its own pages, and what is in the tree stays as long as it may.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvledger.pool import radix
from kvledger.pool.compiled import called, compiled, inlined
from kvledger.pool.content import Content
from kvledger.replay._layout import *
from kvledger.replay._queue import (
    EMITTED,
    LAST,
    emit_one,
    head_slot,
    leave,
    note_scheduled,
    open_step,
    put_in_front,
    seat,
)
from kvledger.replay._record import begin_bucket, close_step, step_seconds
from kvledger.replay._restart import begin_restart
from kvledger.replay._shared import H_AGAIN, H_HITS, H_LOGICAL, H_QUERIES
from kvledger.replay._step import compute, settle, unsettle

# Columns of `Rooted.held`: the tokens of a request that are in the tree, and the node in which they end.
IN_TREE, NODE = range(2)

# A number of `Rooted.counts` beside those of `_shared`: tokens that requests hold outside the tree.
H_OWN = 7


class Rooted(NamedTuple):
    """The tree, what each request has in it, and what is known of the content of each."""

    tree: radix.RadixTree
    held: Array  # (max_num_seqs + 1, 2) int64
    counts: Array  # (8,) int64
    content: Content


@inlined
def pages_up(st, tokens):
    """Return ``tokens`` rounded up to pages."""
    return (tokens + st.ints[I_BLOCK] - 1) // st.ints[I_BLOCK] * st.ints[I_BLOCK]


@inlined
def note_used(st, ro):
    """Every locked token is used by a request, and so is what requests hold outside the tree."""
    st.ints[I_USED] = ro.tree.counts[radix.LOCKED] + ro.counts[H_OWN]


@inlined
def grow(st, ro, slot, computed, n):
    """Take the pages for ``n`` more tokens; False when there are too few even without all that is evictable."""
    own = computed - ro.held[slot, IN_TREE]
    return radix.take(ro.tree, pages_up(st, own + n) - pages_up(st, own))


@inlined
def give_up_own(st, ro, slot):
    """Give back the pages of a request that are not in the tree, and unlock what is."""
    row = st.slots[slot]
    own = row[S_COMPUTED] - ro.held[slot, IN_TREE]
    ro.tree.counts[radix.FREE] += pages_up(st, own)
    radix.unlock(ro.tree, ro.held[slot, NODE])
    ro.counts[H_OWN] -= own
    ro.counts[H_LOGICAL] -= row[S_COMPUTED]
    ro.held[slot, IN_TREE], ro.held[slot, NODE] = 0, radix.ROOT
    row[S_COMPUTED] = 0
    note_used(st, ro)


@inlined
def store(st, ro, slot):
    """Put the whole pages that a request has computed into the tree, and give back what was there already."""
    row, tree = st.slots[slot], ro.tree
    node, there = radix.insert(tree, ro.content, row[S_REQUEST], row[S_COMPUTED])
    stored = tree.nodes[node, radix.END]
    tree.counts[radix.FREE] += there - ro.held[slot, IN_TREE]
    radix.unlock(tree, ro.held[slot, NODE])
    radix.lock(tree, node)
    ro.counts[H_OWN] -= stored - ro.held[slot, IN_TREE]
    ro.held[slot, IN_TREE], ro.held[slot, NODE] = stored, node
    note_used(st, ro)


@inlined
def preempt(st, ro):
    """Take everything from the request admitted last and put it at the front of the queue."""
    ints = st.ints
    ints[I_RUNNING] -= 1
    slot = st.lists[ORDER, ints[I_RUNNING]]
    if ints[I_RUNNING] < ints[I_STEADY]:
        ints[I_STEADY] -= 1
        unsettle(st, slot)
    ints[I_RECOMPUTED] += st.slots[slot, S_COMPUTED]
    give_up_own(st, ro, slot)
    put_in_front(st, slot)
    return slot


@inlined
def make_place(st, ro, slot, computed, n):
    """Take pages for ``n`` more tokens, preempting the last as long as it takes; False when it was the last."""
    while not grow(st, ro, slot, computed, n):
        if preempt(st, ro) == slot:
            return False
    return True


@inlined
def schedule_steady(st, ro):
    """Give the steady requests a page each where they need one."""
    ints = st.ints
    more = st.crossings[ints[I_PHASE]] * ints[I_BLOCK]
    if more <= ro.tree.counts[radix.FREE]:
        ro.tree.counts[radix.FREE] -= more
        return
    i = 0
    while i < ints[I_STEADY]:
        slot = st.lists[ORDER, i]
        if st.slots[slot, S_PHASE] == ints[I_PHASE]:
            make_place(st, ro, slot, ints[I_TICK] + st.slots[slot, S_OFFSET], 1)
        i += 1


@inlined
def schedule(st, ro):
    """Phase 2: extend the running requests in admission order; return the tokens left of the budget."""
    ints = st.ints
    schedule_steady(st, ro)
    budget = ints[I_BUDGET] - ints[I_STEADY]
    i = ints[I_STEADY]
    while i < ints[I_RUNNING] and budget > 0:
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        n = min(row[S_PROMPT] + row[S_GENERATED] - row[S_COMPUTED], budget)
        if not make_place(st, ro, slot, row[S_COMPUTED], n):
            break
        row[S_NOW] = n
        budget -= n
        i += 1
    note_scheduled(st, i)
    return budget


@inlined
def admit_one(st, ro, slot, budget):
    """Give the head of the queue its stored prefix and its first chunk; return the tokens of that, 0 when refused."""
    ints, tree = st.ints, ro.tree
    row = st.slots[slot]
    tokens = row[S_PROMPT] + row[S_GENERATED]
    node = radix.match(tree, ro.content, row[S_REQUEST], tokens - 1)
    found = tree.nodes[node, radix.END]
    idle = radix.count_idle(tree, node)
    spare = ints[I_WATERMARK] * ints[I_BLOCK] if ints[I_SCHEDULED] > 0 else 0
    n = min(tokens - found, budget)
    free = tree.counts[radix.FREE] + tree.counts[radix.CACHED]
    whole = pages_up(st, tokens - found) + idle
    if (whole if ints[I_WHOLE] else pages_up(st, n) + idle) + spare > free:
        if free >= whole:
            ints[I_REFUSED_WHILE_FREE] += 1
        return 0
    radix.lock(tree, node)
    ro.held[slot, IN_TREE], ro.held[slot, NODE] = found, node
    ro.counts[H_LOGICAL] += found
    row[S_COMPUTED] = found
    grow(st, ro, slot, found, n)
    note_used(st, ro)
    if ints[I_STACKED] > 0:
        ro.counts[H_AGAIN] += found
    else:
        ro.counts[H_HITS] += found
        ro.counts[H_QUERIES] += tokens
    return n


@inlined
def admit_waiting(st, log, trace, ro, budget):
    """Phase 3: admit from the head of the queue until it is refused."""
    ints = st.ints
    while budget > 0 and ints[I_RUNNING] < ints[I_MAX_SEQS] and ints[I_WAITING] > 0:
        slot = head_slot(st, trace)
        n = admit_one(st, ro, slot, budget)
        if n == 0:
            return
        seat(st, log, trace, slot, n)
        budget -= n


@inlined
def finish(st, log, trace, ro, slot):
    """End a request: store what it computed, give up the rest, note its latency, and give its slot back."""
    store(st, ro, slot)
    give_up_own(st, ro, slot)
    leave(st, log, trace, slot)


@inlined
def end_steady(st, log, trace, ro):
    """End the steady requests that have all of their tokens; return how many steady ones are left."""
    ints = st.ints
    if ints[I_TICK] != ints[I_NEXT_END]:
        return ints[I_STEADY]
    kept, soonest = 0, NEVER_TICK
    for i in range(ints[I_STEADY]):
        slot = st.lists[ORDER, i]
        if st.slots[slot, S_END] == ints[I_TICK]:
            unsettle(st, slot)
            finish(st, log, trace, ro, slot)
        else:
            soonest = min(soonest, st.slots[slot, S_END])
            st.lists[ORDER, kept] = slot
            kept += 1
    ints[I_NEXT_END] = soonest
    return kept


@inlined
def emit_tokens(st, log, trace, ro):
    """Phase 5: requests with everything computed emit a token; what ended or was a prefill goes into the tree."""
    ints = st.ints
    ints[I_TICK] += 1
    ints[I_PHASE] = ints[I_PHASE] + 1 if ints[I_PHASE] + 1 < ints[I_BLOCK] else 0
    kept = end_steady(st, log, trace, ro)
    steady = kept
    for i in range(ints[I_STEADY], ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        st.lists[ORDER, kept] = slot
        kept += 1
        token = emit_one(st, log, trace, slot)
        if token == LAST:
            finish(st, log, trace, ro, slot)
            kept -= 1
            continue
        if st.slots[slot, S_NOW] > 0:
            store(st, ro, slot)
        if token == EMITTED:
            settle(st, slot)
            steady += 1
    ints[I_STEADY] = steady
    ints[I_RUNNING] = kept


@inlined
def account_sharing(st, log, ro, seconds):
    """Add what only a prefix cache has: cached tokens, and the tokens that sharing saves."""
    ints = st.ints
    cached = ro.tree.counts[radix.CACHED] * seconds
    saved = (ro.counts[H_LOGICAL] - ints[I_USED]) * seconds
    bucket = log.timeline[ints[I_BUCKET]]
    log.busy[A_CACHED] += cached
    log.busy[A_SAVED] += saved
    bucket[A_CACHED] += cached
    bucket[A_SAVED] += saved
    if ints[I_WAITING] > 0:
        log.saturated[A_CACHED] += cached
        log.saturated[A_SAVED] += saved


@inlined
def note_free(st, ro):
    """Free pages are those that no running request keeps, evictable ones included."""
    st.ints[I_FREE] = (ro.tree.counts[radix.FREE] + ro.tree.counts[radix.CACHED]) // st.ints[I_BLOCK]


@called
def radix_step(st, log, trace, ro):
    """Run one whole step."""
    ints, floats = st.ints, st.floats
    ints[I_PREEMPTED_NOW] = 0
    budget = schedule(st, ro)
    if ints[I_PREEMPTED_NOW] == 0:
        admit_waiting(st, log, trace, ro, budget)
    before = ints[I_USED]
    prefill, decodes, read = compute(st)
    ro.counts[H_LOGICAL] += ints[I_USED] - before
    ro.counts[H_OWN] += ints[I_USED] - before
    note_free(st, ro)
    begin_bucket(st, log)
    if log.rows.shape[0] > 0:
        log.rows[ints[I_ROWS], ROW_CACHED] = ro.tree.counts[radix.CACHED]
    seconds = step_seconds(floats, prefill, decodes, read)
    account_sharing(st, log, ro, seconds)
    close_step(st, log, seconds)
    emit_tokens(st, log, trace, ro)
    note_free(st, ro)


@compiled
def restart(st, ro):
    """Restart the server: everything that runs and all that is stored is lost; False when it gets nowhere."""
    ints = st.ints
    while ints[I_RUNNING] > 0:
        preempt(st, ro)
        ints[I_PREEMPTIONS] -= 1
    radix.evict(ro.tree, ints[I_CAPACITY] * ints[I_BLOCK])
    note_free(st, ro)
    return begin_restart(st)


@compiled
def run_radix(st, log, trace, ro, most):
    """Go on for up to ``most`` steps; return PAUSED, or why `open_step` takes no further one."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == GO:
            radix_step(st, log, trace, ro)
        elif reason != IDLE:
            return reason
    return PAUSED


def new_rooted(
    content: tuple[Array, Array, Array, Array], *, tokens: int, page_tokens: int, max_seqs: int, by_birth: bool
) -> Rooted:
    """Return an empty tree over the content columns ``(how, offsets, ids, covered)``."""
    return Rooted(
        tree=radix.new_tree(tokens, page_tokens=page_tokens, by_birth=by_birth),
        held=np.zeros((max_seqs + 1, 2), np.int64),
        counts=np.zeros(8, np.int64),
        content=Content(*content),
    )
