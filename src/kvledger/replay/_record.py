"""What the compiled replay remembers: sums over time, a bounded timeline, latencies, rows (compiled)."""

from __future__ import annotations

import math

import numpy as np

from kvledger.pool.compiled import inlined
from kvledger.replay._layout import *
from kvledger.replay._memory import held_tokens, kept_tokens

# Rows of `Log.latencies`.
QUEUED, FIRST_TOKEN, ENDED = np.arange(3)


@inlined
def note_latency(log, trace, what, request, now):
    """Note a moment in the life of a request: its exact time when there is room, else one count in a histogram.

    Bins are 1/256 of an octave from 2**-30 s, so a percentile read from them is within 0.14 %.
    """
    if log.latencies.shape[1] > 0:
        log.latencies[what, request] = now
        return
    seconds = now - trace.arrivals[request]
    log.latency_sums[what, 0] += seconds
    log.latency_sums[what, 1] = max(log.latency_sums[what, 1], seconds)
    index = 0
    if seconds > 2.0**-30:
        index = min(LATENCY_BINS - 1, int((math.log2(seconds) + 30.0) * 256.0))
    log.latency_counts[what, index] += 1


@inlined
def begin_bucket(st, log):
    """Open the current bucket of the timeline, unless it is open."""
    if st.ints[I_IN_BUCKET] == 0:
        log.timeline[st.ints[I_BUCKET], B_START] = st.floats[F_NOW]


def halve_timeline(ints: Array, timeline: Array) -> None:
    """Join neighbours of a timeline whose buckets are all filled, and double the stride (not compiled: it is rare)."""
    first, second = timeline[0::2], timeline[1::2]
    joined = np.zeros_like(timeline)
    half = joined[: len(first)]
    half[:, :A_LEN] = first[:, :A_LEN] + second[:, :A_LEN]
    half[:, B_START] = first[:, B_START]
    half[:, B_STEPS] = first[:, B_STEPS] + second[:, B_STEPS]
    peaks = slice(B_PEAK_USED, B_PEAK_WAITING + 1)
    half[:, peaks] = np.maximum(first[:, peaks], second[:, peaks])
    half[:, B_PREEMPTIONS] = second[:, B_PREEMPTIONS]
    timeline[:] = joined
    ints[I_BUCKET] = len(first)
    ints[I_STRIDE] *= 2


@inlined
def end_stretch(st, log, steps):
    """Close ``steps`` steps: peaks, counters and the bucket. The sums were added by the caller."""
    ints = st.ints
    ints[I_STEPS] += steps
    ints[I_IN_BUCKET] += steps
    ints[I_PEAK_RUNNING] = max(ints[I_PEAK_RUNNING], ints[I_RUNNING])
    ints[I_PEAK_WAITING] = max(ints[I_PEAK_WAITING], ints[I_SEEN_WAITING])
    bucket = log.timeline[ints[I_BUCKET]]
    bucket[B_STEPS] += steps
    bucket[B_PEAK_USED] = max(bucket[B_PEAK_USED], ints[I_USED])
    bucket[B_PEAK_HELD] = max(bucket[B_PEAK_HELD], held_tokens(ints))
    bucket[B_PEAK_EXTERNAL] = max(bucket[B_PEAK_EXTERNAL], ints[I_EXTERNAL])
    bucket[B_PEAK_RUNNING] = max(bucket[B_PEAK_RUNNING], ints[I_RUNNING])
    bucket[B_PEAK_WAITING] = max(bucket[B_PEAK_WAITING], ints[I_SEEN_WAITING])
    bucket[B_PREEMPTIONS] = ints[I_PREEMPTIONS]


@inlined
def turn_bucket(st):
    """Go on to the next bucket when the current one has its steps."""
    ints = st.ints
    if ints[I_IN_BUCKET] >= ints[I_STRIDE]:
        ints[I_IN_BUCKET] = 0
        ints[I_BUCKET] += 1


@inlined
def add_sums(sums, seconds, used, held, kept, external, never, running, waiting):
    """Add one stretch, already multiplied by its seconds."""
    sums[A_SECONDS] += seconds
    sums[A_USED] += used
    sums[A_HELD] += held
    sums[A_KEPT] += kept
    sums[A_EXTERNAL] += external
    sums[A_NEVER] += never
    sums[A_RUNNING] += running
    sums[A_WAITING] += waiting


@inlined
def account_step(st, log, seconds):
    """Take the ledger of one step and weigh it by its duration."""
    ints = st.ints
    used = ints[I_USED] * seconds
    held = held_tokens(ints) * seconds
    kept = kept_tokens(ints) * seconds
    external = ints[I_EXTERNAL] * seconds
    never = ints[I_NEVER] * seconds
    running = ints[I_RUNNING] * seconds
    waiting = ints[I_WAITING] * seconds
    add_sums(log.busy, seconds, used, held, kept, external, never, running, waiting)
    add_sums(log.timeline[ints[I_BUCKET]], seconds, used, held, kept, external, never, running, waiting)
    if ints[I_WAITING] > 0:
        add_sums(log.saturated, seconds, used, held, kept, external, never, running, waiting)


@inlined
def write_row(st, log):
    """Write the step that was just decided as one row of the series."""
    ints = st.ints
    row = log.rows[ints[I_ROWS]]
    held = held_tokens(ints)
    row[0] = ints[I_STEPS]
    row[1] = ints[I_RUNNING]
    row[2] = ints[I_WAITING]
    row[3] = ints[I_PREEMPTIONS]
    row[4] = ints[I_CAPACITY] - ints[I_FREE] if ints[I_MEMORY] <= PROMISE else 0
    row[5] = ints[I_USED]
    row[6] = held
    row[7] = kept_tokens(ints)
    row[8] = ints[I_EXTERNAL]
    row[9] = ints[I_NEVER]
    log.row_times[ints[I_ROWS]] = st.floats[F_NOW]
    ints[I_ROWS] += 1


@inlined
def step_seconds(floats, prefill, decodes, read):
    """Return how long a step takes (`Clock`)."""
    return floats[F_BASE] + floats[F_PER_PREFILL] * prefill + floats[F_PER_DECODE] * decodes + floats[F_PER_KV] * read


@inlined
def close_step(st, log, seconds):
    """Take the ledger of the step that was decided, write its row, and let its time pass."""
    ints = st.ints
    begin_bucket(st, log)
    if log.rows.shape[0] > 0:
        write_row(st, log)
    ints[I_SEEN_WAITING] = ints[I_WAITING]
    account_step(st, log, seconds)
    end_stretch(st, log, ONE)
    turn_bucket(st)
    st.floats[F_NOW] += seconds
