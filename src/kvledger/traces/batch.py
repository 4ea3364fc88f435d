"""Rows as columns on their way to a workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.replay.workload import Content, HashIds, HashKind, TokenIds

__all__ = ["Batch", "Identity", "IdentityKind"]

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityKind:
    """Which content identity a builder collects: ``make`` packs offsets, ids and block lengths into the record."""

    make: Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32] | None], Content]

    @classmethod
    def hashes(cls, block_tokens: int, kind: HashKind) -> IdentityKind:
        """Collect block ids, each of ``block_tokens`` tokens unless lengths are given."""
        return cls(
            make=lambda offsets, ids, lengths: HashIds(
                offsets=offsets, ids=ids, block_tokens=block_tokens, kind=kind, lengths=lengths
            )
        )

    @classmethod
    def tokens(cls) -> IdentityKind:
        """Collect token ids."""
        return cls(make=lambda offsets, ids, _: TokenIds(offsets=offsets, ids=ids.astype(np.int32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Ids of a batch: row ``i`` owns ``counts[i]`` of them, in row order."""

    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    lengths: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows as read, NaN where a value is missing or no number. All columns have one length.

    ``samples`` are answers decoded together (missing: one), in a beam search where ``beams`` says so.
    ``first_token_seconds`` and ``end_seconds`` are what was observed, on the clock of ``arrival_seconds``.
    """

    prompt_tokens: _Floats
    output_tokens: _Floats
    arrival_seconds: _Floats | None = None
    max_tokens: _Floats | None = None
    shared_prefix_tokens: _Floats | None = None
    session: NDArray[np.int64] | None = None
    identity: Identity | None = None
    samples: _Floats | None = None
    beams: NDArray[np.bool_] | None = None
    first_token_seconds: _Floats | None = None
    end_seconds: _Floats | None = None
