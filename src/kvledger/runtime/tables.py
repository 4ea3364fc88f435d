"""Block tables of the sequences in an engine: the pool kernels behind methods that leave the tables valid."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UnbalancedLedger
from kvledger.ledger import Ledger, Memo
from kvledger.pool.groups import BlockGroups
from kvledger.runtime.sequence import Sequence
from kvledger.runtime.store import Saved
from kvledger.units import counted

__all__ = ["Admission", "BlockTables", "Rooms"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a waiting sequence was given: tokens found in the prefix cache, and tokens it computes now (0: refused)."""

    hit_tokens: int
    tokens: int
    asked_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """How many sequences got their room, and the blocks to copy first; ``copies``: (copies, 2) int64, from and to."""

    sequences: int
    copies: Numbers


class BlockTables:
    """The pool of blocks, the tables of all sequences by slot, and the ledger of what they hold.

    ``free_blocks`` counts cached blocks too: they can be taken. Every mutating method leaves tables and pool
    consistent; `check` recounts them.
    """

    def __init__(
        self, groups: BlockGroups, *, blocks: int, slots: int, max_model_len: int, in_flight_tokens: int, caching: bool
    ) -> None:
        from kvledger.pool.content import BY_CHAIN, UNKNOWN, Content
        from kvledger.pool.group_tables import new_tables

        self.groups = groups
        self.blocks = blocks
        self.caching = caching
        self._key = secrets.token_bytes(16)
        self._grain = groups.grain_tokens
        each = -(-max_model_len // self._grain) if caching else 0
        content = Content(
            how=np.array([BY_CHAIN if caching else UNKNOWN, self._grain], np.int64),
            offsets=np.arange(slots + 1, dtype=np.int64) * each,
            ids=np.zeros(slots * each, np.int64),
            covered=np.zeros(slots, np.int32),
        )
        self.arrays = new_tables(
            groups,
            content,
            blocks=blocks,
            slots=slots,
            longest_tokens=max_model_len,
            in_flight_tokens=in_flight_tokens,
            max_model_len=max_model_len,
            caching=caching,
        )
        self._spare = list(range(slots - 1, -1, -1))
        self._copies = np.zeros((slots * len(groups.groups), 2), np.int64)
        self._token_bytes = np.array([group.token_bytes for group in groups.groups], np.int64)
        self._marks = np.zeros((3, blocks), np.int32)
        self._amounts = np.zeros(4, np.int64)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the pool."""
        return self.blocks * self.groups.block_bytes

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody refers to."""
        return int(self.arrays.pool.counts[0])

    @property
    def cached_blocks(self) -> int:
        """Those of them whose content can still be found."""
        return int(self.arrays.pool.counts[1])

    def seat(self, sequence: Sequence) -> None:
        """Give a sequence a slot (mutates), and tell the tables what is known of its content."""
        if sequence.slot < 0:
            self._take_slot(sequence)
        self._tell_content(sequence)

    def unseat(self, sequence: Sequence) -> None:
        """Take back every block of a sequence, and its slot (mutates)."""
        from kvledger.runtime import _tables

        if sequence.slot >= 0:
            _tables.free(self.arrays, sequence.slot)
            self._spare.append(sequence.slot)
            sequence.slot = -1

    def admit(self, sequence: Sequence, budget: int, *, spare: int, whole: bool) -> Admission:
        """Give a seated sequence its cached prefix and the blocks of its first chunk (mutates), or refuse.

        ``spare`` blocks must stay free; with ``whole``, all tokens known by now must fit.
        """
        from kvledger.runtime import _tables

        hit, tokens, asked = _tables.admit(
            self.arrays, sequence.slot, len(sequence.tokens), sequence.prompt_tokens, budget, spare, int(whole)
        )
        return Admission(hit_tokens=int(hit), tokens=int(tokens), asked_blocks=int(asked))

    def readmit(self, sequence: Sequence, saved: Saved, budget: int, *, spare: int, whole: bool) -> Admission:
        """Give a seated sequence blocks for what was swapped out and for its next chunk (mutates), or refuse."""
        from kvledger.runtime import _tables

        tokens = min(len(sequence.tokens) - sequence.computed, budget)
        counts = np.array([sequence.computed, tokens, len(sequence.tokens)], np.int64)
        arrays, slot = self.arrays, sequence.slot
        fits = _tables.readmit(arrays, slot, saved.firsts, saved.ends, spare, int(whole), counts)
        return Admission(
            hit_tokens=sequence.computed, tokens=tokens if fits else 0, asked_blocks=self._count_blocks(counts[2])
        )

    def extend(self, sequences: list[Sequence], counts: Numbers) -> Rooms:
        """Make room for more tokens of each sequence, in order, until blocks run out (mutates)."""
        from kvledger.runtime import _tables

        for sequence in sequences:
            self._tell_content(sequence)
        slots, computed = self._columns(sequences)
        done, copied = _tables.extend_all(self.arrays, slots, computed, counts, 0, self._copies, 0)
        return Rooms(sequences=int(done), copies=self._copies[:copied].copy())

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Seat a new sequence that refers to every block of its parent (mutates)."""
        from kvledger.runtime import _tables

        self._take_slot(child)
        child.chain = list(parent.chain)
        self._tell_content(child)
        _tables.fork(self.arrays, parent.slot, child.slot)

    def disown(self, sequence: Sequence) -> None:
        """Let nobody find the blocks of a sequence again: their content is not to be trusted (mutates)."""
        from kvledger.runtime import _tables

        _tables.disown(self.arrays, sequence.slot)

    def drop_cached(self) -> int:
        """Forget every cached block that nobody refers to (mutates); return how many there were."""
        from kvledger.runtime import _tables

        return int(_tables.drop_cached(self.arrays))

    def place(self, sequences: list[Sequence], starts: Numbers, counts: Numbers) -> Numbers:
        """Return where each token of a batch is stored: (groups, tokens), block times block size plus offset."""
        from kvledger.runtime import _tables

        slots, _ = self._columns(sequences)
        places = np.empty((len(self.groups.groups), int(counts.sum())), np.int64)
        _tables.place_tokens(self.arrays, slots, starts, counts, places)
        return places

    def entries(self, sequence: Sequence, group: int) -> NDArray[np.int32]:
        """Return the blocks of a sequence in one group that are not behind a window, a view until the next change."""
        first, end = self.arrays.firsts[sequence.slot, group], self.arrays.lengths[sequence.slot, group]
        blocks: NDArray[np.int32] = self.arrays.blocks[sequence.slot, group, first:end]
        return blocks

    def needed_entries(self, sequence: Sequence) -> tuple[Numbers, Numbers, NDArray[np.int32]]:
        """Free what lies behind windows (mutates); return the first entry and the end of each table, and its blocks.

        The blocks stand group by group.
        """
        from kvledger.runtime import _tables

        slot = sequence.slot
        _tables.free_behind(self.arrays, slot, sequence.computed)
        blocks = np.concatenate([self.entries(sequence, group) for group in range(len(self.groups.groups))])
        return self.arrays.firsts[slot].copy(), self.arrays.lengths[slot].copy(), blocks

    def ledger(
        self,
        sequences: list[Sequence],
        *,
        before: Numbers | None = None,
        head: Sequence | None = None,  # noqa: ARG002
    ) -> Ledger:
        """Return the balance sheet, where ``sequences`` are all that run.

        ``before``: the tokens each had computed before the step that is being taken; by default those it has. The
        ``head`` of the queue makes no difference to blocks: none of them is ever too small for it.
        """
        from kvledger.runtime import _tables

        slots, computed = self._columns(sequences)
        reached = computed if before is None else before
        amounts = self._amounts
        _tables.take_amounts(self.arrays, slots, computed, reached, self._token_bytes, self._marks, amounts)
        used, held, logical, stale = (int(amount) for amount in amounts)
        block_bytes = self.groups.block_bytes
        if held != self.blocks - self.free_blocks:
            raise UnbalancedLedger(
                f"the tables of {counted(len(sequences), 'sequence')} hold {counted(held, 'block')}, but "
                f"{self.blocks - self.free_blocks} of {self.blocks} are not free",
                hint="this is a fault of kvledger; please report it",
            )
        cached = self.cached_blocks * block_bytes
        return Ledger(
            capacity=self.capacity_bytes,
            used=used,
            cached=cached,
            internal=held * block_bytes - used,
            free=self.free_blocks * block_bytes - cached,
            memo=Memo(shared_saving=logical - used, stale=stale),
        ).check()

    def _count_blocks(self, tokens: int) -> int:
        return sum(-(-int(tokens) // group.block_tokens) for group in self.groups.groups)

    def _columns(self, sequences: list[Sequence]) -> tuple[Numbers, Numbers]:
        slots = np.fromiter((s.slot for s in sequences), np.int64, len(sequences))
        return slots, np.fromiter((s.computed for s in sequences), np.int64, len(sequences))

    def _take_slot(self, sequence: Sequence) -> None:
        sequence.slot = self._spare.pop()
        if self.caching:
            self.arrays.content.covered[sequence.slot] = 0

    def _tell_content(self, sequence: Sequence) -> None:
        """Tell the tables the chain ids of the blocks that are full by now."""
        content = self.arrays.content
        if not self.caching:
            return
        known = int(content.covered[sequence.slot]) // self._grain
        if known < len(sequence.tokens) // self._grain:
            chain = sequence.extend_chain(self._grain, self._key)
            at = int(content.offsets[sequence.slot])
            content.ids[at + known : at + len(chain)] = chain[known:]
            content.covered[sequence.slot] = len(chain) * self._grain
