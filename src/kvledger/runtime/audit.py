"""Recounting: pool, tables and tensors from independent parts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvledger.errors import UnbalancedLedger
from kvledger.runtime.pages import Pages
from kvledger.runtime.scheduler import Scheduler

__all__ = ["audit"]


def audit(scheduler: Scheduler, pages: Pages | None = None) -> None:
    """Recount references, the free queue, cached identities and bytes of a scheduler and its tensors.

    Raises:
        UnbalancedLedger: Something does not add up; a fault of kvledger.
    """
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
    ledger = scheduler.ledger()
    _equal("held bytes", ledger.held, len(counted) * tables.groups.block_bytes)
    if pages is not None:
        _equal("bytes of the tensors", pages.nbytes, ledger.capacity)


def _equal(what: str, counted: int, stated: int) -> None:
    if counted != stated:
        raise UnbalancedLedger(
            f"{what}: {counted} counted, {stated} stated", hint="this is a fault of kvledger; please report it"
        )
