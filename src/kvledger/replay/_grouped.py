"""Empty block tables for a workload over groups of layers."""

from __future__ import annotations

import numpy as np

from kvledger.pool.content import UNKNOWN, Content
from kvledger.pool.group_tables import new_tables
from kvledger.pool.groups import BlockGroups
from kvledger.replay._group_accounts import new_amounts
from kvledger.replay._groups import Grouped
from kvledger.replay.identity import find_known_content
from kvledger.replay.settings import Settings
from kvledger.replay.table_size import size_tables
from kvledger.replay.workload import Workload

__all__ = ["new_grouped"]


def new_grouped(workload: Workload, groups: BlockGroups, *, blocks: int, settings: Settings, caching: bool) -> Grouped:
    """Return the state of a replay over groups of layers.

    Raises:
        CapacityError: The tables would have too many entries.
        UsageError: The prefix cache of such groups is not known, or the ids of the trace do not fit their blocks.
    """
    fitting = groups.most_tokens(
        blocks, in_flight_tokens=settings.max_num_batched_tokens, max_model_len=settings.max_model_len
    )
    room = size_tables(
        workload,
        settings,
        fitting_tokens=fitting,
        block_tokens=min(group.block_tokens for group in groups.groups),
        rows=len(groups.groups),
    )
    tables = new_tables(
        groups,
        _known_content(workload, groups, settings.max_model_len) if caching else _nothing_known(),
        blocks=blocks,
        slots=room.slots,
        longest_tokens=room.longest_tokens,
        in_flight_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        caching=caching,
    )
    return Grouped(tables=tables, counts=np.zeros(3, np.int64), amounts=new_amounts(groups, blocks=blocks))


def _nothing_known() -> Content:
    none = np.zeros(0, np.int64)
    return Content(how=np.array([UNKNOWN, 1], np.int64), offsets=none, ids=none, covered=none.astype(np.int32))


def _known_content(workload: Workload, groups: BlockGroups, most_tokens: int) -> Content:
    groups.check_prefix_caching()
    for size in {group.block_tokens for group in groups.groups}:
        find_known_content(workload, block_size=size, most_tokens=most_tokens)
    known = find_known_content(workload, block_size=groups.grain_tokens, most_tokens=most_tokens)
    how = np.array([known.how, known.grain_tokens], np.int64)
    return Content(how=how, offsets=known.offsets, ids=known.ids, covered=known.covered)
