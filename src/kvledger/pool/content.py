"""Identities of blocks from what is known of the content of a request (compiled)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba

from kvledger.pool.compiled import inlined
from kvledger.pool.prefix import mix

Array = Any  # a numpy array; numba knows its type

# How content is known: by chain ids of one grain, as the beginning of a common stream, or not at all.
BY_CHAIN, BY_STREAM, UNKNOWN = range(3)


class Content(NamedTuple):
    """Chain ids: request ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``, which cover ``covered[i]`` tokens."""

    how: Array  # (2,) int64: how content is known, and the tokens an id covers
    offsets: Array  # (requests + 1,) int64, or (0,)
    ids: Array  # (total,) int64, or (0,)
    covered: Array  # (requests,) int32: leading tokens whose content is known, or (0,)


@inlined
def chain_key(content, request, end):
    """Return the identity of the first ``end`` tokens of a request: shared as far as they are known, else its own."""
    if content.how[0] != UNKNOWN and end <= content.covered[request]:
        if content.how[0] == BY_STREAM:
            return mix(numba.uint64(end) | (numba.uint64(1) << numba.uint64(62)))
        grain = content.how[1]
        at = (end - 1) // grain
        inside = numba.uint64(end - 1 - at * grain)
        return mix(mix(numba.uint64(content.ids[content.offsets[request] + at])) + inside)
    own = (numba.uint64(request) << numba.uint64(28)) | numba.uint64(end) | (numba.uint64(1) << numba.uint64(63))
    return mix(own)


@inlined
def group_key(content, request, end, group):
    """Return the identity of the block of a group that ends with token ``end``; never 0."""
    key = mix(chain_key(content, request, end) + numba.uint64(group) * numba.uint64(0xD6E8FEB86659FD93))
    return key | numba.uint64(1)
