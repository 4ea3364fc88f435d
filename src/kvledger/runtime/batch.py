"""One step of all sequences as one packed sequence: where each token goes, and what it attends to.

Rows of a step, those with one token first::

    | a | b | c | d d d d d d | e e e |      a, b, c decode; d and e compute a chunk of their prompts
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import ModelError
from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.scheduler import Schedule
from kvledger.runtime.tables import BlockTables
from kvledger.runtime.team import address_of
from kvledger.units import counted

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner
    from kvledger.runtime.backends import Backend

__all__ = ["Batch", "Chunk", "Decodes", "pack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows from ``row`` on that continue one sequence from token ``start``, in a table ``slot``."""

    row: int
    start: int
    tokens: int
    slot: int

    @property
    def end(self) -> int:
        """Tokens of the sequence that are computed after this step."""
        return self.start + self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """The first rows: one token each, of the table ``slots`` and with ``lengths`` tokens to read; (rows,) int64."""

    slots: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.slots)

    read_tokens: int
    """Tokens that all rows read together."""
    addresses: tuple[int, int]
    """Where slots and lengths lie."""

    @property
    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Slots and lengths."""
        return self.slots, self.lengths


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """What attention needs to know of a step. ``order`` are the places of the schedule's sequences, row by row."""

    tokens: torch.Tensor
    positions: torch.Tensor
    kept: torch.Tensor
    """Rows whose logits are wanted: the last of every sequence that is then fully computed; int64."""
    sampling: list[int]
    """The places in the schedule of the sequences they belong to."""
    decodes: Decodes
    chunks: list[Chunk]
    places: torch.Tensor
    """Where each row is stored, by group: (groups, rows) int64."""
    layout: Layout
    backend: Backend
    attended: int = 0

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Store the keys and values of a layer, and return its answer: (1, rows, heads, head_size)."""
        layer = self._count(module, manner)
        return self.backend.attend(self, layer, query, key, value, manner)

    @property
    def joins(self) -> bool:
        """Whether `attend_joined` can be asked."""
        return self.backend.joins

    def attend_joined(
        self, module: Any, joined: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], manner: Manner
    ) -> torch.Tensor:
        """Do what `attend` does, of queries, keys and values in one tensor, which are not turned to their positions.

        ``joined``: (1, rows, numbers of all heads). ``turns``: cosines and sines, (1, rows, head_size). The answer is
        (1, rows, numbers of the query heads).
        """
        return self.backend.attend_joined(self, self._count(module, manner), joined, turns, manner)

    def _count(self, module: Any, manner: Manner) -> Layer:
        """Count a layer that attends (mutates), and return it."""
        layer = self.layout.layers.get(module.layer_idx)
        if layer is None or layer.window_tokens != manner.window_tokens:
            raise ModelError(
                f"layer {module.layer_idx} attends otherwise than when the engine was made: it was "
                f"{layer} and now has the window {manner.window_tokens}"
            )
        self.attended += 1
        return layer

    def check_attended(self) -> None:
        """Make sure that every layer went through its blocks.

        Raises:
            ModelError: A layer attended elsewhere, so what it answered is not to be trusted.
        """
        if self.attended != len(self.layout.layers):
            raise ModelError(
                f"{self.attended} of {counted(len(self.layout.layers), 'layer')} attended over block tables: the "
                "model does not hand its keyword arguments down to every layer"
            )


def _find_decodes(slots: NDArray[np.int64], lengths: NDArray[np.int64]) -> Decodes:
    return Decodes(
        slots=slots,
        lengths=lengths,
        read_tokens=int(lengths.sum()),
        addresses=(address_of(slots), address_of(lengths)),
    )


def pack(schedule: Schedule, tables: BlockTables, layout: Layout, backend: Backend, device: Any) -> Batch:
    """Lay the tokens of a step out as one packed sequence."""
    import torch

    order = np.argsort(schedule.counts != 1, kind="stable")
    sequences = [schedule.sequences[i] for i in order]
    starts, counts = schedule.starts[order], schedule.counts[order]
    singles = int((counts == 1).sum())
    ends = starts + counts
    rows = np.cumsum(counts) - counts
    tokens = np.empty(int(counts.sum()), np.int64)
    for sequence, row, start, end in zip(sequences, rows, starts, ends, strict=True):
        tokens[row : row + end - start] = sequence.tokens[start:end]
    positions = np.arange(len(tokens)) - np.repeat(rows - starts, counts)
    sampling = [i for i, (s, end) in enumerate(zip(sequences, ends, strict=True)) if end == len(s.tokens)]
    slots = np.array([sequence.slot for sequence in sequences], np.int64)
    return Batch(
        tokens=torch.from_numpy(tokens)[None].to(device),
        positions=torch.from_numpy(positions)[None].to(device),
        kept=torch.from_numpy((rows + counts - 1)[sampling]).to(device),
        sampling=[int(order[i]) for i in sampling],
        decodes=_find_decodes(slots[:singles], ends[:singles]),
        chunks=[
            Chunk(row=int(rows[i]), start=int(starts[i]), tokens=int(counts[i]), slot=int(slots[i]))
            for i in range(singles, len(sequences))
        ],
        places=torch.from_numpy(tables.place(sequences, starts, counts)).to(device),
        layout=layout,
        backend=backend,
    )
