"""Chunks of prompts on a CPU: several rows of a sequence against its blocks, read in place (compiled).

Tokens are taken a panel at a time. The keys of a panel are laid out by their numbers, so that the scores of many tokens
come out side by side, for all rows and query heads of an item; the softmax is corrected as panels go by. Sums are kept
in float32. Arrays are flat and their indices unsigned, which Numba needs to see to make vector code of them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvledger.runtime._jobs import ITEM, THREAD, array_at, as_job, compiled, take
from kvledger.runtime._numbers import exp, plain, widened
from kvledger.runtime._reading import LOWEST, find_places, weigh

__all__ = ["TILE_ROWS", "attend_bfloat16", "attend_float32", "count_scratch"]

U = np.uint64

_PANEL_TOKENS = 128
_APART = _PANEL_TOKENS + 16
"""Float32 from one number of the keys of a panel to the next: an odd number of cache lines, to use all of a cache."""
TILE_ROWS = 32
"""Rows of an item."""


def count_scratch(head_size: int, shared: int) -> int:
    """Return the float32 of scratch a thread needs, where so many query heads share a key-value head."""
    return head_size * _APART + (2 + shared) * _PANEL_TOKENS + 2 * TILE_ROWS * shared


@compiled
def _score(query, asked, panel, begin, end, size, scale, line):
    """Multiply one query by the keys of a panel, eight numbers of each at a time."""
    first, last, width = U(begin), U(end), U(_APART)
    for i in range(first, last):
        line[i] = np.float32(0.0)
    at = U(0)
    while at + U(8) <= U(size):
        q, p = asked + at, at * width
        q0, q1, q2, q3 = query[q], query[q + U(1)], query[q + U(2)], query[q + U(3)]
        q4, q5, q6, q7 = query[q + U(4)], query[q + U(5)], query[q + U(6)], query[q + U(7)]
        p1, p2, p3, p4 = p + width, p + U(2) * width, p + U(3) * width, p + U(4) * width
        p5, p6, p7 = p + U(5) * width, p + U(6) * width, p + U(7) * width
        for i in range(first, last):
            line[i] += (q0 * panel[p + i] + q1 * panel[p1 + i] + q2 * panel[p2 + i] + q3 * panel[p3 + i]) + (
                q4 * panel[p4 + i] + q5 * panel[p5 + i] + q6 * panel[p6 + i] + q7 * panel[p7 + i]
            )
        at += U(8)
    while at < U(size):
        number, p = query[asked + at], at * width
        for i in range(first, last):
            line[i] += number * panel[p + i]
        at += U(1)
    for i in range(first, last):
        line[i] *= scale


@compiled
def _begin_of(row, h, heads):
    """Return where the numbers of a query head of a row begin."""
    kv_heads, shared, size, head = heads
    return U(((row * kv_heads + head) * shared + h) * size)


def _make_passes(load: Any) -> tuple[Any, Any]:
    """Return what reads the keys and the values of a panel, for one way of storing numbers."""

    @compiled
    def lay_out(keys, places, count, token, head, panel):
        """Lay the keys of a panel out by their numbers."""
        size = U(len(panel) // _APART)
        for i in range(U(count)):
            key = places[i] * token + head
            for d in range(size):
                panel[d * U(_APART) + i] = load(keys[key + d])

    @compiled
    def add(lines, values, places, begin, end, token, head, shared, size, out, to):
        """Add values by their weights, eight at a time, for all query heads of a row."""
        i = U(begin)
        while i + U(8) <= U(end):
            v0, v1 = places[i] * token + head, places[i + U(1)] * token + head
            v2, v3 = places[i + U(2)] * token + head, places[i + U(3)] * token + head
            v4, v5 = places[i + U(4)] * token + head, places[i + U(5)] * token + head
            v6, v7 = places[i + U(6)] * token + head, places[i + U(7)] * token + head
            for h in range(U(shared)):
                w, o = h * U(_PANEL_TOKENS) + i, to + h * U(size)
                w0, w1, w2, w3 = lines[w], lines[w + U(1)], lines[w + U(2)], lines[w + U(3)]
                w4, w5, w6, w7 = lines[w + U(4)], lines[w + U(5)], lines[w + U(6)], lines[w + U(7)]
                for d in range(U(size)):
                    out[o + d] += (
                        (w0 * load(values[v0 + d]) + w1 * load(values[v1 + d]))
                        + (w2 * load(values[v2 + d]) + w3 * load(values[v3 + d]))
                    ) + (
                        (w4 * load(values[v4 + d]) + w5 * load(values[v5 + d]))
                        + (w6 * load(values[v6 + d]) + w7 * load(values[v7 + d]))
                    )
            i += U(8)
        while i < U(end):
            value = places[i] * token + head
            for h in range(U(shared)):
                weight, o = lines[h * U(_PANEL_TOKENS) + i], to + h * U(size)
                for d in range(U(size)):
                    out[o + d] += weight * load(values[value + d])
            i += U(1)

    return lay_out, add


def _make_tile(load: Any) -> Any:
    """Return attention of one item, for one way of storing numbers."""
    lay_out, add = _make_passes(load)

    @compiled
    def attend_panel(query, panel, lines, most, total, values, places, spans, heads, manner, out):
        """Attend with all queries of an item to the tokens of a panel that each reads."""
        position, rows, first, end, window = spans
        kv_heads, shared, size, head = heads
        token, of_head = U(kv_heads * size), U(head * size)
        for row in range(rows):
            reach = position + row + 1
            begin = (max(first, reach - window) if window > 0 else first) - first
            last = min(end, reach) - first
            if begin >= last:
                continue
            for h in range(shared):
                ask, of, line = row * shared + h, _begin_of(row, h, heads), lines[h * _PANEL_TOKENS :]
                _score(query, of, panel, begin, last, size, manner[0], line)
                highest, added = weigh(line, begin, last, manner[1], most[ask])
                factor = exp(most[ask] - highest)
                for d in range(U(size)):
                    out[of + d] *= factor
                most[ask], total[ask] = highest, total[ask] * factor + added
            add(lines, values, places, begin, last, token, of_head, shared, size, out, _begin_of(row, 0, heads))

    @compiled
    def attend_tile(
        query, keys, values, table, spans, heads, manner, sink, block, panel, lines, most, total, places, out
    ):
        """Attend with some rows of a sequence, for one key-value head."""
        position, rows, window = spans
        kv_heads, shared, size, head = heads
        for row in range(rows):
            for h in range(shared):
                ask, to, has_sink = row * shared + h, _begin_of(row, h, heads), len(sink) > 0
                most[ask] = sink[head * shared + h] if has_sink else LOWEST
                total[ask] = np.float32(1.0) if has_sink else np.float32(0.0)
                for d in range(U(size)):
                    out[to + d] = np.float32(0.0)
        first = max(0, position - window + 1) if window > 0 else 0
        while first < position + rows:
            end = min(first + _PANEL_TOKENS, position + rows)
            find_places(table, first, end, block, places)
            lay_out(keys, places, end - first, U(kv_heads * size), U(head * size), panel)
            given = (position, rows, first, end, window)
            attend_panel(query, panel, lines, most, total, values, places, given, heads, manner, out)
            first = end
        for row in range(rows):
            for h in range(shared):
                to, share = _begin_of(row, h, heads), np.float32(1.0) / total[row * shared + h]
                for d in range(U(size)):
                    out[to + d] *= share

    return attend_tile


def _make_job(load: Any, stored: Any) -> Any:
    """Return the kernel for numbers that are stored in one way."""
    attend_tile = _make_tile(load)

    @compiled
    def attend(address):
        """Attend with the rows of chunks to the tokens of their sequences.

        Job: tiles, query heads, key-value heads, their size, numbers of the keys, elements between tables, block size,
        window (0: none), heads that have a sink (none or all), float32 of scratch a thread has; addresses of the
        queries (rows, heads, size), the keys and the values (tokens, key-value heads, size), the first table (int32),
        the tiles (tiles, 4: the first row, rows, position of the first, slot; int64), scale and softcap (0: none), the
        sinks, the scratch, and the answer, which is like the queries. An item is one key-value head of a tile.
        """
        job = numba.carray(address, (21,), np.int64)
        tiles, kv_heads, size, numbers, apart = job[2], job[4], job[5], job[6], job[7]
        block, window, shared, each = job[8], job[9], job[3] // job[4], job[3] * job[5]
        keys, values = array_at(job[13], (numbers,), stored), array_at(job[14], (numbers,), stored)
        manner, sink = array_at(job[17], (2,), np.float32), array_at(job[18], (job[10],), np.float32)
        scratch = job[19] + take(job, THREAD, 1) * job[11] * 4
        places, scratch = array_at(scratch, (_PANEL_TOKENS,), np.uint64), scratch + 8 * _PANEL_TOKENS
        panel, scratch = array_at(scratch, (size * _APART,), np.float32), scratch + 4 * size * _APART
        lines, scratch = array_at(scratch, (shared * _PANEL_TOKENS,), np.float32), scratch + 4 * shared * _PANEL_TOKENS
        most = array_at(scratch, (TILE_ROWS * shared,), np.float32)
        total = array_at(scratch + 4 * TILE_ROWS * shared, (TILE_ROWS * shared,), np.float32)
        item = take(job, ITEM, 1)
        while item < tiles * kv_heads:
            tile = array_at(job[16] + (item // kv_heads) * 32, (4,), np.int64)
            row, rows, position = tile[0], tile[1], tile[2]
            table = array_at(job[15] + tile[3] * apart * 4, ((position + rows - 1) // block + 1,), np.int32)
            query = array_at(job[12] + row * each * 4, (rows * each,), np.float32)
            out = array_at(job[20] + row * each * 4, (rows * each,), np.float32)
            attend_tile(
                query, keys, values, table, (position, rows, window), (kv_heads, shared, size, item % kv_heads),
                manner, sink, block, panel, lines, most, total, places, out,
            )  # fmt: skip
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
