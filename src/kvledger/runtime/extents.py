"""Contiguous reservation in the engine: the naive way on the same tensors, with the same kernels of attention.

A sequence gets one extent of slots when it is admitted, as long as its reservation, and returns it when it ends. Blocks
have one token, so a table of consecutive blocks is an extent::

    slots    | a a a a a . . . | b b . . . . . . |     hole     | c c c . . . . . |
               computed  reserved                  external or free
"""

from __future__ import annotations

import numpy as np

from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.ledger import Ledger
from kvledger.pool.groups import BlockGroups
from kvledger.runtime.options import Options, Reservation
from kvledger.runtime.sequence import Sequence
from kvledger.runtime.tables import Admission, BlockTables, Numbers, Rooms
from kvledger.units import counted

__all__ = ["Extents", "make_tables"]


class Extents(BlockTables):
    """Tables whose blocks are consecutive slots of one token, placed by best fit.

    Raises:
        ModelError: The layers do not all keep the same tokens, so one extent does not hold a sequence.
        UsageError: Blocks have more than one token.
        CapacityError: The pool does not hold one reservation of the longest sequence.
    """

    def __init__(
        self, groups: BlockGroups, reservation: Reservation, *, blocks: int, slots: int, max_model_len: int
    ) -> None:
        from kvledger.pool import extents

        if len(groups.groups) > 1 or groups.groups[0].span_tokens:
            raise ModelError(
                "layers with a sliding window do not share one extent with the others",
                hint="reserve contiguously only for models whose layers all keep every token",
            )
        if groups.groups[0].block_tokens != 1:
            raise UsageError(
                f"an extent has the grain of a token, and block_size is {groups.groups[0].block_tokens}",
                hint="give block_size=1 together with a contiguous reservation",
            )
        if blocks < max_model_len:
            raise CapacityError(
                f"the pool holds {counted(blocks, 'token')}, and one request may reserve {max_model_len}",
                hint=f"give more memory, or max_model_len={blocks}",
            )
        super().__init__(
            groups, blocks=blocks, slots=slots, max_model_len=max_model_len, in_flight_tokens=1, caching=False
        )
        self._reservation = reservation
        self._max_model_len = max_model_len
        self.holes = extents.new_holes(slots)
        """Starts, sizes and number of the holes; see `pool.extents`."""
        extents.reset(*self.holes, blocks)
        self.sizes = np.zeros(slots, np.int64)
        """Tokens of each slot's extent, 0 without one; (slots,) int64."""
        self._held = 0
        self._asked = 1

    @property
    def free_blocks(self) -> int:
        """Slots that no extent covers."""
        return self.blocks - self._held

    @property
    def cached_blocks(self) -> int:
        """None: an extent is given back whole."""
        return 0

    def size_of(self, sequence: Sequence) -> int:
        """Return the tokens that a sequence reserves."""
        match self._reservation:
            case Reservation.MAX:
                return self._max_model_len
            case Reservation.POW2:
                answer = sequence.most_tokens - sequence.prompt_tokens
                return min(self._max_model_len, sequence.prompt_tokens + (1 << (answer - 1).bit_length()))
            case _:
                return sequence.most_tokens

    def seat(self, sequence: Sequence) -> None:
        """Give a sequence a slot (mutates)."""
        if sequence.slot < 0:
            self._take_slot(sequence)

    def unseat(self, sequence: Sequence) -> None:
        """Take back the extent of a sequence, and its slot (mutates)."""
        from kvledger.pool import extents

        slot = sequence.slot
        if slot < 0:
            return
        size = int(self.sizes[slot])
        if size:
            extents.release(*self.holes, int(self.arrays.blocks[slot, 0, 0]), size)
            self._held -= size
            self.sizes[slot] = 0
            self.arrays.lengths[slot, 0] = 0
        self._spare.append(slot)
        sequence.slot = -1

    def admit(self, sequence: Sequence, budget: int, *, spare: int, whole: bool) -> Admission:  # noqa: ARG002
        """Give a seated sequence its extent (mutates), or refuse; ``whole`` makes no difference to an extent."""
        from kvledger.pool import extents

        size = self._asked = self.size_of(sequence)
        hole = extents.find_hole(*self.holes, size, extents.BEST)
        if hole < 0 or self.free_blocks - size < spare:
            return Admission(hit_tokens=0, tokens=0, asked_blocks=size)
        address = extents.take(*self.holes, hole, size)
        slot = sequence.slot
        self.arrays.blocks[slot, 0, :size] = np.arange(address, address + size)
        self.arrays.lengths[slot, 0] = self.sizes[slot] = size
        self._held += size
        return Admission(hit_tokens=0, tokens=min(len(sequence.tokens), budget), asked_blocks=size)

    def extend(self, sequences: list[Sequence], counts: Numbers) -> Rooms:  # noqa: ARG002
        """Do nothing: the room was reserved."""
        return Rooms(sequences=len(sequences), copies=np.zeros((0, 2), np.int64))

    def disown(self, sequence: Sequence) -> None:
        """Do nothing: nobody finds the content of an extent."""

    def drop_cached(self) -> int:
        """Return 0: nothing is cached."""
        return 0

    def ledger(
        self, sequences: list[Sequence], *, before: Numbers | None = None, head: Sequence | None = None
    ) -> Ledger:
        """Return the balance sheet, where ``sequences`` are all that run, and ``head`` is the next in the queue."""
        from kvledger.pool import extents

        del before
        token_bytes = self.groups.block_bytes
        used = sum(sequence.computed for sequence in sequences)
        asked = self._asked if head is None else self.size_of(head)
        external = int(extents.count_external(self.holes[1], self.holes[2], asked))
        return Ledger(
            capacity=self.capacity_bytes,
            used=used * token_bytes,
            reserved=(self._held - used) * token_bytes,
            external=external * token_bytes,
            free=(self.free_blocks - external) * token_bytes,
        ).check()


def make_tables(groups: BlockGroups, options: Options, *, blocks: int, max_model_len: int) -> BlockTables:
    """Return the tables that the options ask for.

    Raises:
        ModelError: The model's layers cannot be held that way.
        UsageError: Options that do not go together.
        CapacityError: The pool is too small.
    """
    slots = options.max_num_seqs + 1
    if options.reservation is not Reservation.BLOCKS:
        return Extents(groups, options.reservation, blocks=blocks, slots=slots, max_model_len=max_model_len)
    return BlockTables(
        groups,
        blocks=blocks,
        slots=slots,
        max_model_len=max_model_len,
        in_flight_tokens=options.max_num_batched_tokens,
        caching=options.prefix_caching,
    )
