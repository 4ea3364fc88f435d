"""Who holds which block: the tables that a policy needs beside the state of the scheduler, and what runs over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from kvledger.errors import CapacityError, TraceError, UsageError
from kvledger.pool.groups import BlockGroups
from kvledger.pool.policy import Eviction, Kind, Policy
from kvledger.replay.future import find_future
from kvledger.replay.identity import find_known_content
from kvledger.replay.outcome import PrefixHits
from kvledger.replay.settings import Pool, PoolSize, Settings
from kvledger.replay.table_size import size_tables
from kvledger.replay.workload import HashIds, HashKind, Workload
from kvledger.units import counted

if TYPE_CHECKING:
    from kvledger.replay._forks import Forked
    from kvledger.replay._groups import Grouped
    from kvledger.replay._pools import Pooled
    from kvledger.replay._radix import Rooted
    from kvledger.replay._shared import Shared, SharedRuns

__all__ = [
    "NEEDS_CACHE",
    "Keeping",
    "Kernels",
    "Tables",
    "check_tables",
    "groups_of",
    "hits_of",
    "is_forked",
    "kernels_of",
    "lay_tables",
]

Tables: TypeAlias = Union["Shared", "SharedRuns", "Grouped", "Forked", "Rooted", "Pooled"]

NEEDS_CACHE = "add --prefix-caching on"
_MOST_BLOCKS = 2**28


class Keeping(Enum):
    """How a prefix cache keeps its blocks; what it does is the same."""

    RUNS = "runs"
    """As runs that share their fate, where the eviction allows it."""
    BLOCKS = "blocks"
    """One by one, for whoever wants to look at them."""


def lay_tables(
    workload: Workload, policy: Policy, pool: Pool, size: PoolSize, settings: Settings, *, keeping: Keeping
) -> Tables | None:
    """Return the empty tables of a policy whose blocks are told apart; None where counting them is enough.

    Raises:
        CapacityError: There are too many blocks.
        UsageError: The content of the trace does not fit the blocks.
    """
    if is_forked(workload, policy):
        return _fork(workload, policy, size, settings)
    return (
        _group(workload, policy, size, settings)
        or _root(workload, policy, size, settings)
        or _pool_apart(policy, pool, settings)
        or _share(workload, policy, size, settings, keeping)
    )


@dataclass(frozen=True, slots=True)
class Kernels:
    """What goes on for some steps, and what restarts the server; each is compiled at first use."""

    run: Callable[..., int]
    restart: Callable[..., bool]


def kernels_of(policy: Policy, tables: Tables | None) -> Kernels:
    """Return what runs the steps of a policy over its tables."""
    from kvledger.replay import _forks, _groups, _loop, _pools, _prefix, _radix, _shared, _static

    if tables is None:
        if policy.kind is Kind.STATIC_BATCH:
            return Kernels(_static.run_static, _static.restart)
        return Kernels(_loop.run, _loop.restart)
    prefix = Kernels(_prefix.run_prefix, _prefix.restart)
    kernels: dict[type, Kernels] = {
        _forks.Forked: Kernels(_forks.run_forks, _forks.restart),
        _groups.Grouped: Kernels(_groups.run_groups, _groups.restart),
        _pools.Pooled: Kernels(_pools.run_pools, _pools.restart),
        _shared.Shared: prefix,
        _shared.SharedRuns: prefix,
        _radix.Rooted: Kernels(_radix.run_radix, _radix.restart),
    }
    return kernels[type(tables)]


def check_tables(workload: Workload, policy: Policy) -> None:
    """Refuse what a policy cannot have beside each other.

    Raises:
        UsageError: An eviction, an index or two pools stand beside what they are not replayed with.
    """
    _check_eviction(workload, policy)
    _check_two_pools(workload, policy)


def groups_of(policy: Policy) -> BlockGroups | None:
    """Return the groups of layers as a policy keeps them: without a prefix cache a state stays in one block."""
    groups = policy.block_groups
    return groups.uncached() if groups and not policy.prefix_caching else groups


def is_forked(workload: Workload, policy: Policy) -> bool:
    """Tell whether samples fork or victims swap, so that sequences have tables of their own."""
    return policy.swaps or workload.samples is not None


def hits_of(tables: Tables | None, policy: Policy) -> PrefixHits | None:
    """Return what the prefix cache of a policy gave; None when it has none."""
    if tables is None or not policy.prefix_caching:
        return None
    from kvledger.replay._shared import H_AGAIN, H_HITS, H_QUERIES

    counts: Any = tables.hits if hasattr(tables, "hits") else tables.counts  # type: ignore[union-attr]
    hit, queried, again = (int(counts[i]) for i in (H_HITS, H_QUERIES, H_AGAIN))
    return PrefixHits(hit_tokens=hit, queried_tokens=queried, again_tokens=again, eviction=policy.eviction)


def _share(
    workload: Workload, policy: Policy, size: PoolSize, settings: Settings, keeping: Keeping
) -> Shared | SharedRuns | None:
    """Return the pool and the content of a policy with a prefix cache; None when it has none."""
    if not (policy.prefix_caching and policy.kind is Kind.PAGED) or policy.groups is not None or policy.is_radix:
        return None
    from kvledger.replay._shared import new_shared, new_shared_runs

    block = size.unit_tokens
    known = find_known_content(workload, block_size=block, most_tokens=settings.max_model_len)
    _check_trackable("a prefix cache", size)
    room = size_tables(workload, settings, fitting_tokens=size.units * block, block_tokens=block, rows=1)
    content = (np.array([known.how, known.grain_tokens], np.int64), known.offsets, known.ids, known.covered)
    if keeping is Keeping.RUNS and policy.eviction is Eviction.LRU:
        return new_shared_runs(content, blocks=size.units, slots=room.slots, longest_blocks=room.longest_blocks)
    future = None
    if policy.eviction is Eviction.BELADY:
        future = find_future(workload, known, block_size=block, blocks=size.units, settings=settings)
    return new_shared(
        content,
        blocks=size.units,
        slots=room.slots,
        longest_blocks=room.longest_blocks,
        ranked=policy.eviction is not Eviction.LRU,
        future=future,
    )


def _root(workload: Workload, policy: Policy, size: PoolSize, settings: Settings) -> Rooted | None:
    """Return the radix tree and the content of a policy that has one."""
    if not policy.is_radix:
        return None
    if policy.groups is not None:
        raise UsageError(f"`{policy.name}` has groups of layers, over which no radix tree is replayed")
    from kvledger.replay._radix import new_rooted

    _check_trackable("a radix tree", size)
    _check_chains(workload.siblings.workload if workload.siblings else workload)
    known = find_known_content(workload, block_size=size.unit_tokens, most_tokens=settings.max_model_len)
    how = np.array([known.how, known.grain_tokens], np.int64)
    return new_rooted(
        (how, known.offsets, known.ids, known.covered),
        tokens=size.units * size.unit_tokens,
        page_tokens=size.unit_tokens,
        max_seqs=settings.max_num_seqs,
        by_birth=policy.eviction is Eviction.FIFO,
    )


def _check_chains(workload: Workload) -> None:
    """Refuse chain ids that come twice in one request: what stands for all before it can stand at one place only."""
    content = workload.content
    if not isinstance(content, HashIds) or content.kind is not HashKind.CHAIN:
        return
    owner = np.repeat(np.arange(len(workload)), np.diff(content.offsets))
    order = np.lexsort((content.ids, owner))
    again = (np.diff(owner[order]) == 0) & (np.diff(content.ids[order]) == 0)
    if bool(again.any()):
        request = int(owner[order][1:][again][0])
        raise TraceError(
            f"request {request + 1} has the same chain id twice, so its ids do not name all content before them",
            hint="replay it with the index of blocks, `paged:blocks`, or give ids of content",
        )


def _pool_apart(policy: Policy, pool: Pool, settings: Settings) -> Pooled | None:
    """Return the two pools of a policy that has them."""
    if policy.pools_apart is None:
        return None
    from kvledger.replay._pools import new_pooled

    return new_pooled(policy.pools_apart, total_bytes=pool.total_bytes(policy), max_seqs=settings.max_num_seqs)


def _group(workload: Workload, policy: Policy, size: PoolSize, settings: Settings) -> Grouped | None:
    """Return the block tables of a policy over groups of layers; None when all layers keep every token."""
    groups = groups_of(policy)
    if groups is None:
        return None
    from kvledger.replay._grouped import new_grouped

    _check_trackable("a pool over groups of layers", size)
    return new_grouped(workload, groups, blocks=size.units, settings=settings, caching=policy.prefix_caching)


def _fork(workload: Workload, policy: Policy, size: PoolSize, settings: Settings) -> Forked | None:
    """Return the tables of a policy whose samples fork or whose victims are swapped; None where nothing does."""
    if not is_forked(workload, policy):
        return None
    from kvledger.replay._forked import new_forked

    _check_trackable("a pool of blocks that fork or swap", size)
    return new_forked(workload, policy, size, settings)


def _check_two_pools(workload: Workload, policy: Policy) -> None:
    """Refuse what is not replayed over two pools."""
    if policy.kind is not Kind.PAGED or not policy.has_two_pools:
        return
    if policy.two_pools is None:
        raise UsageError(
            f"`{policy.name}` needs to know which layers have a window",
            hint="give --model with a model of full attention beside sliding windows of one length",
        )
    if policy.prefix_caching or policy.groups is not None or is_forked(workload, policy):
        raise UsageError(f"`{policy.name}` is replayed without a prefix cache, other groups, forks and swapping")


def _check_eviction(workload: Workload, policy: Policy) -> None:
    """Refuse an eviction where only the engine's own is replayed; a policy that caches nothing has none."""
    if policy.eviction is Eviction.LRU or policy.kind is not Kind.PAGED or not policy.prefix_caching:
        return
    if policy.is_radix and policy.eviction is Eviction.BELADY:
        raise UsageError(
            f"`{policy.name}` evicts whole leaves of a tree, for which no clairvoyant choice is known",
            hint="use --eviction lru or fifo, or the index of blocks",
        )
    if policy.groups is not None or is_forked(workload, policy):
        what = "groups of layers" if policy.groups is not None else "samples that fork or blocks that swap"
        raise UsageError(f"`{policy.name}` has {what}, which are replayed with eviction `lru` only")


def _check_trackable(what: str, size: PoolSize) -> None:
    if size.units > _MOST_BLOCKS:
        raise CapacityError(
            f"{what} of {counted(size.units, 'block')} is more than the {_MOST_BLOCKS} that can be tracked one by one",
            hint="give less memory or a larger --block-size",
        )
