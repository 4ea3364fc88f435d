"""Numbers in kernels: how they are stored, and an exponential that becomes vector code (compiled)."""

from __future__ import annotations

import math

import numpy as np

from kvledger.runtime._jobs import inlined

__all__ = ["exp", "plain", "widened"]

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_SMALLEST = np.float32(-87.0)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@inlined
def exp(x):
    """Return e**x for x <= 0 within 2 units in the last place (the polynomial of Cephes' expf), in vector code."""
    x = max(x, _SMALLEST)
    n = np.float32(math.floor(x * _LOG2E + _HALF))
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    return (p * r * r + r + _ONE) * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@inlined
def plain(x):
    """Return a float32 as it is stored."""
    return x


@inlined
def widened(x):
    """Return a bfloat16, stored as 16 bits, as float32."""
    return np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
