"""The waiting queue: who joins it, who is at its head, and how requests get into and out of a seat (compiled)."""

from __future__ import annotations

import numba

from kvledger.pool.compiled import inlined
from kvledger.replay._layout import *
from kvledger.replay._memory import never_fits
from kvledger.replay._record import ENDED, FIRST_TOKEN, QUEUED, note_latency

ADMISSIBLE, TOO_LONG, TOO_LARGE, TOO_MANY = range(4)
SILENT, EMITTED, LAST = range(3)


@inlined
def lengths_of(st, trace, request):
    """Return prompt, output and limit of a request of the trace, with the limit and the output clamped."""
    prompt = numba.int64(trace.prompts[request])
    output = numba.int64(trace.outputs[request])
    room = st.ints[I_MAX_LEN] - prompt
    limit = room
    if trace.limits.shape[0] > 0 and trace.limits[request] > 0:
        limit = min(numba.int64(trace.limits[request]), room)
    limit = max(limit, 1)
    return prompt, min(output, limit), limit


@inlined
def judge(st, trace, request):
    """Tell whether a request of the trace can be served at all."""
    prompt, output, limit = lengths_of(st, trace, request)
    if prompt >= st.ints[I_MAX_LEN]:
        return TOO_LONG
    samples = numba.int64(trace.samples[request]) if trace.samples.shape[0] > 0 else 1
    if samples > st.ints[I_MAX_SEQS]:
        return TOO_MANY
    if never_fits(st.ints, prompt, output, limit, samples):
        return TOO_LARGE
    return ADMISSIBLE


@inlined
def join_arrivals(st, trace):
    """Let everything that has arrived by now join the queue, and count what is rejected."""
    ints = st.ints
    total = trace.arrivals.shape[0]
    i = ints[I_NEXT]
    while i < total and trace.arrivals[i] <= st.floats[F_NOW]:
        verdict = trace.verdicts[i]
        if verdict == TOO_LONG:
            ints[I_TOO_LONG] += 1
        elif verdict == TOO_LARGE:
            ints[I_TOO_LARGE] += 1
        elif verdict == TOO_MANY:
            ints[I_TOO_MANY] += 1
        else:
            if ints[I_WAITING] == 0:
                ints[I_BLOCKED] = 0
            ints[I_WAITING] += 1
            if lengths_of(st, trace, i)[1] < trace.outputs[i]:
                ints[I_TRUNCATED] += 1
        i += 1
    ints[I_NEXT] = i


@inlined
def head_slot(st, trace):
    """Return the slot of the request at the head of the queue; a new one is loaded first."""
    ints = st.ints
    if ints[I_STACKED] > 0:
        return st.lists[STACK, ints[I_STACKED] - 1]
    if ints[I_HEAD_SLOT] < 0:
        while trace.verdicts[ints[I_HEAD]] != ADMISSIBLE:
            ints[I_HEAD] += 1
        ints[I_SPARE] -= 1
        slot = st.lists[SPARE, ints[I_SPARE]]
        row = st.slots[slot]
        for field in range(S_LEN):
            row[field] = 0
        row[S_REQUEST] = ints[I_HEAD]
        row[S_PROMPT], row[S_OUTPUT], row[S_LIMIT] = lengths_of(st, trace, ints[I_HEAD])
        ints[I_HEAD_SLOT] = slot
    return ints[I_HEAD_SLOT]


@inlined
def open_step(st, log, trace):
    """Let what has arrived join, at the next arrival when nothing is there; return whether a step can be taken.

    GO: it can. IDLE: all that arrived was rejected. DONE: the trace is served. FULL: the rows must be taken away first.
    CROWDED: the timeline must be halved first. RESTART: the server must be restarted first.
    """
    ints, floats = st.ints, st.floats
    if log.rows.shape[0] > 0 and ints[I_ROWS] == log.rows.shape[0]:
        return FULL
    if ints[I_BUCKET] == BUCKETS:
        return CROWDED
    if ints[I_RUNNING] == 0 and ints[I_WAITING] == 0:
        if ints[I_NEXT] == trace.arrivals.shape[0]:
            return DONE
        floats[F_NOW] = max(floats[F_NOW], trace.arrivals[ints[I_NEXT]])
    join_arrivals(st, trace)
    if ints[I_RUNNING] == 0 and ints[I_WAITING] == 0:
        return IDLE
    return RESTART if floats[F_RESTART_EVERY] > 0.0 and floats[F_NOW] >= floats[F_RESTART_AT] else GO


@inlined
def note_scheduled(st, count):
    """Note that the first ``count`` running requests compute tokens in this step, and the rest none."""
    st.ints[I_SCHEDULED] = count
    for i in range(count, st.ints[I_RUNNING]):
        st.slots[st.lists[ORDER, i], S_NOW] = 0


@inlined
def emit_one(st, log, trace, slot):
    """Let a request with everything computed emit a token; return SILENT, EMITTED, or LAST."""
    row = st.slots[slot]
    if row[S_NOW] == 0 or row[S_COMPUTED] != row[S_PROMPT] + row[S_GENERATED]:
        return SILENT
    row[S_GENERATED] += 1
    if row[S_GENERATED] == 1:
        note_latency(log, trace, FIRST_TOKEN, row[S_REQUEST], st.floats[F_NOW])
    return LAST if row[S_GENERATED] == row[S_OUTPUT] else EMITTED


@inlined
def put_in_front(st, slot):
    """Put a request whose memory was taken away at the front of the queue."""
    ints = st.ints
    ints[I_PREEMPTIONS] += 1
    ints[I_PREEMPTED_NOW] = 1
    st.slots[slot, S_NOW] = 0
    st.lists[STACK, ints[I_STACKED]] = slot
    ints[I_STACKED] += 1
    ints[I_WAITING] += 1


@inlined
def seat(st, log, trace, slot, n):
    """Move the head of the queue, which was given its memory, among the running; it computes ``n`` tokens now."""
    ints = st.ints
    if ints[I_STACKED] > 0:
        ints[I_STACKED] -= 1
    else:
        note_latency(log, trace, QUEUED, st.slots[slot, S_REQUEST], st.floats[F_NOW])
        ints[I_HEAD] += 1
        ints[I_HEAD_SLOT] = -1
    st.lists[ORDER, ints[I_RUNNING]] = slot
    ints[I_RUNNING] += 1
    ints[I_WAITING] -= 1
    ints[I_SCHEDULED] += 1
    st.slots[slot, S_NOW] = n


@inlined
def leave(st, log, trace, slot):
    """Count a request whose memory was freed at its end, note its latency, and give its slot back."""
    ints = st.ints
    row = st.slots[slot]
    ints[I_FINISHED] += 1
    ints[I_PROMPT] += row[S_PROMPT]
    ints[I_OUTPUT] += row[S_OUTPUT]
    note_latency(log, trace, ENDED, row[S_REQUEST], st.floats[F_NOW])
    st.lists[SPARE, ints[I_SPARE]] = slot
    ints[I_SPARE] += 1
