"""The ledger of Transformers' continuous batching, counted inside its process from the block tables themselves.

``generation/continuous_batching/cache.py`` (5.24): the pool is cut into sectors; a sector belongs to one kind of layers
and is cut into blocks; a block is referenced by requests, kept for its content, or free in its sector::

    pool = 2 trash sectors + free sectors + sectors of each kind
    sectors of a kind = referenced blocks + kept blocks + free blocks

The generation loop goes on while it is counted, so a count that does not add up is taken again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvledger.ledger import Ledger, Memo

__all__ = ["PagedCount", "count_pages"]

_TRIES = 50
_TRASH_SECTORS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCount:
    """The pool at one instant."""

    ledger: Ledger
    """In bytes; the trash sectors, which padding reads and writes, are ``unattributed``."""
    running: int
    waiting: int
    tokens: int
    """Tokens of running requests in the cache, a shared one once for each request."""


def count_pages(cache: Any, scheduler: Any) -> PagedCount | None:
    """Count the pool of a ``PagedAttentionCache``; None when it never stood still long enough.

    Args:
        cache: The ``PagedAttentionCache``.
        scheduler: Its ``Scheduler``, which knows how long each request is.
    """
    for _ in range(_TRIES):
        try:
            found = _count(cache, scheduler)
        except (RuntimeError, KeyError):  # a table changed while it was copied
            continue
        if found is not None:
            return found
    return None


def _count(cache: Any, scheduler: Any) -> PagedCount | None:
    running = list(scheduler.active_requests.items())
    lengths = {request_id: state.current_len() for request_id, state in running}
    used = internal = cached = shared = 0
    free = len(cache.pool.free_sectors) * cache.bytes_per_sector
    for allocator in cache.cache_allocators.values():
        tables = {request_id: list(blocks) for request_id, blocks in list(allocator.block_table.items())}
        filled = _fill(tables, lengths, allocator)
        token = allocator.bytes_per_block // allocator.tokens_per_page
        stored = sum(filled.values())
        used += stored * token
        internal += len(filled) * allocator.bytes_per_block - stored * token
        shared += (_logical(tables, lengths, allocator) - stored) * token
        cached += len(allocator.ledger.cached_blocks) * allocator.bytes_per_block
        free += cache.pool.count_free_blocks(allocator.index) * allocator.bytes_per_block
    capacity = (cache.num_sectors + _TRASH_SECTORS) * cache.bytes_per_sector
    trash = _TRASH_SECTORS * cache.bytes_per_sector
    if used + internal + cached + free + trash != capacity:
        return None
    ledger = Ledger(
        capacity=capacity,
        used=used,
        cached=cached,
        internal=internal,
        free=free,
        unattributed=trash,
        memo=Memo(shared_saving=max(0, shared)),
    )
    return PagedCount(
        ledger=ledger.check(),
        running=len(running),
        waiting=len(scheduler.waiting_requests),
        tokens=sum(lengths.values()),
    )


def _window(allocator: Any) -> int | None:
    return getattr(allocator, "sliding_window", None)


def _stored(length: int, blocks: int, allocator: Any) -> int:
    """Return the tokens a request has in its blocks; layers with a window keep a ring of it."""
    window = _window(allocator)
    kept = length if window is None else min(length, window)
    return min(kept, blocks * int(allocator.tokens_per_page))


def _logical(tables: dict[str, list[int]], lengths: dict[str, int], allocator: Any) -> int:
    return sum(_stored(lengths.get(name, 0), len(blocks), allocator) for name, blocks in tables.items())


def _fill(tables: dict[str, list[int]], lengths: dict[str, int], allocator: Any) -> dict[int, int]:
    """Return the tokens in each block that a request refers to, a shared block once."""
    page, filled = allocator.tokens_per_page, dict[int, int]()
    for name, blocks in tables.items():
        stored = _stored(lengths.get(name, 0), len(blocks), allocator)
        for place, tokens in _spread(stored, len(blocks), page):
            block = blocks[place]
            filled[block] = max(filled.get(block, 0), tokens)
    return filled


def _spread(stored: int, blocks: int, page: int) -> Iterable[tuple[int, int]]:
    return ((place, min(page, max(0, stored - place * page))) for place in range(blocks))
