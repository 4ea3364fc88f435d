"""How long requests are, as histograms of bounded size, and what blocks of each size lose to their tails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.replay.workload import Workload
from kvledger.traces.statistics import Lengths, lengths_of

__all__ = ["BLOCK_SIZES", "BlockTail", "LengthTable", "tabulate_lengths"]

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTail:
    """What blocks of one size lose in the last block of each request, when it ends.

    ``tail_tokens`` is the mean of the empty slots; ``tail_ratio`` all of them over all slots held.
    """

    block_tokens: int
    tail_tokens: float
    tail_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """Histograms over the same bins: bin ``i`` holds lengths from ``edges[i]`` up to but not including the next edge.

    A request stores ``total - 1`` tokens at most: the KV of its last token is never stored.
    """

    edges: NDArray[np.int64]
    prompt_requests: NDArray[np.int64]
    output_requests: NDArray[np.int64]
    total_requests: NDArray[np.int64]
    prompt: Lengths
    output: Lengths
    total: Lengths
    tails: tuple[BlockTail, ...]


def tabulate_lengths(workload: Workload) -> LengthTable:
    """Count the lengths of a workload in four bins an octave."""
    prompt = workload.prompt_tokens.astype(np.int64)
    output = workload.output_tokens.astype(np.int64)
    total = prompt + output
    edges = _edges(int(total.max()))

    def count(column: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(np.searchsorted(edges, column, side="right") - 1, minlength=len(edges) - 1)

    return LengthTable(
        edges=edges,
        prompt_requests=count(prompt),
        output_requests=count(output),
        total_requests=count(total),
        prompt=lengths_of(prompt),
        output=lengths_of(output),
        total=lengths_of(total),
        tails=tuple(_tail(total - 1, size) for size in BLOCK_SIZES),
    )


def _edges(longest: int) -> NDArray[np.int64]:
    """Return whole numbers about four an octave, the last above ``longest``."""
    octaves = int(np.ceil(np.log2(longest + 1))) + 1
    edges = np.unique(np.round(2.0 ** (np.arange(octaves * _PER_OCTAVE + 1) / _PER_OCTAVE)).astype(np.int64))
    return edges[: int(np.searchsorted(edges, longest, side="right")) + 1]


def _tail(stored: NDArray[np.int64], size: int) -> BlockTail:
    tails = -stored % size
    held = int((stored + tails).sum())
    return BlockTail(
        block_tokens=size,
        tail_tokens=float(tails.mean()),
        tail_ratio=float(tails.sum() / held) if held else 0.0,
    )
