"""The ledger seen from inside an engine: requests' lengths and block tables, so every number is exact.

For each group of layers, block ``j`` of a request that has stored ``n`` tokens holds the tokens ``j * block`` to
``(j + 1) * block``; needed are those from ``start`` on::

    full       start = 0
    window w   start = n - (w - 1), what the next token can still reach
    chunk c    start = n // c * c
    state      the last block, whatever n is

A block in several tables counts once, with the most that any of them needs of it (vLLM 0.32
``v1/core/single_type_kv_cache_manager.py``, ``get_num_skipped_tokens``). Stored are the tokens of the step under way,
too: their slots are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kvledger.ledger import Ledger, Memo
from kvledger.measure.sheet import Unexplained

__all__ = ["GroupKind", "InsideGroup", "InsidePool", "InsideReading", "InsideState", "RequestShare", "RequestTable"]
__all__ += ["draw_inside"]

_Ints = NDArray[np.int64]


class GroupKind(StrEnum):
    """What the layers of a group need of a request's tokens."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    OTHER = "other"
    """Not known: what such a group holds is unattributed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideGroup:
    """One group of layers with a block table of its own."""

    kind: GroupKind
    block_tokens: int
    payload_bytes: int
    """Of a block, the bytes its layers can fill: without padding."""
    reach_tokens: int | None = None
    """Tokens of the window or the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsidePool:
    """The pool of one engine, one rank; block 0 is the null block, which stands for tokens that are not kept."""

    blocks: int
    block_bytes: int
    groups: tuple[InsideGroup, ...]

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can get."""
        return self.blocks - 1

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block; None where layers are in several groups, or keep only some tokens."""
        return self.groups[0].block_tokens if [group.kind for group in self.groups] == [GroupKind.FULL] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTable:
    """One request that may hold blocks; ``tables`` has the block numbers of each group in the order of the tokens."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    stored_tokens: int
    tables: tuple[Sequence[int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideState:
    """A scheduler at one instant."""

    running: int
    waiting: int
    preempted: int
    """Of those waiting, the requests that have emitted a token."""
    prefilling: int
    """Of those running, the requests that have emitted none."""
    live_tokens: int
    """Prompt and output tokens of all requests that have emitted one: what the public counters tell."""
    free_blocks: int
    """Blocks that nobody refers to, cached ones included."""
    cached_blocks: int
    """Of these, the blocks that a later request can still hit."""
    requests: tuple[RequestTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShare:
    """What one request holds; a shared block counts in full for each of its requests."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    stored_tokens: int
    blocks: int
    shared_blocks: int
    """Of these, the blocks that another request refers to as well."""
    held_bytes: int
    needed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideReading:
    """The ledger of one instant, exact, with the shares of the requests."""

    ledger: Ledger
    unattributed: tuple[Unexplained, ...]
    state: InsideState
    held_blocks: int
    used_tokens: int | None
    """Distinct tokens in use; None where layers are in several groups, which count them apart."""
    saved_tokens: int | None
    """Tokens stored besides if nothing were shared; None likewise."""
    requests: tuple[RequestShare, ...]


@dataclass(slots=True)
class _Group:
    """Sums over one group; arrays have a number for each request."""

    blocks: _Ints
    shared: _Ints
    needed: _Ints
    """Tokens (or states) each request needs by itself."""
    distinct_blocks: int = 0
    used: int = 0
    stale: int = 0


@dataclass(slots=True)
class _Sums:
    used_bytes: int = 0
    stale_bytes: int = 0
    saved_bytes: int = 0
    other_bytes: int = 0
    distinct_blocks: int = 0
    blocks: list[_Ints] = field(default_factory=list)
    shared: list[_Ints] = field(default_factory=list)
    needed_bytes: list[_Ints] = field(default_factory=list)


def draw_inside(pool: InsidePool, state: InsideState) -> InsideReading:
    """Draw up the ledger of one instant; the cost is a few array operations over the blocks that are held."""
    sums, tokens, saved = _Sums(), 0, 0
    for number, group in enumerate(pool.groups):
        found = _count_group(group, [request.tables[number] for request in state.requests], state, pool.blocks)
        unit = 1 if group.kind is GroupKind.STATE else group.block_tokens
        tokens, saved = found.used, int(found.needed.sum()) - found.used
        sums.distinct_blocks += found.distinct_blocks
        sums.blocks.append(found.blocks)
        sums.shared.append(found.shared)
        sums.needed_bytes.append(found.needed * group.payload_bytes // unit)
        if group.kind is GroupKind.OTHER:
            sums.other_bytes += found.distinct_blocks * pool.block_bytes
            continue
        sums.used_bytes += found.used * group.payload_bytes // unit
        sums.stale_bytes += found.stale * group.payload_bytes // unit
        sums.saved_bytes += saved * group.payload_bytes // unit
    return _close(pool, state, sums, (tokens, saved) if pool.block_tokens else (None, None))


def _close(pool: InsidePool, state: InsideState, sums: _Sums, tokens: tuple[int | None, int | None]) -> InsideReading:
    block = pool.block_bytes
    held = pool.usable_blocks - state.free_blocks
    rows = [
        (block, "null block: taken for ever, holds nothing"),
        (sums.other_bytes, "held by layers of a kind whose needs are not known"),
        ((held - sums.distinct_blocks) * block, "held, but in no request's table: a transfer or a step is under way"),
    ]
    rows = [(amount, cause) for amount, cause in rows if amount]
    ledger = Ledger(
        capacity=pool.blocks * block,
        used=sums.used_bytes,
        internal=sums.distinct_blocks * block - sums.used_bytes - sums.other_bytes,
        cached=state.cached_blocks * block,
        free=(state.free_blocks - state.cached_blocks) * block,
        unattributed=sum(amount for amount, _ in rows),
        memo=Memo(shared_saving=sums.saved_bytes, stale=sums.stale_bytes),
    ).check()
    return InsideReading(
        ledger=ledger,
        unattributed=tuple(Unexplained(amount=amount, cause=cause) for amount, cause in rows),
        state=state,
        held_blocks=held,
        used_tokens=tokens[0],
        saved_tokens=tokens[1],
        requests=_share_out(state, sums, block),
    )


def _count_group(group: InsideGroup, tables: list[Sequence[int]], state: InsideState, blocks: int) -> _Group:
    """Count one group: every entry of every table, then every distinct block."""
    lengths = np.fromiter((len(table) for table in tables), np.int64, len(tables))
    stored = np.fromiter((request.stored_tokens for request in state.requests), np.int64, len(tables))
    ids = np.fromiter(chain.from_iterable(tables), np.int64, int(lengths.sum()))
    owners = np.repeat(np.arange(len(tables)), lengths)
    places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    filled, needed = _fill(group, places, np.repeat(stored, lengths), np.repeat(lengths, lengths))
    real = ids > 0
    owners, ids, filled, needed = owners[real], ids[real], filled[real], needed[real]
    references = np.bincount(ids, minlength=blocks)
    most_needed, most_filled = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    np.maximum.at(most_needed, ids, needed)
    np.maximum.at(most_filled, ids, filled)
    count = len(tables)
    return _Group(
        blocks=np.bincount(owners, minlength=count),
        shared=np.bincount(owners[references[ids] > 1], minlength=count),
        needed=np.bincount(owners, weights=needed, minlength=count).astype(np.int64),
        distinct_blocks=int(np.count_nonzero(references)),
        used=int(most_needed.sum()),
        stale=int((most_filled - most_needed).sum()),
    )


def _fill(group: InsideGroup, places: _Ints, stored: _Ints, lengths: _Ints) -> tuple[_Ints, _Ints]:
    """Return what each entry of a table has stored and what is still needed of it: tokens, or states."""
    if group.kind is GroupKind.STATE:
        last = (places == lengths - 1).astype(np.int64)
        return last, last
    first = places * group.block_tokens
    start = np.zeros_like(stored)
    if group.kind is GroupKind.WINDOW:
        start = np.maximum(0, stored - (group.reach_tokens or 0) + 1)
    elif group.kind is GroupKind.CHUNK and group.reach_tokens:
        start = stored // group.reach_tokens * group.reach_tokens
    end = np.minimum(stored, first + group.block_tokens)
    filled = np.maximum(0, end - first)
    return filled, np.maximum(0, end - np.maximum(first, start))


def _share_out(state: InsideState, sums: _Sums, block_bytes: int) -> tuple[RequestShare, ...]:
    blocks, shared, needed = (np.sum(parts, axis=0) for parts in (sums.blocks, sums.shared, sums.needed_bytes))
    return tuple(
        RequestShare(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            stored_tokens=request.stored_tokens,
            blocks=int(blocks[at]),
            shared_blocks=int(shared[at]),
            held_bytes=int(blocks[at]) * block_bytes,
            needed_bytes=int(needed[at]),
        )
        for at, request in enumerate(state.requests)
    )
