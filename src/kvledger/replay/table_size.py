"""How large the block tables of a replay are: what can be live at a time, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.errors import CapacityError
from kvledger.replay.settings import Settings
from kvledger.replay.workload import Workload
from kvledger.units import counted

__all__ = ["TableSize", "size_tables"]

_MOST_ENTRIES = 2**30
_SPARE_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The tables there are, and the longest request they are for."""

    slots: int
    longest_tokens: int
    longest_blocks: int


def size_tables(
    workload: Workload, settings: Settings, *, fitting_tokens: int, block_tokens: int, rows: int
) -> TableSize:
    """Return the size of tables of so many rows each.

    A request longer than ``fitting_tokens`` is rejected, so that no row is longer; and no more tables are live than
    there are requests, or than run at a time, and one at the head of the queue.

    Raises:
        CapacityError: The tables would have too many entries.
    """
    tokens = min(settings.max_model_len, workload.longest_tokens, fitting_tokens)
    size = TableSize(
        slots=min(settings.max_num_seqs, len(workload)) + 1,
        longest_tokens=tokens,
        longest_blocks=-(-tokens // block_tokens) + _SPARE_BLOCKS,
    )
    entries = size.slots * rows * size.longest_blocks
    if entries > _MOST_ENTRIES:
        raise CapacityError(
            f"{counted(size.slots, 'table')} of {counted(rows, 'row')} for requests of up to "
            f"{counted(tokens, 'token')} have {entries:,} entries, more than {_MOST_ENTRIES:,}",
            hint="give a smaller --max-num-seqs or --max-model-len, or a larger --block-size",
        )
    return size
