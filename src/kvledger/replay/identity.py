"""What is known of the content of each request, as columns for the prefix cache.

A chain id stands for a stretch of tokens and all before it. Whatever a trace tells (token ids, content ids, chain ids,
a common stream) becomes chain ids of one grain, and the number of leading tokens they cover; the rest is unique.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.replay.workload import HashIds, HashKind, SharedPrefix, TokenIds, Workload

__all__ = ["KnownContent", "find_known_content"]

BY_CHAIN, BY_STREAM, UNKNOWN = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownContent:
    """Chain ids of one grain: request ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``, which cover ``covered[i]`` tokens.

    ``how``: BY_CHAIN, BY_STREAM (no ids: the covered tokens are the beginning of one common stream), or UNKNOWN.
    """

    how: int
    grain_tokens: int
    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    covered: NDArray[np.int32]


def find_known_content(workload: Workload, *, block_size: int) -> KnownContent:
    """Return what is known of the content of a workload, for blocks of ``block_size`` tokens.

    Raises:
        UsageError: Blocks and the ids of the trace have grains of which neither divides the other.
    """
    content = workload.content
    nothing, none = np.zeros(0, np.int64), np.zeros(0, np.int32)
    match content:
        case None:
            return KnownContent(how=UNKNOWN, grain_tokens=1, offsets=nothing, ids=nothing, covered=none)
        case SharedPrefix():
            return KnownContent(how=BY_STREAM, grain_tokens=1, offsets=nothing, ids=nothing, covered=content.tokens)
        case TokenIds():
            return _chain_of_tokens(content, block_size)
        case HashIds() if content.lengths is not None:
            return _chain_of_pieces(content, content.lengths, block_size)
        case HashIds():
            return _chain_of_ids(content, workload.prompt_tokens, block_size)


def _chain_of_ids(content: HashIds, prompts: NDArray[np.int32], block_size: int) -> KnownContent:
    grain = content.block_tokens
    if grain % block_size and block_size % grain:
        raise UsageError(
            f"the trace names its content in blocks of {grain} tokens, which --block-size {block_size} does not fit",
            hint=f"use a --block-size that divides {grain} or is a multiple of it, or --prefix-caching off",
        )
    ids = content.ids
    if content.kind is HashKind.CONTENT:
        from kvledger.replay._identity import chain_ids

        ids = np.empty(len(content.ids), np.int64)
        chain_ids(content.offsets, content.ids, ids)
    known = np.diff(content.offsets) * grain
    return KnownContent(
        how=BY_CHAIN,
        grain_tokens=grain,
        offsets=content.offsets,
        ids=ids,
        covered=np.minimum(known, prompts).astype(np.int32),
    )


def _chain_of_tokens(content: TokenIds, block_size: int) -> KnownContent:
    from kvledger.replay._identity import chain_tokens

    blocks = np.diff(content.offsets) // block_size
    offsets = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    ids = np.empty(int(offsets[-1]), np.int64)
    chain_tokens(content.offsets, content.ids, offsets, ids, block_size)
    return KnownContent(
        how=BY_CHAIN,
        grain_tokens=block_size,
        offsets=offsets,
        ids=ids,
        covered=(blocks * block_size).astype(np.int32),
    )


def _chain_of_pieces(content: HashIds, lengths: NDArray[np.int32], block_size: int) -> KnownContent:
    """Chain ids of blocks over pieces of different lengths, such as passages in a prompt."""
    from kvledger.replay._identity import chain_pieces

    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens = ends[content.offsets[1:]] - ends[content.offsets[:-1]]
    blocks = tokens // block_size
    offsets = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    ids = np.empty(int(offsets[-1]), np.int64)
    chain_pieces(content.offsets, content.ids, lengths, offsets, ids, block_size)
    return KnownContent(
        how=BY_CHAIN,
        grain_tokens=block_size,
        offsets=offsets,
        ids=ids,
        covered=(blocks * block_size).astype(np.int32),
    )
