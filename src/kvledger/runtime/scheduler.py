"""Who computes what in a step: first come, first served, prompts in chunks, the last admitted gives way.

These are the semantics of the replay (vLLM V1), so that what a replay says of a trace is what this engine does with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import CapacityError
from kvledger.ledger import Ledger
from kvledger.pool.groups import BlockGroups
from kvledger.runtime.extents import make_tables
from kvledger.runtime.options import Options, Preemption
from kvledger.runtime.sequence import Sequence
from kvledger.runtime.store import NoStore, Saved, Store
from kvledger.units import counted

__all__ = ["Schedule", "Scheduler", "Tally"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What one step computes: ``counts`` tokens of each sequence from ``starts`` on; both (sequences,) int64."""

    sequences: list[Sequence]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    ledger: Ledger
    """The pool in this step, counting the tokens it writes."""
    preempted: int
    refused: bool
    """Whether memory was short: the head of the queue was refused, or somebody gave way."""

    @property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.counts.sum())


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a scheduler has counted since it began."""

    preemptions: int = 0
    swaps: int = 0
    recomputed_tokens: int = 0
    hit_tokens: int = 0
    queried_tokens: int = 0
    """Of first admissions, as is ``hit_tokens``."""


@dataclass(slots=True)
class _Step:
    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    preempted: int = 0
    refused: bool = False


class Scheduler:
    """The running and the waiting sequences over one pool of blocks.

    A step is `schedule`, then the tokens are computed, then `emit`, `fork` and `end` tell what came of it.

    Raises:
        CapacityError: The pool cannot serve one sequence of ``max_model_len`` tokens.
    """

    def __init__(
        self, groups: BlockGroups, options: Options, *, blocks: int, max_model_len: int, store: Store | None = None
    ) -> None:
        in_flight = options.max_num_batched_tokens
        most = groups.most_tokens(blocks, in_flight_tokens=in_flight, max_model_len=max_model_len)
        if most < max_model_len - 1:
            raise CapacityError(
                f"the {blocks:,} blocks of the pool serve one of {counted(most + 1, 'token')}, not of {max_model_len}",
                hint=f"give more memory, or max_model_len={most + 1}",
            )
        self.options = options
        self.max_model_len = max_model_len
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.tally = Tally()
        self.tables = make_tables(groups, options, blocks=blocks, max_model_len=max_model_len)
        self._store: Store = store or NoStore()
        self._spare_blocks = int(options.watermark_ratio * blocks)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn (mutates)."""
        self.waiting.append(sequence)

    def schedule(self) -> Schedule:
        """Decide what the next step computes, and make room for it (mutates)."""
        step = _Step()
        budget = self._extend_running(step)
        if step.preempted == 0:
            self._admit_waiting(step, budget)
        starts = np.array([sequence.computed for sequence in step.sequences], np.int64)
        counts = np.array(step.counts, np.int64)
        before = {id(s): int(start) for s, start in zip(step.sequences, starts, strict=True)}
        for sequence, n in zip(step.sequences, step.counts, strict=True):
            sequence.computed += n
        reached = np.array([before.get(id(s), s.computed) for s in self.running], np.int64)
        ledger = self.tables.ledger(self.running, before=reached, head=self._head)
        return Schedule(
            sequences=step.sequences,
            starts=starts,
            counts=counts,
            ledger=ledger,
            preempted=step.preempted,
            refused=step.refused or step.preempted > 0,
        )

    def ledger(self) -> Ledger:
        """Return the balance sheet of the pool as it is now."""
        return self.tables.ledger(self.running, head=self._head)

    @property
    def _head(self) -> Sequence | None:
        return self.waiting[0] if self.waiting else None

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let a new sequence run that shares every block of a running one (mutates); its seat was kept for it."""
        parent.siblings -= 1
        child.computed = parent.computed
        child.was_admitted = True
        self.tables.fork(parent, child)
        self.running.append(child)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free what it holds (mutates)."""
        if sequence.slot >= 0 and sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.tables.unseat(sequence)
        if sequence.saved is not None:
            self._store.drop(sequence.saved.content)
            sequence.saved = None

    def _extend_running(self, step: _Step) -> int:
        """Extend what runs in admission order; return the tokens left of the budget."""
        budget = self.options.max_num_batched_tokens
        wanted = []
        for sequence in self.running:
            n = min(len(sequence.tokens) - sequence.computed, budget)
            if n == 0:
                break
            wanted.append(n)
            budget -= n
        copies = []
        while len(step.counts) < len(wanted):
            begin = len(step.counts)
            chosen = self.running[begin : len(wanted)]
            rooms = self.tables.extend(chosen, np.array(wanted[begin:], np.int64))
            copies.append(rooms.copies)
            step.sequences += chosen[: rooms.sequences]
            step.counts += wanted[begin : begin + rooms.sequences]
            if rooms.sequences == len(chosen):
                break
            if not self._preempt_for(step, begin + rooms.sequences):
                break
            wanted = wanted[: len(self.running)]
        if copies and sum(map(len, copies)):
            self._store.copy_blocks(np.concatenate(copies))
        return self.options.max_num_batched_tokens - sum(step.counts)

    def _preempt_for(self, step: _Step, index: int) -> bool:
        """Preempt the sequence admitted last; False when that is the one at ``index``, which needed the room."""
        step.preempted += 1
        self._preempt(self.running.pop())
        return index < len(self.running)

    def _preempt(self, victim: Sequence) -> None:
        self.tally.preemptions += 1
        victim.preemptions += 1
        if self.options.preemption is Preemption.SWAP:
            firsts, ends, blocks = self.tables.needed_entries(victim)
            content = self._store.save_blocks(blocks)
            if content is not None:
                victim.saved = Saved(firsts=firsts, ends=ends, content=content)
                self.tally.swaps += 1
        if victim.saved is None:
            self.tally.recomputed_tokens += victim.computed
            victim.computed = 0
        self.tables.unseat(victim)
        self.waiting.appendleft(victim)

    def _admit_waiting(self, step: _Step, budget: int) -> None:
        """Admit from the head of the queue until it is refused."""
        seats = self.options.max_num_seqs - sum(1 + sequence.siblings for sequence in self.running)
        while budget > 0 and self.waiting and seats > self.waiting[0].siblings:
            sequence = self.waiting[0]
            spare = self._spare_blocks if step.sequences else 0
            self.tables.seat(sequence)
            tokens = self._admit(sequence, budget, spare)
            if tokens == 0:
                step.refused = True
                return
            self.waiting.popleft()
            self.running.append(sequence)
            step.sequences.append(sequence)
            step.counts.append(tokens)
            budget -= tokens
            seats -= 1 + sequence.siblings

    def _admit(self, sequence: Sequence, budget: int, spare: int) -> int:
        whole = self.options.full_sequence_must_fit
        saved = sequence.saved
        if saved is not None:
            admission = self.tables.readmit(sequence, saved, budget, spare=spare, whole=whole)
            if admission.tokens:
                self._load(sequence, saved)
            return admission.tokens
        admission = self.tables.admit(sequence, budget, spare=spare, whole=whole)
        if admission.tokens:
            sequence.computed = admission.hit_tokens
            if not sequence.was_admitted:
                self.tally.hit_tokens += admission.hit_tokens
                self.tally.queried_tokens += len(sequence.tokens)
                sequence.cached_tokens = admission.hit_tokens
                sequence.was_admitted = True
        return admission.tokens

    def _load(self, sequence: Sequence, saved: Saved) -> None:
        kept = [
            self.tables.entries(sequence, group)[: end - first]
            for group, (first, end) in enumerate(zip(saved.firsts, saved.ends, strict=True))
        ]
        self._store.load_blocks(saved.content, np.concatenate(kept))
        sequence.saved = None
