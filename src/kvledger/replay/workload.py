"""Requests as columns: what arrives, when, how long, and with which content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import TraceError, UsageError
from kvledger.pool.policy import MOST_SAMPLES
from kvledger.units import counted

__all__ = ["Beams", "Content", "HashIds", "HashKind", "SharedPrefix", "Siblings", "TokenIds", "Workload"]

_MAX_TOKENS = 2**31 - 1
_LATEST_SECONDS = 2.0**40  # beyond, a double no longer tells the steps of an engine apart
_ROWS = 2**20
_MOST_SEQUENCES = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Content identity by length: that many leading tokens come from one common stream, the rest is unique.

    ``tokens``: (requests,), int32.
    """

    tokens: NDArray[np.int32]


class HashKind(StrEnum):
    """What a hash id identifies."""

    CHAIN = "chain"
    """The block and everything before it (equal ids mean equal whole prefixes)."""
    CONTENT = "content"
    """The block's own content, wherever it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashIds:
    """Content identity by block ids. Request ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``.

    ``offsets``: (requests + 1,), int64. ``ids``: (total,), int64. Every id covers ``block_tokens`` tokens, the last of
    a request what is left; where blocks differ in length, ``lengths``: (total,), int32, says how long each is.
    Ids of different scopes never mean the same content; readers renumber them so that ids are global.
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    block_tokens: int
    kind: HashKind
    lengths: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """Content identity by tokens. Request ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``: prompt, then output if known.

    ``offsets``: (requests + 1,), int64. ``ids``: (total,), int32.
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.int32]


Content = SharedPrefix | HashIds | TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """Which requests search with beams, so that their samples are candidates, and how candidates fork and die.

    After a step, with probability ``turnover_ratio``, every candidate continues one of the living ones, drawn evenly
    with replacement: those drawn twice fork, those not drawn die. Draws depend on the seed, the request and its length
    alone. ``mask``: (requests,), bool.
    """

    mask: NDArray[np.bool_]
    turnover_ratio: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no chance or no seed."""
        if not 0 <= self.turnover_ratio <= 1:
            raise UsageError(f"the turnover of beams is {self.turnover_ratio:g}, not from 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"the seed of beams is {self.seed}, not from 0 to 2**63 - 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival, as columns of equal length.

    Invariant: arrivals are finite and never go backwards; prompts and outputs have at least one token;
    ``max_tokens`` is 0 where the request declared none. See :meth:`check`.

    Shapes: all (requests,); ``arrival_seconds`` float64, the token columns int32, ``session`` int32 (-1: none).
    ``samples`` are the answers that a request decodes at the same time, each of ``output_tokens`` (None: one).
    """

    arrival_seconds: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    max_tokens: NDArray[np.int32] | None = None
    content: Content | None = None
    session: NDArray[np.int32] | None = None
    samples: NDArray[np.int32] | None = None
    beams: Beams | None = None
    siblings: Siblings | None = None

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_seconds)

    @property
    def span_seconds(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_seconds[-1] - self.arrival_seconds[0]) if len(self) else 0.0

    @property
    def longest_tokens(self) -> int:
        """The largest prompt plus output of any request."""
        if not len(self):
            return 0
        return max(
            int((self.prompt_tokens[i : i + _ROWS].astype(np.int64) + self.output_tokens[i : i + _ROWS]).max())
            for i in range(0, len(self), _ROWS)
        )

    def check(self) -> Workload:
        """Return the workload itself when its invariant holds.

        Raises:
            TraceError: A column has another length or holds no integers, arrivals go backwards or are no times, or a
                length is below 1.
        """
        n = len(self)
        columns = {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        if self.max_tokens is not None:
            columns["max_tokens"] = self.max_tokens
        if self.samples is not None:
            columns["samples"] = self.samples
        for name, column in columns.items():
            if len(column) != n:
                raise TraceError(f"column `{name}` has {counted(len(column), 'row')}, arrivals have {n}")
            if column.dtype.kind not in "iu":
                raise TraceError(f"column `{name}` holds {column.dtype}, not integers")
            smallest = 0 if name == "max_tokens" else 1
            if n and int(column.min()) < smallest:
                raise TraceError(f"column `{name}` has the value {int(column.min())}, below {smallest}")
            if n and int(column.max()) > _MAX_TOKENS:
                raise TraceError(f"column `{name}` has the value {int(column.max())}, above {_MAX_TOKENS}")
        self._check_samples()
        for i in range(0, n, _ROWS):  # in pieces, so that a long trace needs no second copy
            _check_arrivals(self.arrival_seconds[max(0, i - 1) : i + _ROWS])
        return self

    def _check_samples(self) -> None:
        if self.beams is not None and (self.samples is None or len(self.beams.mask) != len(self)):
            raise TraceError(
                f"beams are told for {counted(len(self.beams.mask), 'request')}, but {counted(len(self), 'request')} "
                f"have {'no' if self.samples is None else 'a'} number of samples"
            )
        if self.samples is None or not len(self):
            return
        if int(self.samples.max()) > MOST_SAMPLES:
            raise TraceError(
                f"a request has {counted(int(self.samples.max()), 'sample')}, more than {MOST_SAMPLES}",
                hint="is this column really the number of answers to one prompt?",
            )
        if self.sequences > _MOST_SEQUENCES:
            raise TraceError(
                f"the requests have {counted(self.sequences, 'sample')} together, more than {_MOST_SEQUENCES}"
            )

    @property
    def sequences(self) -> int:
        """The samples of all requests."""
        return len(self) if self.samples is None else int(self.samples.sum(dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """Requests that are samples of others: those of one request share its whole prompt, whatever else is known of it.

    ``parents``: (requests,), int64, rising: the request of ``workload`` that each is a sample of.
    """

    workload: Workload
    parents: NDArray[np.int64]


def _check_arrivals(seconds: NDArray[np.float64]) -> None:
    if not bool(np.isfinite(seconds).all()):
        raise TraceError("an arrival time is not a finite number")
    if bool((np.diff(seconds) < 0).any()):
        raise TraceError("arrival times go backwards", hint="sort the requests by arrival")
    furthest = float(max(abs(seconds[0]), abs(seconds[-1])))
    if furthest > _LATEST_SECONDS:
        raise TraceError(
            f"an arrival time is {furthest:g} seconds from zero, more than {_LATEST_SECONDS:.0f}",
            hint="are the times in milliseconds or nanoseconds? say so with the unit of the column",
        )
