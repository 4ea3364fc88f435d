"""One step of the scheduler of vLLM V1 (compiled).

First come, first served: a budget of tokens goes to the running requests in admission order, then to the head of the
queue in chunks of its prompt; whoever was admitted last is preempted where memory runs out. The page of
`replay` in the documentation states the whole step, in order.

Requests that run are kept in admission order. Those that decode one token a step, the *steady* ones, always come first,
because tokens are handed out in that order. They are not touched step by step: a steady request has computed
``tick + offset`` tokens, ends at a tick known beforehand, and needs a block whenever that sum is a multiple of the
block size, which is counted per phase of the tick. The rest, in prefill, is kept in full.
"""

from __future__ import annotations

from kvledger.pool.compiled import called, inlined
from kvledger.replay._layout import *
from kvledger.replay._memory import admit, asked_units, blocks_of, extend, free, free_units, update_external
from kvledger.replay._queue import EMITTED, LAST, emit_one, head_slot, leave, note_scheduled, put_in_front, seat
from kvledger.replay._record import close_step, step_seconds


@inlined
def preempt_last(st):
    """Take everything from the request admitted last and put it at the front of the queue."""
    ints = st.ints
    ints[I_RUNNING] -= 1
    slot = st.lists[ORDER, ints[I_RUNNING]]
    if ints[I_RUNNING] < ints[I_STEADY]:
        ints[I_STEADY] -= 1
        unsettle(st, slot)
    ints[I_RECOMPUTED] += st.slots[slot, S_COMPUTED]
    free(st, slot)
    put_in_front(st, slot)
    return slot


@inlined
def drop_if_stuck(st, slot):
    """Reject a growing request that had the pool to itself twice and got no further.

    Its extent, the one it grows into and where they lie cannot be fitted together, so it would be recomputed for ever.
    """
    ints = st.ints
    row = st.slots[slot]
    if ints[I_MEMORY] != GROWING or ints[I_RUNNING] > 0:
        return
    if row[S_STUCK] != row[S_GENERATED] + 1:
        row[S_STUCK] = row[S_GENERATED] + 1
        return
    ints[I_STACKED] -= 1
    ints[I_WAITING] -= 1
    ints[I_STUCK] += 1
    st.lists[SPARE, ints[I_SPARE]] = slot
    ints[I_SPARE] += 1


@inlined
def make_room(st, slot, n):
    """Extend a running request by ``n`` tokens, preempting the last as long as it takes; False when it was the last."""
    while not extend(st, slot, n):
        if preempt_last(st) == slot:
            drop_if_stuck(st, slot)
            return False
    return True


@inlined
def schedule_steady(st):
    """Extend the steady requests by one token each."""
    ints = st.ints
    memory = ints[I_MEMORY]
    if memory == DEMAND or memory == PROMISE:
        more = st.crossings[ints[I_PHASE]]
        if more <= ints[I_FREE]:
            ints[I_FREE] -= more
            return
    elif ints[I_TICK] < ints[I_NEXT_GROWTH]:
        return
    soonest = NEVER_TICK
    i = 0
    while i < ints[I_STEADY]:
        row = st.slots[st.lists[ORDER, i]]
        if memory == GROWING:
            if row[S_GROWTH] <= ints[I_TICK]:
                row[S_COMPUTED] = ints[I_TICK] + row[S_OFFSET]
                if not make_room(st, st.lists[ORDER, i], ONE):
                    break
                row[S_GROWTH] = row[S_FITS] - row[S_OFFSET]
            soonest = min(soonest, row[S_GROWTH])
        elif row[S_PHASE] == ints[I_PHASE]:
            while ints[I_FREE] == 0:
                if preempt_last(st) == st.lists[ORDER, i]:
                    break
            if i >= ints[I_STEADY]:
                break
            ints[I_FREE] -= 1
        i += 1
    ints[I_NEXT_GROWTH] = soonest


@inlined
def schedule_running(st):
    """Phase 2: extend the running requests in admission order; return the tokens left of the budget.

    The steady ones come first, and each takes one token, so the budget always covers them.
    """
    ints = st.ints
    schedule_steady(st)
    budget = ints[I_BUDGET] - ints[I_STEADY]
    i = ints[I_STEADY]
    while i < ints[I_RUNNING] and budget > 0:
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        n = min(row[S_PROMPT] + row[S_GENERATED] - row[S_COMPUTED], budget)
        if not make_room(st, slot, n):
            break
        row[S_NOW] = n
        budget -= n
        i += 1
    note_scheduled(st, i)
    return budget


@inlined
def ask(st, slot):
    """Return what a waiting request asks for, and remember it as the size that free memory is judged by."""
    ints = st.ints
    row = st.slots[slot]
    asked = asked_units(ints, row[S_PROMPT], row[S_OUTPUT], row[S_LIMIT], row[S_PROMPT] + row[S_GENERATED])
    if asked != ints[I_ASKED]:
        ints[I_ASKED] = asked
        ints[I_DIRTY] = 1
    return asked


@inlined
def admit_waiting(st, log, trace, budget):
    """Phase 3: admit from the head of the queue until it is refused."""
    ints = st.ints
    while budget > 0 and ints[I_RUNNING] < ints[I_MAX_SEQS] and ints[I_WAITING] > 0:
        slot = head_slot(st, trace)
        row = st.slots[slot]
        asked = ask(st, slot)
        n = min(row[S_PROMPT] + row[S_GENERATED], budget)
        if not admit(st, slot, n, asked):
            # A first chunk may be too small for the segments that have room, and a larger one may not.
            whole = n == row[S_PROMPT] + row[S_GENERATED]
            ints[I_BLOCKED] = 1 if whole or ints[I_PLACEMENT] != SEGMENTS else 0
            if free_units(ints) >= asked:
                ints[I_REFUSED_WHILE_FREE] += 1
            return
        seat(st, log, trace, slot, n)
        budget -= n


@inlined
def compute(st):
    """Phase 4: the scheduled requests compute their tokens; return what the clock needs."""
    ints = st.ints
    steady = ints[I_STEADY]
    ints[I_USED] += steady
    ints[I_STEADY_USED] += steady
    prefill = 0
    decodes = steady
    read = ints[I_STEADY_USED]
    for i in range(steady, ints[I_RUNNING]):
        row = st.slots[st.lists[ORDER, i]]
        n = row[S_NOW]
        if n == 0:
            continue
        row[S_COMPUTED] += n
        ints[I_USED] += n
        read += row[S_COMPUTED]
        if n == 1 and row[S_GENERATED] > 0 and row[S_COMPUTED] == row[S_PROMPT] + row[S_GENERATED]:
            decodes += 1
        else:
            prefill += n
    return prefill, decodes, read


@inlined
def settle(st, slot):
    """Make a request steady: from now on it computes one token a step, and only ticks are counted."""
    ints = st.ints
    row = st.slots[slot]
    offset = row[S_COMPUTED] - ints[I_TICK]
    row[S_OFFSET] = offset
    row[S_END] = row[S_PROMPT] + row[S_OUTPUT] - 1 - offset
    ints[I_NEXT_END] = min(ints[I_NEXT_END], row[S_END])
    ints[I_STEADY_USED] += row[S_COMPUTED]
    if ints[I_MEMORY] == GROWING:
        row[S_GROWTH] = row[S_FITS] - offset
        ints[I_NEXT_GROWTH] = min(ints[I_NEXT_GROWTH], row[S_GROWTH])
    elif ints[I_MEMORY] == DEMAND or ints[I_MEMORY] == PROMISE:
        row[S_PHASE] = -offset % ints[I_BLOCK]
        st.crossings[row[S_PHASE]] += 1


@inlined
def unsettle(st, slot):
    """Write down the lengths of a steady request again."""
    ints = st.ints
    row = st.slots[slot]
    row[S_COMPUTED] = ints[I_TICK] + row[S_OFFSET]
    row[S_GENERATED] = row[S_COMPUTED] + 1 - row[S_PROMPT]
    ints[I_STEADY_USED] -= row[S_COMPUTED]
    if ints[I_MEMORY] == DEMAND or ints[I_MEMORY] == PROMISE:
        row[S_UNITS] = blocks_of(row[S_COMPUTED], ints[I_BLOCK])
        st.crossings[row[S_PHASE]] -= 1


@inlined
def end_steady(st, log, trace):
    """End the steady requests that have all of their tokens; return how many steady ones are left."""
    ints = st.ints
    kept = 0
    soonest = NEVER_TICK
    for i in range(ints[I_STEADY]):
        slot = st.lists[ORDER, i]
        ends = st.slots[slot, S_END]
        if ends == ints[I_TICK]:
            unsettle(st, slot)
            end(st, log, trace, slot)
        else:
            soonest = min(soonest, ends)
            st.lists[ORDER, kept] = slot
            kept += 1
    ints[I_NEXT_END] = soonest
    return kept


@inlined
def tick(ints, ticks):
    """Count steps that have passed."""
    ints[I_TICK] += ticks
    ints[I_PHASE] = (ints[I_PHASE] + ticks) % ints[I_BLOCK]


@inlined
def emit(st, log, trace):
    """Phase 5: requests with everything computed emit a token; those that have all of theirs end and free.

    Of the steps that have passed, only the last can have ended a request or finished a prefill.
    """
    ints = st.ints
    kept = ints[I_STEADY]
    if ints[I_TICK] == ints[I_NEXT_END]:
        kept = end_steady(st, log, trace)
    steady = kept
    for i in range(ints[I_STEADY], ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        st.lists[ORDER, kept] = slot
        kept += 1
        token = emit_one(st, log, trace, slot)
        if token == LAST:
            end(st, log, trace, slot)
            kept -= 1
        elif token == EMITTED:
            settle(st, slot)
            steady += 1
    ints[I_STEADY] = steady
    ints[I_RUNNING] = kept


@inlined
def end(st, log, trace, slot):
    """End a request: free its memory, note its latency, and give its slot back."""
    free(st, slot)
    leave(st, log, trace, slot)


@called
def step(st, log, trace):
    """Run one whole step."""
    ints, floats = st.ints, st.floats
    ints[I_PREEMPTED_NOW] = 0
    budget = schedule_running(st)
    if ints[I_PREEMPTED_NOW] == 0:
        admit_waiting(st, log, trace, budget)
    prefill, decodes, read = compute(st)
    if ints[I_MEMORY] >= EXTENT:
        if ints[I_WAITING] > 0:
            ask(st, head_slot(st, trace))
        update_external(st)
    close_step(st, log, step_seconds(floats, prefill, decodes, read))
    tick(ints, ONE)
    emit(st, log, trace)
