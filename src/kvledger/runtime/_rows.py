"""Work on the rows of a step (compiled): norms, turning queries and keys to their positions, the likeliest token."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from kvledger.runtime._jobs import ITEM, array_at, as_job, compiled, take

__all__ = ["find_likeliest", "normalise", "turn"]

Array = Any  # a numpy array; numba knows its type


@compiled
def _normalise_row(row: Array, weight: Array, epsilon: float, offset: float, out: Array) -> None:
    total = np.float32(0.0)
    for i in range(len(row)):
        total += row[i] * row[i]
    factor = np.float32(1.0 / math.sqrt(total / np.float32(len(row)) + epsilon))
    for i in range(len(row)):
        out[i] = row[i] * factor * (weight[i] + offset)


@as_job
def normalise(address):
    """Divide rows by the root of their mean square, and multiply by a weight.

    Job: rows, size, rows at a time, addresses of the rows, the weight and the answer, and of two float32: what is added
    to the mean, and to the weight.
    """
    job = numba.carray(address, (9,), np.int64)
    rows, size, step = job[2], job[3], job[4]
    given, out = array_at(job[5], (rows, size), np.float32), array_at(job[7], (rows, size), np.float32)
    weight, manner = array_at(job[6], (size,), np.float32), array_at(job[8], (2,), np.float32)
    first = take(job, ITEM, step)
    while first < rows:
        for row in range(first, min(rows, first + step)):
            _normalise_row(given[row], weight, manner[0], manner[1], out[row])
        first = take(job, ITEM, step)


@compiled
def _turn_head(head: Array, cosines: Array, sines: Array, out: Array) -> None:
    half = len(head) // 2
    for i in range(half):
        one, other = head[i], head[half + i]
        out[i] = one * cosines[i] - other * sines[i]
        out[half + i] = other * cosines[half + i] + one * sines[half + i]


@as_job
def turn(address):
    """Turn queries and keys to their positions, and store keys and values in their blocks.

    Job: rows, query heads, key-value heads, their size, places of the pool, rows at a time; addresses of the rows
    (queries, keys and values of all heads one after the other), cosines, sines, the place of each row (int64), the
    keys and the values of the pool, and the turned queries, by row and head.
    """
    job = numba.carray(address, (15,), np.int64)
    rows, heads, kv_heads, size, places, step = job[2], job[3], job[4], job[5], job[6], job[7]
    joined = array_at(job[8], (rows, heads + 2 * kv_heads, size), np.float32)
    cosines, sines = array_at(job[9], (rows, size), np.float32), array_at(job[10], (rows, size), np.float32)
    place_of = array_at(job[11], (rows,), np.int64)
    keys = array_at(job[12], (places, kv_heads, size), np.float32)
    values = array_at(job[13], (places, kv_heads, size), np.float32)
    queries = array_at(job[14], (rows, heads, size), np.float32)
    first = take(job, ITEM, step)
    while first < rows:
        for row in range(first, min(rows, first + step)):
            place = place_of[row]
            for head in range(heads):
                _turn_head(joined[row, head], cosines[row], sines[row], queries[row, head])
            for head in range(kv_heads):
                _turn_head(joined[row, heads + head], cosines[row], sines[row], keys[place, head])
                values[place, head, :] = joined[row, heads + kv_heads + head]
        first = take(job, ITEM, step)


@as_job
def find_likeliest(address):
    """Find the likeliest token of each row, the first of equals; a row that holds what is no number has the value NaN.

    Job: rows, tokens; addresses of the rows, and of two answers: tokens (int64) and their values (float32).
    """
    job = numba.carray(address, (7,), np.int64)
    rows, tokens = job[2], job[3]
    given = array_at(job[4], (rows, tokens), np.float32)
    best, values = array_at(job[5], (rows,), np.int64), array_at(job[6], (rows,), np.float32)
    row = take(job, ITEM, 1)
    while row < rows:
        line = given[row]
        most, strange = line[0], 0
        for i in range(tokens):
            most = max(most, line[i])
            strange += line[i] != line[i]
        at = 0
        while strange == 0 and line[at] != most:
            at += 1
        best[row], values[row] = at, most if strange == 0 else np.float32(np.nan)
        row = take(job, ITEM, 1)
