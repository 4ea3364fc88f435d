"""What both attention kernels do with the tokens of a sequence: find them in blocks, and weigh them (compiled)."""

from __future__ import annotations

import math

import numpy as np

from kvledger.runtime._jobs import compiled
from kvledger.runtime._numbers import exp

__all__ = ["LOWEST", "find_places", "weigh"]

U = np.uint64

LOWEST = np.float32(-1e30)
"""The score before any; further down than the model's own scores, and no infinity."""


@compiled
def find_places(table, begin, end, block, places):
    """Find where the tokens from ``begin`` to ``end`` lie."""
    for at in range(begin, end):
        places[at - begin] = U(table[at // block]) * U(block) + U(at % block)


@compiled
def weigh(scores, begin, end, softcap, most):
    """Turn scores into weights of a softmax, in place; return the highest score so far, and the sum of the weights."""
    first, last = U(begin), U(end)
    if softcap > 0:
        for i in range(first, last):
            scores[i] = softcap * np.float32(math.tanh(scores[i] / softcap))
    for i in range(first, last):
        most = max(most, scores[i])
    total = np.float32(0.0)
    for i in range(first, last):
        weight = exp(scores[i] - most)
        scores[i] = weight
        total += weight
    return most, total
