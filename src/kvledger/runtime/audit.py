"""Recounting: pool, tables and tensors from independent parts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvledger.errors import UnbalancedLedger
from kvledger.runtime.extents import Extents
from kvledger.runtime.pages import Pages
from kvledger.runtime.scheduler import Scheduler

__all__ = ["audit"]


def audit(scheduler: Scheduler, pages: Pages | None = None) -> None:
    """Recount references, the free queue, cached identities and bytes of a scheduler and its tensors.

    Raises:
        UnbalancedLedger: Something does not add up; a fault of kvledger.
    """
    tables = scheduler.tables
    held_blocks = _audit_extents(scheduler, tables) if isinstance(tables, Extents) else _audit_blocks(scheduler)
    ledger = scheduler.ledger()
    _equal("held bytes", ledger.held, held_blocks * tables.groups.block_bytes)
    if pages is not None:
        _equal("bytes of the tensors", pages.nbytes, ledger.capacity)


def _audit_extents(scheduler: Scheduler, tables: Extents) -> int:
    """Return the slots that extents hold; extents and holes cover each slot once."""
    starts, sizes, meta = tables.holes
    covered = [(int(start), int(size)) for start, size in zip(starts[: meta[0]], sizes[: meta[0]], strict=True)]
    held = 0
    for sequence in scheduler.running:
        blocks = tables.entries(sequence, 0)
        _equal(f"slots of request {sequence.request}", len(blocks), int(tables.sizes[sequence.slot]))
        _equal(f"last slot of request {sequence.request}", int(blocks[-1]), int(blocks[0]) + len(blocks) - 1)
        covered.append((int(blocks[0]), len(blocks)))
        held += len(blocks)
    at = 0
    for start, size in sorted(covered):
        _equal("begin of an extent or a hole", start, at)
        at = start + size
    _equal("slots covered by extents and holes", at, tables.blocks)
    _equal("slots that are not free", tables.blocks - tables.free_blocks, held)
    return held


def _audit_blocks(scheduler: Scheduler) -> int:
    """Return the blocks that somebody refers to."""
    tables = scheduler.tables
    pool = tables.arrays.pool
    counted: Counter[int] = Counter()
    for sequence in scheduler.running:
        for group in range(len(tables.groups.groups)):
            counted.update(int(b) for b in tables.entries(sequence, group) if b >= 0)
    for block in range(tables.blocks):
        _equal(f"references to block {block}", int(pool.references[block]), counted[block])
    queue: list[int] = []
    at = int(pool.after[tables.blocks])
    while at != tables.blocks and len(queue) <= tables.blocks:
        queue.append(at)
        at = int(pool.after[at])
    _equal("free blocks in the queue", len(queue), tables.free_blocks)
    _equal("free and held blocks", len(queue) + len(counted), tables.blocks)
    _equal("cached blocks", int((pool.keys[queue] != 0).sum()) if queue else 0, tables.cached_blocks)
    known = int((pool.keys != 0).sum())
    found = 0
    for first in pool.slots[pool.slots >= 0]:
        while first >= 0:
            found += 1
            first = pool.twins[first]
    _equal("blocks that can be found", found, known)
    _equal("blocks of each group", int(np.sum(tables.arrays.held)), len(counted))
    return len(counted)


def _equal(what: str, counted: int, stated: int) -> None:
    if counted != stated:
        raise UnbalancedLedger(
            f"{what}: {counted} counted, {stated} stated", hint="this is a fault of kvledger; please report it"
        )
