"""The compiled replay: steps and stretches until the trace is served."""

from __future__ import annotations

from kvledger.pool import buddy, extents
from kvledger.pool.compiled import compiled
from kvledger.replay._jump import can_jump, jump
from kvledger.replay._layout import *
from kvledger.replay._queue import judge, open_step
from kvledger.replay._restart import begin_restart
from kvledger.replay._step import preempt_last, step


@compiled
def start(st, trace):
    """Lay out the empty pool, judge every request, and set the clock to the first arrival."""
    ints, floats = st.ints, st.floats
    for request in range(trace.arrivals.shape[0]):
        trace.verdicts[request] = judge(st, trace, request)
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


@compiled
def restart(st):
    """Restart the server: everything that runs loses its memory and waits again; False when it gets nowhere."""
    ints = st.ints
    while ints[I_RUNNING] > 0:
        preempt_last(st)
        ints[I_PREEMPTIONS] -= 1
    if not begin_restart(st):
        return False
    if ints[I_PLACEMENT] == SEGMENTS:
        st.space[META] = 0
    else:
        st.space[META][extents.ROVER] = 0
    return True


@compiled
def run(st, log, trace, most):
    """Go on for up to ``most`` steps or stretches; return PAUSED, or why `open_step` takes no further one."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == GO:
            if not (can_jump(st) and jump(st, log, trace) > 0):
                step(st, log, trace)
        elif reason != IDLE:
            return reason
    return PAUSED
