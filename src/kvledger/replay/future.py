"""The future of a prefix cache: which request looks for a block next. Known to a replay, and to nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import CapacityError
from kvledger.replay.identity import BY_CHAIN, UNKNOWN, KnownContent
from kvledger.replay.settings import Settings
from kvledger.replay.workload import Workload

if TYPE_CHECKING:
    from kvledger.replay._future import Future

__all__ = ["find_future"]

_MOST_USES = 2**28


def find_future(workload: Workload, known: KnownContent, *, block_size: int, blocks: int, settings: Settings) -> Future:
    """Return the uses of all blocks of known content, in a pool of ``blocks``.

    A request that is rejected looks for nothing; the last token of a prompt is always computed, so the block that it
    completes is looked for by nobody but those with longer prompts.

    Raises:
        CapacityError: There are too many.
    """
    from kvledger.replay import _cache
    from kvledger.replay._future import Future, find_next_uses

    requests = len(workload)
    covered = np.zeros(requests, np.int64) if known.how == UNKNOWN else known.covered.astype(np.int64)
    counts = covered // block_size
    offsets = np.zeros(requests + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    if total > _MOST_USES:
        raise CapacityError(
            f"the requests have {total:,} blocks of known content, more than the {_MOST_USES:,} whose future can be "
            "looked up",
            hint="use --eviction lru, a larger --block-size, or a part of the trace",
        )
    nodes, after, users = (np.empty(total, np.int32) for _ in range(3))
    slots = np.full(1 << max(4, (2 * total - 1).bit_length()), -1, np.int32)
    distinct = _cache.name_blocks(
        known.how, known.grain_tokens, known.ids, known.offsets if known.how == BY_CHAIN else offsets,
        covered.astype(np.int32), counts * block_size, block_size, offsets, nodes, after, slots,
        np.empty(total, np.uint64),
    )  # fmt: skip
    sought = np.where(_served(workload, block_size, blocks, settings), (workload.prompt_tokens - 1) // block_size, 0)
    sought = np.minimum(sought, counts).astype(np.int32)
    find_next_uses(offsets, nodes, sought, np.full(distinct, -1, np.int32), after, users)
    return Future(offsets=offsets, after=after, users=users)


def _served(workload: Workload, block_size: int, blocks: int, settings: Settings) -> NDArray[np.bool_]:
    """Tell which requests are not rejected."""
    prompts = workload.prompt_tokens.astype(np.int64)
    room = settings.max_model_len - prompts
    limits = room if workload.max_tokens is None else np.where(workload.max_tokens > 0, workload.max_tokens, room)
    outputs = np.minimum(workload.output_tokens, np.maximum(np.minimum(limits, room), 1))
    stored = prompts + outputs - 1
    fits: NDArray[np.bool_] = (room > 0) & (-(-stored // block_size) <= blocks)
    return fits
