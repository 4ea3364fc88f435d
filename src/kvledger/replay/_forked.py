"""Empty tables for requests whose samples fork, or whose blocks are swapped."""

from __future__ import annotations

import numpy as np

from kvledger.pool.content import Content
from kvledger.pool.forks import new_fork_tables
from kvledger.pool.policy import Policy
from kvledger.replay._forks import Forked
from kvledger.replay.identity import UNKNOWN, find_known_content
from kvledger.replay.settings import PoolSize, Settings
from kvledger.replay.table_size import size_tables
from kvledger.replay.workload import Workload

__all__ = ["new_forked"]

_MOST_HOST_BLOCKS = 2**28


def new_forked(workload: Workload, policy: Policy, size: PoolSize, settings: Settings) -> Forked:
    """Return the state of a replay over tables that fork and swap.

    Raises:
        CapacityError: The tables would have too many entries.
        UsageError: The content of the trace does not fit the blocks.
    """
    width = 1 if workload.samples is None or not len(workload) else int(workload.samples.max())
    width = min(width, settings.max_num_seqs)  # requests of more samples are rejected
    room = size_tables(
        workload,
        settings,
        fitting_tokens=size.units * size.unit_tokens,
        block_tokens=size.unit_tokens,
        rows=width,
    )
    beams = np.zeros(0, np.bool_) if workload.beams is None else workload.beams.mask
    turnover, seed = (workload.beams.turnover_ratio, workload.beams.seed) if workload.beams else (0.0, 0)
    return Forked(
        tables=new_fork_tables(
            blocks=size.units,
            host_blocks=min(policy.swap_bytes // size.unit_bytes, _MOST_HOST_BLOCKS) if policy.swaps else 0,
            slots=room.slots,
            width=width,
            longest_blocks=room.longest_blocks,
        ),
        beams=np.ascontiguousarray(beams, np.bool_),
        counts=np.array([0] * 7 + [int(policy.swaps), seed], np.int64),
        content=_content(workload, size.unit_tokens) if policy.prefix_caching else _nothing_known(),
        hits=np.zeros(3 if policy.prefix_caching else (0, 0), np.int64),
        sums=np.zeros(2, np.float64),
        rates=np.array([turnover, settings.clock.d * size.unit_tokens], np.float64),
    )


def _content(workload: Workload, block_size: int) -> Content:
    known = find_known_content(workload, block_size=block_size)
    how = np.array([known.how, known.grain_tokens], np.int64)
    return Content(how=how, offsets=known.offsets, ids=known.ids, covered=known.covered)


def _nothing_known() -> Content:
    none = np.zeros(0, np.int64)
    return Content(how=np.array([UNKNOWN, 1], np.int64), offsets=none, ids=none, covered=none.astype(np.int32))
