"""What a prefix cache alone would serve, by its size: no time, no live requests, nothing but blocks and an eviction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.pool.policy import Eviction
from kvledger.replay.identity import BY_CHAIN, UNKNOWN, find_known_content
from kvledger.replay.workload import HashIds, Workload
from kvledger.units import counted

__all__ = ["BlockStream", "CachePoint", "Eviction", "cut_blocks", "grain_of", "measure_cache"]

WARM_UP_RATIO = 0.5
_MOST_BLOCKS = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStream:
    """The prompts of a workload as blocks in the order of their requests.

    Request ``i`` owns ``nodes[offsets[i]:offsets[i + 1]]``; equal numbers are equal content with all before it.
    ``tokens``: of each block. ``next_uses``: the request that uses it next (the number of requests: none).
    ``most_hits``: (requests,) int32, the leading blocks that may be found. ``prompt_tokens``: (requests,) int32.
    """

    block_size: int
    offsets: NDArray[np.int64]
    nodes: NDArray[np.int32]
    tokens: NDArray[np.int32]
    next_uses: NDArray[np.int32]
    most_hits: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    distinct: int

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return len(self.prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePoint:
    """What a cache of ``blocks`` found.

    ``hit_ratio`` is of the prompt tokens of the requests from ``first`` on; ``whole_hit_ratio`` of all. ``filled``
    tells whether the cache was full when measuring began; if not, it was still warming up.
    """

    eviction: Eviction
    blocks: int
    first: int
    hit_ratio: float
    whole_hit_ratio: float
    filled: bool


def cut_blocks(workload: Workload, *, block_size: int, whole_blocks: bool) -> BlockStream:
    """Cut the prompts of a workload into blocks, and number the distinct ones.

    Args:
        workload: Requests whose content is known at least in part.
        block_size: Tokens of a block.
        whole_blocks: True as an engine does it: only full blocks are kept, and the last token of a prompt is always
            computed. False: the last, partial block counts like any other, and a whole prompt can be found.

    Raises:
        UsageError: The trace does not tell what its requests share, or blocks do not fit its ids.
    """
    workload.check()
    known = find_known_content(workload, block_size=block_size)
    if known.how == UNKNOWN:
        raise UsageError(
            "the trace does not tell what its requests share, so there is nothing a prefix cache could find",
            hint="give a trace with block ids, token ids or shared_prefix_tokens (docs/traces.md)",
        )
    from kvledger.replay import _cache

    prompts = workload.prompt_tokens.astype(np.int64)
    full = prompts // block_size
    counts = full if whole_blocks else -(-prompts // block_size)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    total = int(offsets[-1])
    if total > _MOST_BLOCKS:
        raise UsageError(
            f"the prompts have {counted(total, 'block')} of {counted(block_size, 'token')}, more than {_MOST_BLOCKS:,}",
            hint="give a larger --block-size",
        )
    nodes, tokens = np.empty(total, np.int32), np.empty(total, np.int32)
    slots = np.full(1 << max(4, (2 * total - 1).bit_length()), -1, np.int32)
    covered = np.minimum(known.covered, prompts).astype(np.int32)
    distinct = _cache.name_blocks(
        known.how, known.grain_tokens, known.ids, known.offsets if known.how == BY_CHAIN else offsets, covered,
        prompts, block_size, offsets, nodes, tokens, slots, np.empty(total, np.uint64),
    )  # fmt: skip
    next_uses = np.empty(total, np.int32)
    _cache.find_next_uses(offsets, nodes, np.full(distinct, len(workload), np.int32), next_uses)
    return BlockStream(
        block_size=block_size,
        offsets=offsets,
        nodes=nodes,
        tokens=tokens,
        next_uses=next_uses,
        most_hits=((prompts - 1) // block_size if whole_blocks else counts).astype(np.int32),
        prompt_tokens=workload.prompt_tokens,
        distinct=distinct,
    )


def grain_of(workload: Workload) -> int | None:
    """Return the tokens of a block id of the trace, where all ids cover as many."""
    content = workload.content
    return content.block_tokens if isinstance(content, HashIds) and content.lengths is None else None


def measure_cache(
    stream: BlockStream,
    *,
    sizes: Sequence[int],
    evictions: Sequence[Eviction],
    warm_up_ratio: float = WARM_UP_RATIO,
) -> list[CachePoint]:
    """Run a cache of every size (in blocks) with every eviction.

    Requests come one after the other in the order of the workload. Each finds its longest run of leading blocks that
    are cached, then the rest of it is cached, block after block, as far as blocks of other requests can go. The first
    ``warm_up_ratio`` of the requests only fill the cache.

    Raises:
        UsageError: A size is negative, or the ratio is not from 0 to below 1.
    """
    if not 0 <= warm_up_ratio < 1:
        raise UsageError(f"a warm-up of {warm_up_ratio:g} of the requests is not from 0 to below 1")
    if any(size < 0 for size in sizes):
        raise UsageError(f"a cache of {counted(min(sizes), 'block')} is below 0")
    first = int(stream.requests * warm_up_ratio)
    scratch = np.empty((3, stream.distinct + 1), np.int32)
    order = np.empty(stream.distinct + 1, np.int64)
    return [_measure(stream, eviction, size, first, scratch, order) for size in sizes for eviction in evictions]


def _measure(
    stream: BlockStream,
    eviction: Eviction,
    size: int,
    first: int,
    scratch: NDArray[np.int32],
    order: NDArray[np.int64],
) -> CachePoint:
    from kvledger.replay import _cache

    out = np.zeros(3, np.int64)
    fixed = (stream.offsets, stream.nodes, stream.tokens, stream.most_hits, first, size, scratch)
    runs: dict[Eviction, Callable[[], None]] = {
        Eviction.LRU: lambda: _cache.run_lru(*fixed, out),
        Eviction.FIFO: lambda: _cache.run_fifo(*fixed, out),
        Eviction.BELADY: lambda: _cache.run_belady(*fixed, order, stream.next_uses, out),
    }
    runs[eviction]()
    measured = int(stream.prompt_tokens[first:].sum(dtype=np.int64))
    whole = int(stream.prompt_tokens.sum(dtype=np.int64))
    return CachePoint(
        eviction=eviction,
        blocks=size,
        first=first,
        hit_ratio=int(out[_cache.R_HITS]) / measured if measured else 0.0,
        whole_hit_ratio=int(out[_cache.R_ALL_HITS]) / whole if whole else 0.0,
        filled=bool(out[_cache.R_FILLED]),
    )
