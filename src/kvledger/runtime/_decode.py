"""Decoding on a CPU: one query row a sequence against its blocks, read in place (compiled).

Scores of a whole sequence fit the cache, so softmax is taken in two passes: all scores, then all values. Tokens are
fetched ahead of being read, since blocks lie anywhere. Sums are kept in float32. Arrays are flat and their indices
unsigned, which Numba needs to see in order to make vector code of them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvledger.runtime._jobs import ITEM, LINE_BYTES, THREAD, array_at, as_job, compiled, inlined, prefetch, take
from kvledger.runtime._numbers import exp, plain, widened
from kvledger.runtime._reading import LOWEST, find_places, weigh

U = np.uint64

_AHEAD = 16
"""Tokens that lie between one that is fetched and the one that is read."""
_TOGETHER = 4
"""Values that are added in one go: sums go to memory and back once for all of them."""


def count_scratch(heads: int, longest: int) -> int:
    """Return the float32 of scratch a thread needs for sequences of up to ``longest`` tokens."""
    return (heads + 2) * longest


@compiled
def _share_out(scores, begin, end, softcap, has_sink, sink):
    """Turn the scores of one head into its shares of the softmax, in place, beside its sink."""
    most, total = weigh(scores, begin, end, softcap, sink if has_sink else LOWEST)
    if has_sink:
        total += exp(sink - most)
    share = np.float32(1.0) / total
    for i in range(U(begin), U(end)):
        scores[i] *= share


def _make_passes(load: Any) -> tuple[Any, Any]:
    """Return the two passes over the tokens of a row, for one way of storing numbers."""

    @inlined
    def fetch_ahead(stored, begin, count):
        for i in range(begin, begin + count, U(LINE_BYTES // stored.itemsize)):
            prefetch(stored, i)

    @compiled
    def score(query, keys, places, tokens, longest, heads, scale, scores):
        """Multiply the queries of some heads by the keys of the tokens."""
        kv_heads, shared, size, first, last = heads
        token, own, wide = U(kv_heads * size), U(first * size), U((last - first) * size)
        for i in range(tokens):
            if i + _AHEAD < tokens:
                fetch_ahead(keys, places[i + _AHEAD] * token + own, wide)
            for head in range(first, last):
                key = places[i] * token + U(head * size)
                for h in range(head * shared, head * shared + shared):
                    asked = U(h * size)
                    total = np.float32(0.0)
                    for d in range(U(size)):
                        total += query[asked + d] * load(keys[key + d])
                    scores[U(h * longest + i)] = total * scale

    @compiled
    def gather(scores, values, places, tokens, longest, heads, out):
        """Add the values of the tokens by their weights."""
        kv_heads, shared, size, first, last = heads
        token, own, wide = U(kv_heads * size), U(first * size), U((last - first) * size)
        i = 0
        while i < tokens:
            several = i + _TOGETHER <= tokens
            step = _TOGETHER if several else 1
            for j in range(i + _AHEAD, min(tokens, i + _AHEAD + step)):
                fetch_ahead(values, places[j] * token + own, wide)
            for head in range(first, last):
                of = U(head * size)
                v0 = places[i] * token + of
                v1, v2, v3 = v0, v0, v0
                if several:
                    v1, v2, v3 = places[i + 1] * token + of, places[i + 2] * token + of, places[i + 3] * token + of
                for h in range(head * shared, head * shared + shared):
                    w, to = U(h * longest + i), U(h * size)
                    if several:
                        w0, w1, w2, w3 = scores[w], scores[w + U(1)], scores[w + U(2)], scores[w + U(3)]
                        for d in range(U(size)):
                            out[to + d] += (w0 * load(values[v0 + d]) + w1 * load(values[v1 + d])) + (
                                w2 * load(values[v2 + d]) + w3 * load(values[v3 + d])
                            )
                    else:
                        w0 = scores[w]
                        for d in range(U(size)):
                            out[to + d] += w0 * load(values[v0 + d])
            i += step

    return score, gather


def _make_job(load: Any, stored: Any) -> Any:
    """Return the kernel for numbers that are stored in one way."""
    score, gather = _make_passes(load)

    @compiled
    def attend(address):
        """Attend with one query row of each sequence to its tokens.

        Job: rows, query heads, key-value heads, their size, numbers of the keys, elements between tables, block size,
        window (0: none), longest sequence, heads that have a sink (none or all), parts of a row, float32 of scratch a
        thread has; addresses of the queries (rows, heads, size), the keys and the values (tokens, key-value heads,
        size), the first table (int32), the slots and the lengths of the rows (int64), scale and softcap (0: none), the
        sinks, the scratch, and the answer, which is like the queries. An item is a part of a row: some of its
        key-value heads.
        """
        job = numba.carray(address, (24,), np.int64)
        rows, heads, kv_heads, size, numbers, apart = job[2], job[3], job[4], job[5], job[6], job[7]
        block, window, longest, sinks, parts = job[8], job[9], job[10], job[11], job[12]
        each, shared = heads * size, heads // kv_heads
        keys, values = array_at(job[15], (numbers,), stored), array_at(job[16], (numbers,), stored)
        slots, lengths = array_at(job[18], (rows,), np.int64), array_at(job[19], (rows,), np.int64)
        manner, sink = array_at(job[20], (2,), np.float32), array_at(job[21], (sinks,), np.float32)
        scratch = job[22] + take(job, THREAD, 1) * job[13] * 4
        places = array_at(scratch, (longest,), np.uint64)
        scores = array_at(scratch + 8 * longest, (heads * longest,), np.float32)
        item = take(job, ITEM, 1)
        while item < rows * parts:
            row, part = item // parts, item % parts
            first, last = kv_heads * part // parts, kv_heads * (part + 1) // parts
            end = lengths[row]
            begin = max(0, end - window) if window > 0 else 0
            table = array_at(job[17] + slots[row] * apart * 4, ((end - 1) // block + 1,), np.int32)
            query = array_at(job[14] + row * each * 4, (each,), np.float32)
            out = array_at(job[23] + row * each * 4, (each,), np.float32)
            find_places(table, begin, end, block, places)
            of = (kv_heads, shared, size, first, last)
            score(query, keys, places, end - begin, longest, of, manner[0], scores)
            for h in range(first * shared, last * shared):
                given = sink[h] if sinks > 0 else np.float32(0.0)
                _share_out(scores, h * longest, h * longest + end - begin, manner[1], sinks > 0, given)
                for d in range(h * size, h * size + size):
                    out[U(d)] = np.float32(0.0)
            gather(scores, values, places, end - begin, longest, of, out)
            item = take(job, ITEM, 1)

    return attend


_attend_float32, _attend_bfloat16 = _make_job(plain, np.float32), _make_job(widened, np.uint16)


@as_job
def attend_float32(address):
    """Do the job on keys and values in float32."""
    _attend_float32(address)


@as_job
def attend_bfloat16(address):
    """Do the job on keys and values in bfloat16, as 16-bit integers."""
    _attend_bfloat16(address)
