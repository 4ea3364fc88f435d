"""What a replay with a prefix cache keeps: the pool, the tables, and what is known of the content of each request.

Blocks are kept one by one (`Shared`), or as runs that share their fate (`SharedRuns`). Both answer the same; runs are
many times faster where the ids of a trace cover many blocks, blocks can be ranked and looked at one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvledger.pool import prefix, runs
from kvledger.replay._future import Future
from kvledger.replay._layout import Array

# How the content of a block is known: its chain id and place, its place in a common stream, or not at all.
BY_CHAIN, BY_STREAM, UNKNOWN = range(3)

# Numbers of `counts`; what the head of the queue missed when it was refused is a key, and of runs a place besides.
H_HITS, H_QUERIES, H_AGAIN, H_MISS, H_LOGICAL, H_CLAIRVOYANT, H_RANKED, H_PLACE = range(8)


class Shared(NamedTuple):
    """Blocks one by one."""

    pool: prefix.BlockPool
    tables: Array  # (slots, blocks of the longest request) int32
    counts: Array  # (8,) int64
    how: Array  # (2,) int64: how content is known, and the tokens an id covers
    offsets: Array  # (requests + 1,) int64, or (0,)
    ids: Array  # (total,) int64, or (0,)
    covered: Array  # (requests,) int32: leading tokens whose content is known, or (0,)
    future: Future


class SharedRuns(NamedTuple):
    """Runs of blocks; `Shared` tells what the other arrays are."""

    pool: runs.RunPool
    tables: Array  # (slots, blocks of the longest request, 2) int32: runs, and their blocks
    lengths: Array  # (slots,) int64: of the tables
    counts: Array
    how: Array
    offsets: Array
    ids: Array
    covered: Array


def new_shared(
    content: tuple[Array, Array, Array, Array],
    *,
    blocks: int,
    slots: int,
    longest_blocks: int,
    ranked: bool = False,
    future: Future | None = None,
) -> Shared:
    """Return an empty pool over the content columns ``(how, offsets, ids, covered)``.

    ``ranked``: cached blocks go first in, first out, or with a ``future`` those that are needed last.
    """
    how, offsets, ids, covered = content
    counts = np.zeros(8, np.int64)
    counts[H_CLAIRVOYANT] = future is not None
    return Shared(
        pool=prefix.new_pool(blocks, ranked=ranked),
        tables=np.zeros((slots, longest_blocks), np.int32),
        counts=counts,
        how=how,
        offsets=offsets,
        ids=ids,
        covered=covered,
        future=future
        or Future(offsets=np.zeros(1, np.int64), after=np.zeros(0, np.int32), users=np.zeros(0, np.int32)),
    )


def new_shared_runs(
    content: tuple[Array, Array, Array, Array], *, blocks: int, slots: int, longest_blocks: int
) -> SharedRuns:
    """Return an empty pool of runs over the content columns ``(how, offsets, ids, covered)``."""
    how, offsets, ids, covered = content
    return SharedRuns(
        pool=runs.new_run_pool(blocks),
        tables=np.zeros((slots, longest_blocks, 2), np.int32),
        lengths=np.zeros(slots, np.int64),
        counts=np.zeros(8, np.int64),
        how=how,
        offsets=offsets,
        ids=ids,
        covered=covered,
    )
