"""What is known of the content of each request, as columns for the prefix cache.

A chain id stands for a stretch of tokens and all before it. Whatever a trace tells (token ids, content ids, chain ids,
a common stream) becomes chain ids of one grain, and the number of leading tokens they cover; the rest is unique.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import TraceError, UsageError
from kvledger.replay.workload import HashIds, HashKind, SharedPrefix, Siblings, TokenIds, Workload
from kvledger.units import counted

__all__ = ["KnownContent", "find_known_content"]

BY_CHAIN, BY_STREAM, UNKNOWN = range(3)
_MOST_TOKENS = 2**31
_MOST_BLOCKS = 2**28


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


def find_known_content(workload: Workload, *, block_size: int, most_tokens: int | None = None) -> KnownContent:
    """Return what is known of the content of a workload, for blocks of ``block_size`` tokens.

    Nobody looks for what lies behind ``most_tokens``, as longer requests are rejected; blocks there get no names.

    Raises:
        UsageError: Blocks and the ids of the trace have grains of which neither divides the other.
    """
    if workload.siblings is not None:
        return _of_siblings(workload.siblings, block_size, _MOST_TOKENS if most_tokens is None else most_tokens)
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
            f"the trace names its content in blocks of {counted(grain, 'token')}, which --block-size {block_size} "
            "does not fit",
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


def _of_siblings(siblings: Siblings, block_size: int, most_tokens: int) -> KnownContent:
    """Chain ids of full blocks for samples: the whole prompt is that of the parent, the first sample's output too."""
    workload, parents = siblings.workload, siblings.parents
    known = find_known_content(workload, block_size=block_size)
    covered = known.covered.astype(np.int64) if known.how != UNKNOWN else np.zeros(len(workload), np.int64)
    covered = np.minimum(covered, most_tokens)
    prompt_blocks = np.minimum(workload.prompt_tokens.astype(np.int64), most_tokens) // block_size
    blocks = np.maximum(prompt_blocks, covered // block_size)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    if int(offsets[-1]) > _MOST_BLOCKS:
        raise TraceError(
            f"the prompts have {counted(int(offsets[-1]), 'block')} of {counted(block_size, 'token')}, more than "
            f"{_MOST_BLOCKS}",
            hint="give a larger --block-size, or split the trace",
        )
    owner = np.repeat(np.arange(len(workload), dtype=np.int64), blocks)
    index = np.arange(int(offsets[-1]), dtype=np.int64) - np.repeat(offsets[:-1], blocks)
    ids = _mixed((owner << 28) | index, salt=1)
    ends = (index + 1) * block_size
    inside = ends <= covered[owner]
    if known.how == BY_STREAM:
        ids[inside] = _mixed(index[inside], salt=2)
    elif known.how == BY_CHAIN:
        grain, last = known.grain_tokens, ends[inside] - 1
        at = last // grain
        part = (last - at * grain) // block_size
        ids[inside] = _mixed(_mixed(known.ids[known.offsets[owner[inside]] + at], salt=3) ^ part, salt=4)
    first = np.diff(parents, prepend=-1) > 0
    own = np.where(first, blocks[parents], prompt_blocks[parents])
    return KnownContent(
        how=BY_CHAIN,
        grain_tokens=block_size,
        offsets=offsets[parents],
        ids=ids,
        covered=(own * block_size).astype(np.int32),
    )


def _mixed(values: NDArray[np.int64], *, salt: int) -> NDArray[np.int64]:
    """Scramble 64 bits into non-negative ids (the finaliser of splitmix64), differently for each salt."""
    z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * salt % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
