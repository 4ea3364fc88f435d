"""Where the compiled replay keeps its state: index names, and the arrays they index.

The kernels take one `State` of arrays. Scalars live in ``ints`` and ``floats``, requests that run or were preempted in
``slots`` (one row each), so that memory does not depend on the length of the trace.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvledger.pool import buddy, segments

Array = Any  # a numpy array; numba knows its type


# Integers: settings first, then state, then counters.
(
    I_MEMORY,
    I_RESERVATION,
    I_PLACEMENT,
    I_GROWTH,
    I_STEP,
    I_BLOCK,
    I_BUFFER,
    I_GRAIN,
    I_TOKEN_BYTES,
    I_CAPACITY,
    I_WATERMARK,
    I_WHOLE,
    I_MAX_LEN,
    I_MAX_SEQS,
    I_BUDGET,
    I_FAST,
    I_NEXT,
    I_HEAD,
    I_WAITING,
    I_STACKED,
    I_RUNNING,
    I_STEADY,
    I_STEADY_USED,
    I_TICK,
    I_PHASE,
    I_NEXT_END,
    I_NEXT_GROWTH,
    I_BLOCKED,
    I_FREE,
    I_PROMISED,
    I_USED,
    I_HELD,
    I_KEPT,
    I_NEVER,
    I_ASKED,
    I_EXTERNAL,
    I_PLACED,
    I_DIRTY,
    I_SCHEDULED,
    I_PREEMPTED_NOW,
    I_SPARE,
    I_HEAD_SLOT,
    I_SEEN_WAITING,
    I_BATCH_PROMPT,
    I_BATCH_OUTPUT,
    I_BATCH_STEP,
    I_BATCH_NEXT,
    I_STEPS,
    I_PREEMPTIONS,
    I_REFUSED_WHILE_FREE,
    I_FINISHED,
    I_TOO_LONG,
    I_TOO_LARGE,
    I_STUCK,
    I_TRUNCATED,
    I_PEAK_RUNNING,
    I_PEAK_WAITING,
    I_RECOMPUTED,
    I_COPIED,
    I_RESTARTS,
    I_OUTPUT,
    I_PROMPT,
    I_BUCKET,
    I_STRIDE,
    I_IN_BUCKET,
    I_ROWS,
    I_PROGRESS,
    I_MOST_TOKENS,
    I_TOO_MANY,
) = range(69)
I_LEN = 69

# Floats: the clock, restarts, and where time began.
(
    F_NOW,
    F_BASE,
    F_PER_PREFILL,
    F_PER_DECODE,
    F_PER_KV,
    F_RESTART_EVERY,
    F_RESTART_DOWN,
    F_RESTART_AT,
    F_DOWN,
    F_FIRST_ARRIVAL,
) = range(10)
F_LEN = 10

# Sums over time, of one stretch: seconds, then token-seconds and request-seconds.
(
    A_SECONDS,
    A_USED,
    A_HELD,
    A_KEPT,
    A_EXTERNAL,
    A_NEVER,
    A_RUNNING,
    A_WAITING,
    A_CACHED,
    A_SAVED,
    A_STALE,
) = range(11)
A_LEN = 11

# One slot: a request that runs, or was preempted and waits.
(
    S_REQUEST,
    S_PROMPT,
    S_OUTPUT,
    S_LIMIT,
    S_GENERATED,
    S_COMPUTED,
    S_UNITS,
    S_ADDRESS,
    S_KEPT,
    S_NEVER,
    S_NOW,
    S_STUCK,
    S_OFFSET,
    S_END,
    S_GROWTH,
    S_PHASE,
    S_FITS,
) = range(17)
S_LEN = 17

# One bucket of the timeline: the sums of A_*, then where it starts and its peaks.
(
    B_START,
    B_STEPS,
    B_PEAK_USED,
    B_PEAK_HELD,
    B_PEAK_EXTERNAL,
    B_PEAK_RUNNING,
    B_PEAK_WAITING,
    B_PREEMPTIONS,
) = range(A_LEN, A_LEN + 8)
B_LEN = A_LEN + 8

# How memory is handed out, as the kernels see it.
FORKS, GROUPS, DEMAND, UPFRONT, PROMISE, EXTENT, GROWING, BATCH = range(-2, 6)

# A placement beside those of `extents`: inside segments, sizes in units of 512 bytes.
SEGMENTS = 5

# Why a kernel returns; GO and IDLE only inside, STALLED only after a restart. What is rare is left to the caller, as it
# would only take time to compile: rows to be taken away, a timeline to be halved, a restart.
DONE, PAUSED, FULL, CROWDED, RESTART, STALLED, GO, IDLE = range(8)

NEVER_TICK = 2**62

# An argument of large kernels: Numba compiles one anew for every number that is written out.
ONE = np.int64(1)

BUCKETS = 2048
ROWS = 65536
SERIES_COLUMNS = 11  # step, running, waiting, preemptions, used_blocks, used, held, kept, external, never, cached
ROW_CACHED = 10
LATENCY_BINS = 64 * 256


# Rows of `Core.lists`: slots that run in admission order, preempted ones (the next to come back last), and unused ones.
ORDER, STACK, SPARE = range(3)

# Rows of `Core.space`: the holes of extents (addresses, sizes, meta), then the buddies (counts, free blocks by order).
HOLES, SIZES, META, COUNTS, BUDDIES = range(5)


class Core(NamedTuple):
    """What changes while requests run (shapes in the comments)."""

    ints: Array  # (I_LEN,) int64
    floats: Array  # (F_LEN,) float64
    slots: Array  # (max_num_seqs + 1, S_LEN) int64
    lists: Array  # (3, max_num_seqs + 1) int64
    space: Array  # (BUDDIES + ORDERS, at least max_num_seqs + 2) int64
    crossings: Array  # (block_size,) int64, how many steady requests need a block at each phase
    blocks: Array  # (segments.FIELDS, limit) int64 where extents lie in segments, else (0,)


class Log(NamedTuple):
    """What is remembered."""

    busy: Array  # (A_LEN,) float64
    saturated: Array  # (A_LEN,) float64
    timeline: Array  # (BUCKETS, B_LEN) float64
    rows: Array  # (ROWS or 0, SERIES_COLUMNS) int64
    row_times: Array  # (ROWS or 0,) float64
    latencies: Array  # (3, requests or 0) float64: first scheduled, first token, end
    latency_counts: Array  # (3, LATENCY_BINS) int64
    latency_sums: Array  # (3, 2) float64: sum, maximum


class Columns(NamedTuple):
    """The trace."""

    arrivals: Array  # (requests,) float64
    prompts: Array  # (requests,) int32
    outputs: Array  # (requests,) int32
    limits: Array  # (requests or 0,) int32
    samples: Array  # (requests or 0,) int32: sequences of each request that share its blocks
    verdicts: Array  # (requests,) int8: whether each can be served at all (`_queue.judge`), filled in at the start


class State(NamedTuple):
    """All arrays of one replay, in the groups that the kernels take."""

    core: Core
    log: Log
    trace: Columns


def new_state(
    columns: Columns, *, max_seqs: int, block_size: int, segment_blocks: int, series: bool, exact_latencies: bool
) -> State:
    """Return a zeroed state over the columns of a trace."""
    n = len(columns.arrivals)
    rows = ROWS if series else 0
    core = Core(
        ints=np.zeros(I_LEN, np.int64),
        floats=np.zeros(F_LEN, np.float64),
        slots=np.zeros((max_seqs + 1, S_LEN), np.int64),
        lists=np.zeros((3, max_seqs + 1), np.int64),
        space=np.zeros((BUDDIES + buddy.ORDERS, max(max_seqs + 2, buddy.ORDERS)), np.int64),
        crossings=np.zeros(block_size, np.int64),
        blocks=segments.new_blocks(segment_blocks) if segment_blocks else np.zeros(0, np.int64),
    )
    log = Log(
        busy=np.zeros(A_LEN, np.float64),
        saturated=np.zeros(A_LEN, np.float64),
        timeline=np.zeros((BUCKETS, B_LEN), np.float64),
        rows=np.zeros((rows, SERIES_COLUMNS), np.int64),
        row_times=np.zeros(rows, np.float64),
        latencies=np.full((3, n if exact_latencies else 0), np.nan),
        latency_counts=np.zeros((3, LATENCY_BINS), np.int64),
        latency_sums=np.zeros((3, 2), np.float64),
    )
    core.lists[SPARE] = np.arange(max_seqs, -1, -1)
    core.ints[I_STRIDE] = 1
    core.ints[I_SPARE] = max_seqs + 1
    core.ints[I_HEAD_SLOT] = -1
    core.ints[I_NEXT_END] = NEVER_TICK
    core.ints[I_NEXT_GROWTH] = NEVER_TICK
    return State(core=core, log=log, trace=columns)
