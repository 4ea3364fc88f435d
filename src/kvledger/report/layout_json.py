"""Where everything lies in the pool at one instant, as JSON of bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.replay.snapshot import Blocks, Pieces, Snapshot

__all__ = ["layout_json"]

_MOST_PIECES = 2_048
_MOST_CELLS = 4_096


def layout_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return one snapshot; neighbours are joined where there are too many pieces or blocks to draw."""
    return {
        "moment": str(snapshot.moment),
        "order": str(snapshot.order),
        "step": snapshot.step,
        "time_seconds": snapshot.time_seconds,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "asked_bytes": snapshot.asked_bytes,
        "unit_bytes": snapshot.unit_bytes,
        "accounts_bytes": {str(account): value for account, value in snapshot.ledger.accounts().items()},
        "pieces": None if snapshot.pieces is None else _pieces(snapshot.pieces),
        "blocks": None if snapshot.blocks is None else _blocks(snapshot.blocks, snapshot.unit_bytes),
    }


def _pieces(pieces: Pieces) -> dict[str, Any]:
    """Return the pieces as columns; a joined piece has the number of its first request, and spans the holes inside."""
    every = max(1, -(-len(pieces) // _MOST_PIECES))
    edges = np.arange(0, len(pieces), every)
    ends = np.append(edges[1:], len(pieces)) - 1

    def total(column: NDArray[np.int64]) -> list[int]:
        return [int(value) for value in (np.add.reduceat(column, edges) if len(column) else column)]

    return {
        "joined": every,
        "request": pieces.request[edges].tolist(),
        "start_bytes": pieces.start_bytes[edges].tolist(),
        "end_bytes": (pieces.start_bytes + pieces.size_bytes)[ends].tolist() if len(pieces) else [],
        "size_bytes": total(pieces.size_bytes),
        "used_bytes": total(pieces.used_bytes),
        "reserved_bytes": total(pieces.reserved_bytes),
    }


def _blocks(blocks: Blocks, unit_bytes: int) -> dict[str, Any]:
    """Return cells of one block or more; ``held_bytes`` is what requests refer to, ``shared_blocks`` more than one."""
    count = len(blocks.references)
    every = max(1, -(-count // _MOST_CELLS))
    edges = np.arange(0, count, every)
    columns = {
        "held_bytes": (blocks.references > 0) * unit_bytes,
        "used_bytes": blocks.used_bytes,
        "cached_bytes": blocks.cached_bytes,
        "shared_blocks": (blocks.references > 1).astype(np.int64),
    }
    cells = {name: np.add.reduceat(column, edges).tolist() for name, column in columns.items()}
    return {"blocks_per_cell": every, "blocks": count, **cells}
