"""The compiled replay: steps and stretches until the trace is served."""

from __future__ import annotations

from kvledger.pool import buddy, extents
from kvledger.pool.compiled import called, compiled
from kvledger.replay._jump import can_jump, jump
from kvledger.replay._layout import *
from kvledger.replay._queue import open_step
from kvledger.replay._step import preempt_last, step


@compiled
def start(st, trace):
    """Lay out the empty pool and set the clock to the first arrival."""
    ints, floats = st.ints, st.floats
    ints[I_FREE] = ints[I_CAPACITY]
    if ints[I_PLACEMENT] == SEGMENTS:
        st.space[META] = 0
    elif ints[I_PLACEMENT] == extents.BUDDY:
        buddy.reset(st.space[BUDDIES:], st.space[COUNTS], ints[I_CAPACITY])
    else:
        extents.reset(st.space[HOLES], st.space[SIZES], st.space[META], ints[I_CAPACITY])
    if trace.arrivals.shape[0] > 0:
        floats[F_NOW] = trace.arrivals[0]
        floats[F_FIRST_ARRIVAL] = trace.arrivals[0]
        floats[F_RESTART_AT] = trace.arrivals[0] + floats[F_RESTART_EVERY]


@called
def restart(st):
    """Restart the server: everything that runs loses its memory and waits again, and time passes.

    Return False when no token has come out since the last restart. Every stretch between two restarts begins with the
    same queue and an empty pool, so none ever will.
    """
    ints, floats = st.ints, st.floats
    while ints[I_RUNNING] > 0:
        preempt_last(st)
        ints[I_PREEMPTIONS] -= 1
    progress = 1 + ints[I_OUTPUT] + (ints[I_STUCK] << 40)
    for i in range(ints[I_STACKED]):
        progress += st.slots[st.lists[STACK, i], S_GENERATED]
    if progress == ints[I_PROGRESS]:
        return False
    ints[I_PROGRESS] = progress
    ints[I_RESTARTS] += 1
    floats[F_NOW] += floats[F_RESTART_DOWN]
    floats[F_DOWN] += floats[F_RESTART_DOWN]
    floats[F_RESTART_AT] = floats[F_NOW] + floats[F_RESTART_EVERY]
    if ints[I_PLACEMENT] == SEGMENTS:
        st.space[META] = 0
    else:
        st.space[META][extents.ROVER] = 0
    return True


@compiled
def run(st, log, trace, most):
    """Go on for up to ``most`` steps or stretches.

    Return DONE, PAUSED, FULL (the rows must be taken away) or STALLED (restarts leave no time to compute anything).
    """
    floats = st.floats
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == DONE or reason == FULL:
            return reason
        if reason == IDLE:
            continue
        if floats[F_RESTART_EVERY] > 0.0 and floats[F_NOW] >= floats[F_RESTART_AT]:
            if not restart(st):
                return STALLED
            continue
        if can_jump(st) and jump(st, log, trace) > 0:
            continue
        step(st, log, trace)
    return PAUSED
