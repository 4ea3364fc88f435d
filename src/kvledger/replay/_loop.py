"""The compiled replay: steps and stretches until the trace is served."""

from __future__ import annotations

from kvledger.pool import buddy, extents
from kvledger.pool.compiled import compiled
from kvledger.replay._jump import can_jump, jump
from kvledger.replay._layout import *
from kvledger.replay._step import join_arrivals, preempt_last, step


@compiled
def start(st):
    """Lay out the empty pool and set the clock to the first arrival."""
    ints, floats = st.ints, st.floats
    ints[I_FREE] = ints[I_CAPACITY]
    if ints[I_PLACEMENT] == extents.BUDDY:
        buddy.reset(st.buddies, st.buddy_counts, ints[I_CAPACITY])
    else:
        extents.reset(st.holes, st.hole_sizes, st.hole_meta, ints[I_CAPACITY])
    if st.arrivals.shape[0] > 0:
        floats[F_NOW] = st.arrivals[0]
        floats[F_FIRST_ARRIVAL] = st.arrivals[0]
        floats[F_RESTART_AT] = st.arrivals[0] + floats[F_RESTART_EVERY]


@compiled
def restart(st):
    """Restart the server: everything that runs loses its memory and waits again, and time passes."""
    ints, floats = st.ints, st.floats
    while ints[I_RUNNING] > 0:
        preempt_last(st)
        ints[I_PREEMPTIONS] -= 1
    ints[I_RESTARTS] += 1
    floats[F_NOW] += floats[F_RESTART_DOWN]
    floats[F_DOWN] += floats[F_RESTART_DOWN]
    floats[F_RESTART_AT] = floats[F_NOW] + floats[F_RESTART_EVERY]
    st.hole_meta[extents.ROVER] = 0


@compiled
def run(st, most):
    """Go on for up to ``most`` steps or stretches; return DONE, PAUSED, or FULL (the rows must be taken away)."""
    ints, floats = st.ints, st.floats
    total = st.arrivals.shape[0]
    for _ in range(most):
        if st.rows.shape[0] > 0 and ints[I_ROWS] == st.rows.shape[0]:
            return FULL
        if ints[I_RUNNING] == 0 and ints[I_WAITING] == 0:
            if ints[I_NEXT] == total:
                return DONE
            floats[F_NOW] = max(floats[F_NOW], st.arrivals[ints[I_NEXT]])
        join_arrivals(st)
        if ints[I_RUNNING] == 0 and ints[I_WAITING] == 0:
            continue
        if floats[F_RESTART_EVERY] > 0.0 and floats[F_NOW] >= floats[F_RESTART_AT]:
            restart(st)
            continue
        if can_jump(st) and jump(st) > 0:
            continue
        step(st)
    return PAUSED
