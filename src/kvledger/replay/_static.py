"""Static batching, as a naive ``generate(batch)`` does it (compiled).

A batch takes requests from the head of the queue while ``rows * (longest prompt + longest output)`` fits the pool, runs
to the end of its longest row, and only then returns its results and its memory. Prompts are padded on the left to the
longest; a row that has ended is computed on as padding. The prompts are one step, without a token budget.

Accounts: an unended row keeps its own prompt and the longest output (``reserved``, what is not computed); left padding
and ended rows are held only because the batch is one block, so they are ``internal``. The extent is one, so nothing is
external.
"""

from __future__ import annotations

from kvledger.pool.compiled import compiled, inlined
from kvledger.replay._layout import *
from kvledger.replay._queue import head_slot, leave, open_step, put_in_front, seat
from kvledger.replay._record import FIRST_TOKEN, close_step, note_latency, step_seconds
from kvledger.replay._restart import begin_restart


@inlined
def form_batch(st, log, trace):
    """Take the next batch from the queue."""
    ints = st.ints
    longest_prompt, longest_output = 0, 0
    while ints[I_WAITING] > 0 and ints[I_RUNNING] < ints[I_MAX_SEQS]:
        slot = head_slot(st, trace)
        row = st.slots[slot]
        prompt = max(longest_prompt, row[S_PROMPT])
        output = max(longest_output, row[S_OUTPUT])
        if (ints[I_RUNNING] + 1) * (prompt + output) > ints[I_CAPACITY]:
            break
        longest_prompt, longest_output = prompt, output
        seat(st, log, trace, slot, row[S_PROMPT])
    ints[I_HELD] = ints[I_RUNNING] * (longest_prompt + longest_output)
    ints[I_FREE] = ints[I_CAPACITY] - ints[I_HELD]
    ints[I_BATCH_PROMPT] = longest_prompt
    ints[I_BATCH_OUTPUT] = longest_output
    ints[I_BATCH_STEP] = 0


@inlined
def count_rows(st):
    """Recount what the unended rows use and keep at the step about to be taken, and when the next row ends."""
    ints = st.ints
    t = ints[I_BATCH_STEP]
    ints[I_USED], ints[I_KEPT], ints[I_NEVER] = 0, 0, 0
    ints[I_BATCH_NEXT] = ints[I_BATCH_OUTPUT]
    active = 0
    for i in range(ints[I_RUNNING]):
        row = st.slots[st.lists[ORDER, i]]
        if row[S_OUTPUT] >= t:
            active += 1
            ints[I_USED] += row[S_PROMPT] + t - 1
            ints[I_KEPT] += row[S_PROMPT] + ints[I_BATCH_OUTPUT]
            ints[I_NEVER] += ints[I_BATCH_OUTPUT] - row[S_OUTPUT] + 1
            ints[I_BATCH_NEXT] = min(ints[I_BATCH_NEXT], row[S_OUTPUT])
    ints[I_SCHEDULED] = active


@inlined
def step_batch(st, log, trace):
    """Take one step of the batch: all prompts at first, then one token of every row."""
    ints, floats = st.ints, st.floats
    ints[I_BATCH_STEP] += 1
    t = ints[I_BATCH_STEP]
    if t == 1 or t > ints[I_BATCH_NEXT]:
        count_rows(st)
    else:
        ints[I_USED] += ints[I_SCHEDULED]
    if ints[I_WAITING] > 0:
        row = st.slots[head_slot(st, trace)]
        if ints[I_FREE] >= row[S_PROMPT] + row[S_OUTPUT]:
            ints[I_REFUSED_WHILE_FREE] += 1
    rows = ints[I_RUNNING]
    prefill = rows * ints[I_BATCH_PROMPT] if t == 1 else 0
    decodes = 0 if t == 1 else rows
    read = rows * (ints[I_BATCH_PROMPT] + t - 1)
    close_step(st, log, step_seconds(floats, prefill, decodes, read))


@inlined
def leave_memory(st):
    """Give the memory of the batch back."""
    ints = st.ints
    ints[I_RUNNING] = 0
    ints[I_HELD], ints[I_USED], ints[I_KEPT], ints[I_NEVER] = 0, 0, 0, 0
    ints[I_FREE] = ints[I_CAPACITY]


@inlined
def end_batch(st, log, trace):
    """Return the results and the memory of the whole batch."""
    ints = st.ints
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        note_latency(log, trace, FIRST_TOKEN, row[S_REQUEST], st.floats[F_NOW])
        leave(st, log, trace, slot)
    leave_memory(st)


@compiled
def restart(st):
    """Restart the server: the batch that runs is lost, and its rows wait again; False when none ever ends."""
    ints = st.ints
    for i in range(ints[I_RUNNING] - 1, -1, -1):
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        if ints[I_BATCH_STEP] > 0:
            ints[I_RECOMPUTED] += row[S_PROMPT] + min(ints[I_BATCH_STEP], row[S_OUTPUT]) - 1
        put_in_front(st, slot)
        ints[I_PREEMPTIONS] -= 1
    leave_memory(st)
    return begin_restart(st)


@compiled
def run_static(st, log, trace, most):
    """Go on for up to ``most`` steps; return PAUSED, or why `open_step` takes no further one."""
    ints = st.ints
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == IDLE:
            continue
        if reason != GO:
            return reason
        if ints[I_RUNNING] == 0:
            form_batch(st, log, trace)
        step_batch(st, log, trace)
        if ints[I_BATCH_STEP] == ints[I_BATCH_OUTPUT]:
            end_batch(st, log, trace)
    return PAUSED
