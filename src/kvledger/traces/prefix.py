"""How much of a trace's prompts an infinite prefix cache would serve, when nothing runs at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvledger.replay.workload import Content, HashIds, HashKind, SharedPrefix, TokenIds, Workload
from kvledger.units import counted

__all__ = ["PrefixShare", "content_kind", "prefix_share"]

_TOKEN_BLOCK = 16
_Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixShare:
    """Prompt tokens, and those of them that an earlier request's prompt had as its prefix."""

    prompt_tokens: int
    shared_tokens: int

    @property
    def ratio(self) -> float:
        """Shared over all prompt tokens, 0 to 1."""
        return self.shared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def content_kind(content: Content | None) -> str:
    """Name the kind of content identity in a few words."""
    match content:
        case None:
            return "none"
        case SharedPrefix():
            return "shared prefix lengths"
        case TokenIds():
            return "token ids"
        case HashIds():
            kind = "chained" if content.kind is HashKind.CHAIN else "content"
            size = (
                "of varying length" if content.lengths is not None else f"of {counted(content.block_tokens, 'token')}"
            )
            return f"{kind} block ids, blocks {size}"


def prefix_share(workload: Workload) -> PrefixShare | None:
    """Count the prompt tokens in the leading run of blocks that some earlier request had as its prefix too.

    Every block counts with the tokens it really covers (the last one of a prompt is partial). Content ids are chained
    first: a block counts only behind the same blocks. Token ids are compared in blocks of 16. None without identity.
    """
    content = workload.content
    prompt = workload.prompt_tokens.astype(np.int64)
    match content:
        case None:
            return None
        case SharedPrefix():
            longest = np.maximum.accumulate(content.tokens)
            shared = int(np.minimum(content.tokens[1:], longest[:-1]).sum())
        case HashIds():
            chained = content.ids if content.kind is HashKind.CHAIN else _chained(content.ids, content.offsets)
            shared = _shared(chained, content.offsets, _block_lengths(content, prompt))
        case TokenIds():
            ids, offsets = _token_blocks(content, prompt)
            shared = _shared(_chained(ids, offsets), offsets, np.full(len(ids), _TOKEN_BLOCK))
    return PrefixShare(prompt_tokens=int(prompt.sum()), shared_tokens=shared)


def _block_lengths(content: HashIds, prompt: _Ints) -> _Ints:
    """Tokens each id covers: ``block_tokens``, the last one of a request what is left."""
    if content.lengths is not None:
        return content.lengths.astype(np.int64)
    counts = np.diff(content.offsets)
    position = np.arange(len(content.ids)) - np.repeat(content.offsets[:-1], counts)
    left = np.repeat(prompt, counts) - position * content.block_tokens
    covered: _Ints = np.clip(left, 0, content.block_tokens)
    return covered


def _shared(ids: _Ints, offsets: _Ints, lengths: _Ints) -> int:
    """Sum the lengths of the leading run of ids that occurred in an earlier request."""
    if not len(ids):
        return 0
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    known = owner[first[inverse]] < owner
    missing = np.cumsum(~known)
    before = np.concatenate(([0], missing))[offsets[:-1]]
    run = missing == np.repeat(before, counts)
    return int(lengths[run].sum())


def _chained(ids: _Ints, offsets: _Ints) -> _Ints:
    """Number every id together with all ids before it in its request."""
    table: dict[tuple[int, int], int] = {}
    out = np.empty(len(ids), dtype=np.int64)
    flat, ends = ids.tolist(), offsets.tolist()
    for low, high in pairwise(ends):
        parent = -1
        for place in range(low, high):
            parent = table.setdefault((parent, flat[place]), len(table))
            out[place] = parent
    return out


def _token_blocks(content: TokenIds, prompt: _Ints) -> tuple[_Ints, _Ints]:
    """Number the full 16-token blocks of the prompts by their content; returns ids and offsets."""
    table: dict[bytes, int] = {}
    ids: list[int] = []
    ends = [0]
    for number, start in enumerate(content.offsets[:-1]):
        known = min(int(prompt[number]), int(content.offsets[number + 1] - start))
        ids.extend(
            table.setdefault(content.ids[low : low + _TOKEN_BLOCK].tobytes(), len(table))
            for low in range(int(start), int(start) + known - _TOKEN_BLOCK + 1, _TOKEN_BLOCK)
        )
        ends.append(len(ids))
    return np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64)
