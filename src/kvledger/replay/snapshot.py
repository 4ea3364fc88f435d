"""Where everything lies in the pool at one instant: who holds which bytes, and where the holes are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvledger.ledger import Ledger

__all__ = ["Blocks", "Moment", "Order", "Pieces", "Snapshot"]


class Moment(StrEnum):
    """Which instant."""

    FULLEST = "fullest"
    """Most of the pool is held by running requests."""
    MOST_WASTE = "most-waste"
    """Most of the pool is reserved, internal or external."""
    MOST_HOLES = "most-holes"
    """Most of the pool is external: free, but in holes too small for the next request."""


class Order(StrEnum):
    """What a place in the map means."""

    ADDRESSES = "addresses"
    """Extents lie where they are drawn."""
    SEGMENTS = "segments"
    """Extents lie so inside their segments, which are drawn one after the other."""
    BLOCKS = "blocks"
    """Blocks are drawn in the order of their numbers."""
    COUNTS = "counts"
    """Blocks are interchangeable and only counted, so requests are drawn one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What each running request holds, in the order of the map. All (pieces,) int64; bytes but for ``request``.

    ``size_bytes`` is used, reserved and internal together; ``request`` is its number in the trace.
    """

    request: NDArray[np.int64]
    start_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    used_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What each block holds, in the order of their numbers. All (blocks,) int64.

    ``references`` counts the running requests that read a block; a block nobody reads is cached or free.
    """

    used_bytes: NDArray[np.int64]
    cached_bytes: NDArray[np.int64]
    references: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The pool between two steps: what ended in the last one has left already.

    ``step`` counts the steps taken; ``time_seconds`` runs from the first arrival; ``asked_bytes`` is the size by which
    ``external`` is judged (0: nothing was asked yet). Either ``pieces`` or ``blocks`` is given.
    """

    moment: Moment
    order: Order
    step: int
    time_seconds: float
    running: int
    waiting: int
    asked_bytes: int
    unit_bytes: int
    ledger: Ledger
    pieces: Pieces | None
    blocks: Blocks | None
