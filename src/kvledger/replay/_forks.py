"""Block tables that fork and swap: one step of the scheduler over groups of sequences (compiled).

The scheduler is that of `_step`; who holds which block is the matter of `pool.forks`. All sequences of a request are
admitted, preempted and ended together, as the paper's scheduler does it (PagedAttention, SOSP'23, section 4.5). A step
computes one token of each, or a part of them when the budget ends there; when all of them are through, each emits one.
A preempted request goes to the host when that has room for its blocks and the policy swaps; else it is computed again.
"""

from __future__ import annotations

from typing import NamedTuple

import numba

from kvledger.pool import forks, prefix
from kvledger.pool.compiled import called, compiled, inlined
from kvledger.pool.content import Content
from kvledger.pool.forks import BEAM, FORKED, HOSTED, WIDTH, ForkTables, line_length
from kvledger.replay._fork_cache import find_hits, identify, refer_hits, swap_in
from kvledger.replay._layout import *
from kvledger.replay._queue import head_slot, leave, note_scheduled, open_step, put_in_front, seat
from kvledger.replay._record import FIRST_TOKEN, begin_bucket, close_step, note_latency, step_seconds
from kvledger.replay._restart import begin_restart

# Numbers of `Forked.counts`: sequences that run; blocks moved in this step, to the host and back in all; victims that
# were moved, those the host had no room for, and the most blocks it held; whether victims are moved; and the seed.
K_SEQUENCES, K_MOVED, K_OUT, K_IN, K_SWAPPED, K_NO_ROOM, K_PEAK_HOST, K_SWAPS, K_SEED = range(9)

# Numbers of `Forked.sums`: seconds times blocks that sequences would hold alone, and that they hold.
K_ALONE, K_TOGETHER = range(2)

# Numbers of `Forked.rates`: the chance that candidates are drawn anew after a step, and seconds to move one block.
K_TURNOVER, K_PER_BLOCK = range(2)


class Forked(NamedTuple):
    """The tables, and what is counted of them."""

    tables: ForkTables
    beams: Array  # (requests or 0,) bool: whose samples are candidates of a search
    counts: Array  # (9,) int64
    content: Content  # what is known of the requests, where a prefix cache looks for it
    hits: Array  # (3,) int64: what it found, by the numbers of `_shared`; (0, 0) without one
    sums: Array  # (2,) float64
    rates: Array  # (2,) float64


@inlined
def note_group(fk, trace, slot, request):
    """Note how many sequences a request at the head of the queue has."""
    group = fk.tables.groups[slot]
    group[WIDTH] = numba.int64(trace.samples[request]) if trace.samples.shape[0] > 0 else 1
    group[BEAM] = 1 if fk.beams.shape[0] > 0 and fk.beams[request] else 0


@inlined
def drop_memory(st, fk, slot):
    """Take everything from a request, so that it is computed again."""
    row = st.slots[slot]
    forks.give_up(fk.tables, slot, row[S_PROMPT], row[S_COMPUTED], st.ints[I_BLOCK])
    st.ints[I_RECOMPUTED] += row[S_COMPUTED]
    row[S_COMPUTED] = 0


@inlined
def move_out(st, fk, slot):
    """Move the blocks of a request to the host; False when nothing is swapped or there is no room."""
    t, row = fk.tables, st.slots[slot]
    if fk.counts[K_SWAPS] == 0:
        return False
    if not forks.swap_out(t, slot, row[S_PROMPT], row[S_COMPUTED], st.ints[I_BLOCK]):
        fk.counts[K_NO_ROOM] += 1
        return False
    moved = t.groups[slot, HOSTED]
    fk.counts[K_MOVED] += moved
    fk.counts[K_OUT] += moved
    fk.counts[K_SWAPPED] += 1
    fk.counts[K_PEAK_HOST] = max(fk.counts[K_PEAK_HOST], t.host.references.shape[0] - t.host.counts[prefix.FREE])
    return True


@inlined
def preempt(st, fk):
    """Take the blocks of the request admitted last and put it at the front of the queue."""
    ints = st.ints
    ints[I_RUNNING] -= 1
    slot = st.lists[ORDER, ints[I_RUNNING]]
    fk.counts[K_SEQUENCES] -= fk.tables.groups[slot, WIDTH]
    if not move_out(st, fk, slot):
        drop_memory(st, fk, slot)
    put_in_front(st, slot)
    return slot


@inlined
def make_place(st, fk, slot, n):
    """Take blocks for ``n`` more tokens, preempting the last as long as it takes; False when it was the last."""
    row = st.slots[slot]
    while not forks.extend(fk.tables, slot, row[S_PROMPT], row[S_COMPUTED], n, st.ints[I_BLOCK]):
        if preempt(st, fk) == slot:
            return False
    identify(st, fk, slot, row[S_COMPUTED], n)
    return True


@inlined
def known_tokens(st, fk, slot):
    """Return the tokens of a request's line that are known."""
    row = st.slots[slot]
    return line_length(row[S_PROMPT], row[S_GENERATED], fk.tables.groups[slot, WIDTH])


@inlined
def schedule(st, fk):
    """Phase 2: extend the running requests in admission order; return the tokens left of the budget."""
    ints = st.ints
    budget = ints[I_BUDGET]
    i = 0
    while i < ints[I_RUNNING] and budget > 0:
        slot = st.lists[ORDER, i]
        n = min(known_tokens(st, fk, slot) - st.slots[slot, S_COMPUTED], budget)
        if not make_place(st, fk, slot, n):
            break
        st.slots[slot, S_NOW] = n
        budget -= n
        i += 1
    note_scheduled(st, i)
    return budget


@inlined
def enter(st, fk, slot, hits, n):
    """Let an admitted group take what it has on the host and in the cache, and the blocks of its first chunk."""
    ints, t, row = st.ints, fk.tables, st.slots[slot]
    if t.groups[slot, HOSTED] > 0:
        moved = swap_in(st, fk, slot)
        fk.counts[K_MOVED] += moved
        fk.counts[K_IN] += moved
    else:
        refer_hits(st, fk, slot, hits)
    forks.extend(t, slot, row[S_PROMPT], row[S_COMPUTED], n, ints[I_BLOCK])
    identify(st, fk, slot, row[S_COMPUTED], n)


@inlined
def line_of(fk, prompt, tokens, slot):
    """Return the tokens of a group's line when every sequence has ``tokens``, or its prompt as many."""
    return tokens if tokens <= prompt else prompt + fk.tables.groups[slot, WIDTH] * (tokens - prompt)


@inlined
def admit_one(st, fk, slot, budget):
    """Give the head of the queue the blocks of its first chunk; return the tokens of that, 0 when refused."""
    ints, t = st.ints, fk.tables
    row = st.slots[slot]
    prompt, computed, hosted = row[S_PROMPT], row[S_COMPUTED], t.groups[slot, HOSTED]
    if fk.counts[K_SEQUENCES] + t.groups[slot, WIDTH] > ints[I_MAX_SEQS]:
        return 0
    hits, idle = 0, 0
    if hosted == 0:
        hits, idle = find_hits(st, fk, slot)
        computed = line_of(fk, prompt, hits * ints[I_BLOCK], slot)
    rest = known_tokens(st, fk, slot) - computed
    n = min(rest, budget)
    spare = ints[I_WATERMARK] if ints[I_SCHEDULED] > 0 else 0
    free = t.pool.counts[prefix.FREE]
    whole = hosted + idle + forks.count_needed(t, slot, prompt, computed, rest, ints[I_BLOCK])
    first = hosted + idle + forks.count_needed(t, slot, prompt, computed, n, ints[I_BLOCK])
    if (whole if ints[I_WHOLE] == 1 else first) + spare > free:
        if free >= whole:
            ints[I_REFUSED_WHILE_FREE] += 1
        return 0
    enter(st, fk, slot, hits, n)
    return n


@inlined
def admit_waiting(st, log, trace, fk, budget):
    """Phase 3: admit from the head of the queue until it is refused."""
    ints = st.ints
    while budget > 0 and ints[I_WAITING] > 0:
        slot = head_slot(st, trace)
        note_group(fk, trace, slot, st.slots[slot, S_REQUEST])
        n = admit_one(st, fk, slot, budget)
        if n == 0:
            return
        seat(st, log, trace, slot, n)
        fk.counts[K_SEQUENCES] += fk.tables.groups[slot, WIDTH]
        budget -= n


@inlined
def count_read(prompt, before, n, width):
    """Return the stored tokens that the sequences computing in this step read: their lengths after it."""
    after = before + n
    if after <= prompt:
        return after
    if after - max(before, prompt) >= width:
        return width * prompt + after - prompt
    read = 0
    for token in range(max(before, prompt), after):
        read += prompt + (token - prompt) // width + 1
    return read


@inlined
def compute(st, fk):
    """Phase 4: the scheduled requests compute their tokens; return what the clock needs."""
    ints = st.ints
    prefill, decodes, read = 0, 0, 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        row = st.slots[slot]
        n = row[S_NOW]
        if n == 0:
            continue
        width = fk.tables.groups[slot, WIDTH]
        read += count_read(row[S_PROMPT], row[S_COMPUTED], n, width)
        in_turn = row[S_COMPUTED] >= row[S_PROMPT]
        row[S_COMPUTED] += n
        if in_turn and n <= width and row[S_GENERATED] > 0 and row[S_COMPUTED] == known_tokens(st, fk, slot):
            decodes += n
        else:
            prefill += n
    return prefill, decodes, read


@inlined
def account_sharing(st, log, fk, seconds):
    """Add what only forked tables have: the tokens, and the blocks, that sharing saves."""
    ints, t = st.ints, fk.tables
    tokens, blocks = 0, 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        row, group = st.slots[slot], t.groups[slot]
        forked = group[FORKED] == 1
        tokens += forks.logical_tokens(row[S_PROMPT], row[S_COMPUTED], group[WIDTH], forked)
        blocks += forks.logical_blocks(row[S_PROMPT], row[S_COMPUTED], group[WIDTH], forked, ints[I_BLOCK])
    saved = (tokens - ints[I_USED]) * seconds
    cached = t.pool.counts[prefix.CACHED] * ints[I_BLOCK] * seconds
    log.busy[A_CACHED] += cached
    log.timeline[ints[I_BUCKET], A_CACHED] += cached
    log.busy[A_SAVED] += saved
    log.timeline[ints[I_BUCKET], A_SAVED] += saved
    if ints[I_WAITING] > 0:
        log.saturated[A_CACHED] += cached
        log.saturated[A_SAVED] += saved
    fk.sums[K_ALONE] += blocks * seconds
    fk.sums[K_TOGETHER] += (ints[I_CAPACITY] - ints[I_FREE]) * seconds


@inlined
def search_on(st, fk, slot):
    """Let the candidates of a search fork and die, in some steps, after each has got a token."""
    row = st.slots[slot]
    draw = numba.uint64(fk.counts[K_SEED]) ^ prefix.mix(numba.uint64(row[S_REQUEST]))
    key = prefix.mix(draw ^ (numba.uint64(row[S_GENERATED]) << numba.uint64(32)))
    if numba.float64(key >> numba.uint64(11)) * 2.0**-53 < fk.rates[K_TURNOVER]:
        forks.reselect(fk.tables, slot, row[S_PROMPT], row[S_COMPUTED], st.ints[I_BLOCK], key)


@inlined
def emit_tokens(st, log, trace, fk):
    """Phase 5: sequences of requests with everything computed emit a token; those that have all of theirs end."""
    ints, t = st.ints, fk.tables
    kept = 0
    for i in range(ints[I_RUNNING]):
        slot = st.lists[ORDER, i]
        st.lists[ORDER, kept] = slot
        kept += 1
        row = st.slots[slot]
        if row[S_NOW] == 0 or row[S_COMPUTED] != known_tokens(st, fk, slot):
            continue
        row[S_GENERATED] += 1
        if row[S_GENERATED] == 1:
            note_latency(log, trace, FIRST_TOKEN, row[S_REQUEST], st.floats[F_NOW])
        width = t.groups[slot, WIDTH]
        if row[S_GENERATED] == row[S_OUTPUT]:
            forks.give_up(t, slot, row[S_PROMPT], row[S_COMPUTED], ints[I_BLOCK])
            leave(st, log, trace, slot)
            ints[I_OUTPUT] += (width - 1) * row[S_OUTPUT]
            fk.counts[K_SEQUENCES] -= width
            kept -= 1
        elif row[S_GENERATED] == 1:
            forks.fork(t, slot, row[S_PROMPT], ints[I_BLOCK])
        elif t.groups[slot, BEAM] == 1:
            search_on(st, fk, slot)
    ints[I_RUNNING] = kept


@called
def fork_step(st, log, trace, fk):
    """Run one whole step."""
    ints, floats, t = st.ints, st.floats, fk.tables
    ints[I_PREEMPTED_NOW] = 0
    fk.counts[K_MOVED] = 0
    budget = schedule(st, fk)
    if ints[I_PREEMPTED_NOW] == 0:
        admit_waiting(st, log, trace, fk, budget)
    prefill, decodes, read = compute(st, fk)
    ints[I_USED] = t.counts[forks.FILLED]
    ints[I_FREE] = t.pool.counts[prefix.FREE]
    begin_bucket(st, log)
    if log.rows.shape[0] > 0:
        log.rows[ints[I_ROWS], ROW_CACHED] = t.pool.counts[prefix.CACHED] * ints[I_BLOCK]
    seconds = step_seconds(floats, prefill, decodes, read) + fk.rates[K_PER_BLOCK] * fk.counts[K_MOVED]
    account_sharing(st, log, fk, seconds)
    requests = ints[I_RUNNING]
    ints[I_RUNNING] = fk.counts[K_SEQUENCES]
    close_step(st, log, seconds)
    ints[I_RUNNING] = requests
    emit_tokens(st, log, trace, fk)
    ints[I_USED] = t.counts[forks.FILLED]
    ints[I_FREE] = t.pool.counts[prefix.FREE]


@compiled
def restart(st, fk):
    """Restart the server: everything on the device and on the host is lost; False when it gets nowhere."""
    ints = st.ints
    while ints[I_RUNNING] > 0:
        ints[I_RUNNING] -= 1
        slot = st.lists[ORDER, ints[I_RUNNING]]
        drop_memory(st, fk, slot)
        put_in_front(st, slot)
        ints[I_PREEMPTIONS] -= 1
    fk.counts[K_SEQUENCES] = 0
    for i in range(ints[I_STACKED]):
        if fk.tables.groups[st.lists[STACK, i], HOSTED] > 0:
            drop_memory(st, fk, st.lists[STACK, i])
    prefix.forget_all(fk.tables.pool)
    ints[I_FREE] = fk.tables.pool.counts[prefix.FREE]
    return begin_restart(st)


@compiled
def run_forks(st, log, trace, fk, most):
    """Go on for up to ``most`` steps; return PAUSED, or why `open_step` takes no further one."""
    for _ in range(most):
        reason = open_step(st, log, trace)
        if reason == GO:
            fork_step(st, log, trace, fk)
        elif reason != IDLE:
            return reason
    return PAUSED
