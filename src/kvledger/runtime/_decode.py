"""Decoding on a CPU: one query row a sequence against its blocks, read in place (compiled).

Work is cut into items, one key-value head of one sequence, whose query heads share what is read. Scores of a whole
sequence fit the cache, so softmax is taken in two passes: all scores, then all values. Sums are kept in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

Array = Any  # a numpy array; numba knows its type

# Sums may be reordered, as vector instructions need; nothing here is infinite or no number but the model's own NaN.
_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_SMALLEST = np.float32(-87.0)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


def _compiled(function: Kernel) -> Kernel:
    kernel: Kernel = numba.njit(**_OPTIONS)(function)
    return kernel


def _inlined(function: Kernel) -> Kernel:
    kernel: Kernel = numba.njit(inline="always", **_OPTIONS)(function)
    return kernel


@_inlined
def _exp(x):
    """Return e**x for x <= 0 within 2 units in the last place (the polynomial of Cephes' expf), in vector code."""
    x = max(x, _SMALLEST)
    n = np.float32(math.floor(x * _LOG2E + _HALF))
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    return (p * r * r + r + _ONE) * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@_inlined
def _plain(x):
    """Return a float32 as it is stored."""
    return x


@_inlined
def _widened(x):
    """Return a bfloat16, stored as 16 bits, as float32."""
    return np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)


def _make_kernel(load: Any) -> Any:
    """Return the kernel for one way of storing numbers."""

    @_compiled
    def attend(
        query: Array, keys: Array, values: Array, tables: Array, slots: Array, lengths: Array, spans: Array,
        manner: Array, sinks: Array, scores: Array, out: Array, first: int, last: int,
    ) -> None:  # fmt: skip
        """Compute the items from ``first`` to ``last``.

        ``query``: (rows, heads, size) float32. ``keys`` and ``values``: (blocks * block_size, kv_heads, size).
        ``tables``: (slots, blocks of the longest) int32. ``slots`` and ``lengths``: (rows,) int64. ``spans``: block
        size and window (0: none). ``manner``: scale and softcap (0: none), float32. ``sinks``: (heads,) or (0,)
        float32. ``scores``: (heads a kv head, longest) float32, scratch. ``out`` is like ``query``.
        """
        kv_heads, size = keys.shape[1], keys.shape[2]
        heads = query.shape[1] // kv_heads
        block, window = spans[0], spans[1]
        scale, softcap = manner[0], manner[1]
        for item in range(first, last):
            row, head = item // kv_heads, item % kv_heads
            end = lengths[row]
            begin = max(0, end - window) if window > 0 else 0
            table = tables[slots[row]]
            at = begin
            while at < end:
                place = np.int64(table[at // block]) * block + at % block
                for i in range(min(block - at % block, end - at)):
                    key = keys[place + i, head]
                    for h in range(heads):
                        q = query[row, head * heads + h]
                        total = np.float32(0.0)
                        for d in range(size):
                            total += q[d] * load(key[d])
                        scores[h, at + i - begin] = total * scale
                at += block - at % block
            for h in range(heads):
                line = scores[h]
                if softcap > 0:
                    for i in range(end - begin):
                        line[i] = softcap * math.tanh(line[i] / softcap)
                most = line[0]
                for i in range(1, end - begin):
                    most = max(most, line[i])
                total = np.float32(0.0)
                if sinks.shape[0] > 0:
                    sink = sinks[head * heads + h]
                    most = max(most, sink)
                    total = _exp(sink - most)
                for i in range(end - begin):
                    weight = _exp(line[i] - most)
                    line[i] = weight
                    total += weight
                for i in range(end - begin):
                    line[i] = line[i] / total
                out[row, head * heads + h, :] = np.float32(0.0)
            at = begin
            while at < end:
                place = np.int64(table[at // block]) * block + at % block
                for i in range(min(block - at % block, end - at)):
                    value = values[place + i, head]
                    for h in range(heads):
                        weight = scores[h, at + i - begin]
                        sums = out[row, head * heads + h]
                        for d in range(size):
                            sums[d] += weight * load(value[d])
                at += block - at % block

    return attend


attend_float32 = _make_kernel(_plain)
attend_bfloat16 = _make_kernel(_widened)
