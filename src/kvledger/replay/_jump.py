"""The fast path: steps in which nothing changes but lengths, taken as one stretch (compiled).

A stretch begins where every running request is steady and the queue is empty or its head is known to be refused.
It ends before the first step that lacks a block or needs a larger extent, and after the first step in which a request
ends, an arrival finds the queue empty or a restart is due. Only the clock and the sums run step by step, in the same
order and with the same arithmetic as `_step.step`, so the numbers are the same.
"""

from __future__ import annotations

import numba

from kvledger.pool.compiled import called, inlined
from kvledger.replay._layout import *
from kvledger.replay._memory import free_units, held_tokens, update_external
from kvledger.replay._queue import head_slot, join_arrivals
from kvledger.replay._record import add_sums, begin_bucket, end_stretch, turn_bucket
from kvledger.replay._step import ask, emit, tick


@inlined
def can_jump(st):
    """Tell whether a stretch may begin now."""
    ints = st.ints
    return (
        ints[I_FAST] == 1
        and ints[I_STEADY] > 0
        and ints[I_STEADY] == ints[I_RUNNING]
        and (ints[I_WAITING] == 0 or ints[I_BLOCKED] == 1 or ints[I_RUNNING] == ints[I_MAX_SEQS])
    )


@inlined
def run_clock(st, log, trace, most):
    """Run the clock and the sums for up to ``most`` steps; return how many were taken."""
    ints, floats = st.ints, st.floats
    memory = ints[I_MEMORY]
    on_demand = memory == DEMAND
    takes_blocks = on_demand or memory == PROMISE
    kept_is_used = memory == DEMAND or memory == GROWING
    block, running, used, free = ints[I_BLOCK], ints[I_RUNNING], ints[I_USED], ints[I_FREE]
    held, now = held_tokens(ints), floats[F_NOW]
    per_step = floats[F_BASE] + floats[F_PER_DECODE] * running
    per_kv = floats[F_PER_KV]
    arrivals = trace.arrivals.shape[0]
    next_arrival = trace.arrivals[ints[I_NEXT]] if ints[I_NEXT] < arrivals else numba.float64(1e308)
    restart_at = floats[F_RESTART_AT] if floats[F_RESTART_EVERY] > 0.0 else numba.float64(1e308)
    starved = ints[I_WAITING] > 0 and ints[I_BLOCKED] == 1
    starved = starved and running < ints[I_MAX_SEQS] and running < ints[I_BUDGET]
    seconds, used_sum, held_sum, waiting_sum = 0.0, 0.0, 0.0, 0.0
    waiting, was_waiting = ints[I_WAITING], ints[I_WAITING] > 0
    asked, unheld = ints[I_ASKED], free_units(ints)
    phase = ints[I_PHASE]
    taken = 0
    while taken < most:
        if takes_blocks:
            more = st.crossings[phase]
            phase += 1
            if phase == block:
                phase = 0
            if more > 0:
                if more > free:
                    break
                free -= more
                if on_demand:
                    held += more * block
                    unheld = free
        used += running
        if starved and unheld >= asked:
            ints[I_REFUSED_WHILE_FREE] += 1
        span = per_step + per_kv * used
        seconds += span
        used_sum += used * span
        held_sum += held * span
        waiting_sum += waiting * span
        ints[I_SEEN_WAITING] = waiting
        now += span
        taken += 1
        if now >= next_arrival:
            floats[F_NOW] = now
            join_arrivals(st, trace)
            if not was_waiting and ints[I_WAITING] > 0:
                break
            waiting = ints[I_WAITING]
            next_arrival = trace.arrivals[ints[I_NEXT]] if ints[I_NEXT] < arrivals else numba.float64(1e308)
        if now >= restart_at:
            break
    floats[F_NOW] = now
    ints[I_USED] = used
    ints[I_FREE] = free
    kept_sum = used_sum if kept_is_used else ints[I_KEPT] * seconds
    external, never, batch = ints[I_EXTERNAL] * seconds, ints[I_NEVER] * seconds, running * seconds
    add_sums(log.busy, seconds, used_sum, held_sum, kept_sum, external, never, batch, waiting_sum)
    bucket = log.timeline[ints[I_BUCKET]]
    add_sums(bucket, seconds, used_sum, held_sum, kept_sum, external, never, batch, waiting_sum)
    if was_waiting:
        add_sums(log.saturated, seconds, used_sum, held_sum, kept_sum, external, never, batch, waiting_sum)
    return taken


@called
def jump(st, log, trace):
    """Take one stretch; return the number of its steps (0: take a plain step instead)."""
    ints = st.ints
    most = min(ints[I_STRIDE] - ints[I_IN_BUCKET], ints[I_NEXT_END] - ints[I_TICK], ints[I_NEXT_GROWTH] - ints[I_TICK])
    if most <= 0:
        return 0
    if ints[I_MEMORY] >= EXTENT:
        if ints[I_WAITING] > 0:
            ask(st, head_slot(st, trace))
        update_external(st)
    begin_bucket(st, log)
    taken = run_clock(st, log, trace, most)
    if taken > 0:
        ints[I_STEADY_USED] += taken * ints[I_STEADY]
        end_stretch(st, log, taken)
        turn_bucket(st)
        tick(ints, taken)
        emit(st, log, trace)
    return taken
