"""Content identity of multi-turn conversations: what a turn says again is what the turns before it said."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.replay.workload import HashIds, HashKind
from kvledger.units import counted

__all__ = ["BLOCK_TOKENS", "chain_identity", "in_order"]

BLOCK_TOKENS = 16
_MAX_IDS = 1 << 27
_Ints = NDArray[np.int64]


def in_order(arrivals: NDArray[np.float64]) -> _Ints:
    """Return the stable order of arrival."""
    return np.argsort(arrivals, kind="stable")


def chain_identity(prompt_tokens: _Ints, session: _Ints, *, shared_tokens: int) -> HashIds:
    """Name the 16-token blocks of every prompt by the chain that leads to them.

    Full blocks inside the shared prefix are the same for all; other full blocks are the session's own and the same in
    all of its turns; the partial last block of a prompt is its own, because the next turn fills it with more.

    Raises:
        UsageError: The ids would not fit in memory.
    """
    counts = -(-prompt_tokens // BLOCK_TOKENS)
    total = int(counts.sum())
    if total > _MAX_IDS:
        raise UsageError(
            f"{total:,} block ids of {counted(len(counts), 'turn')} are too many to hold",
            hint="lower `requests` or `turns`",
        )
    offsets = np.concatenate(([0], np.cumsum(counts)))
    block = np.arange(total) - np.repeat(offsets[:-1], counts)
    shared_blocks = shared_tokens // BLOCK_TOKENS
    width = int(counts.max())
    ids = shared_blocks + np.repeat(session, counts) * width + block
    ids = np.where(block < shared_blocks, block, ids)
    partial = np.flatnonzero(prompt_tokens % BLOCK_TOKENS)
    first_free = shared_blocks + (int(session.max()) + 1) * width
    ids[offsets[partial + 1] - 1] = first_free + np.arange(len(partial))
    return HashIds(offsets=offsets, ids=ids, block_tokens=BLOCK_TOKENS, kind=HashKind.CHAIN)
