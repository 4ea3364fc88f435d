"""Chain ids from what a trace tells of its content (compiled): 63-bit hashes of everything up to a block's end."""

from __future__ import annotations

from typing import Any

import numba

from kvledger.pool.compiled import compiled, inlined
from kvledger.pool.prefix import mix

Array = Any  # a numpy array; numba knows its type


@inlined
def fold(chain, value):
    """Append one value to a chain."""
    return mix(chain ^ mix(numba.uint64(value)))


@inlined
def as_id(chain):
    """Return a chain as a non-negative id."""
    return numba.int64(chain >> numba.uint64(1))


@compiled
def chain_ids(offsets: Array, ids: Array, out: Array) -> None:
    """Turn content ids into chain ids."""
    for request in range(offsets.shape[0] - 1):
        chain = numba.uint64(0)
        for i in range(offsets[request], offsets[request + 1]):
            chain = fold(chain, ids[i])
            out[i] = as_id(chain)


@compiled
def chain_tokens(offsets: Array, tokens: Array, block_offsets: Array, out: Array, block: int) -> None:
    """Turn token ids into chain ids of full blocks."""
    for request in range(offsets.shape[0] - 1):
        chain = numba.uint64(0)
        at = offsets[request]
        for i in range(block_offsets[request], block_offsets[request + 1]):
            for _ in range(block):
                chain = fold(chain, tokens[at])
                at += 1
            out[i] = as_id(chain)


@compiled
def chain_pieces(offsets: Array, ids: Array, lengths: Array, block_offsets: Array, out: Array, block: int) -> None:
    """Turn ids of pieces of different lengths into chain ids of full blocks."""
    for request in range(offsets.shape[0] - 1):
        chain = numba.uint64(0)
        piece = offsets[request]
        inside = 0
        for i in range(block_offsets[request], block_offsets[request + 1]):
            left = block
            while left > 0:
                while inside == lengths[piece]:
                    piece += 1
                    inside = 0
                taken = min(left, lengths[piece] - inside)
                chain = fold(fold(chain, ids[piece]), (inside << 32) | taken)
                inside += taken
                left -= taken
            out[i] = as_id(chain)
