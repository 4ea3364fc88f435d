"""Whatever sequences share, copy, lose or swap, each reads its own tokens from its blocks.

A store of tokens stands in for keys and values: each slot holds the whole sequence up to its token.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.runtime.audit import audit
from kvledger.runtime.options import Options, Preemption
from kvledger.runtime.scheduler import Scheduler
from kvledger.runtime.sequence import RequestId, Sequence

from .driving import make_groups, smallest_pool

LONGEST = 40


class Tokens:
    """A store whose slots hold what was computed there."""

    def __init__(self, blocks, block_size, room):
        self.slots = np.empty((blocks, block_size), object)
        self.room = room
        self.saved = 0

    def copy_blocks(self, pairs):
        for source, target in pairs:
            self.slots[target] = self.slots[source]

    def save_blocks(self, blocks):
        if self.saved + len(blocks) > self.room:
            return None
        self.saved += len(blocks)
        return self.slots[blocks].copy()

    def load_blocks(self, content, blocks):
        assert len(content) == len(blocks)
        self.slots[blocks] = content
        self.drop(content)

    def drop(self, content):
        self.saved -= len(content)


class Reader:
    """Drives a scheduler, writes every token of a step, and reads back all that it may reach."""

    ends_early = 0.03

    def __init__(self, windows, block, options, pool_ratio, room):
        self.groups = make_groups(*windows, block=block)
        blocks = int(smallest_pool(self.groups, options, LONGEST) * pool_ratio)
        self.store = Tokens(blocks, block, room)
        self.scheduler = Scheduler(self.groups, options, blocks=blocks, max_model_len=LONGEST, store=self.store)
        self.reads = 0

    def slot(self, sequence, group, position):
        size = self.groups.groups[group].block_tokens
        block = self.scheduler.tables.arrays.blocks[sequence.slot, group, position // size]
        assert block >= 0, f"token {position} of {sequence.request} has no block in group {group}"
        return int(block), position % size

    def step(self, random):
        schedule = self.scheduler.schedule()
        for sequence, start, count in zip(schedule.sequences, schedule.starts, schedule.counts, strict=True):
            for position in range(start, start + count):
                for group in range(len(self.groups.groups)):
                    self.store.slots[self.slot(sequence, group, position)] = tuple(sequence.tokens[: position + 1])
        for sequence, start in zip(schedule.sequences, schedule.starts, strict=True):
            for number, group in enumerate(self.groups.groups):
                first = max(0, int(start) - group.span_tokens + 1) if group.span_tokens else 0
                for position in range(first, sequence.computed):
                    read = self.store.slots[self.slot(sequence, number, position)]
                    assert read == tuple(sequence.tokens[: position + 1])
                    self.reads += 1
        audit(self.scheduler)
        for sequence in schedule.sequences:
            if sequence.computed == len(sequence.tokens):
                self.continue_with(sequence, random)
        audit(self.scheduler)
        assert schedule.sequences or self.scheduler.is_idle

    def continue_with(self, sequence, random):
        for sample in range(1, 1 + sequence.siblings):
            child = Sequence(
                request=sequence.request,
                sample=sample,
                tokens=[*sequence.tokens, int(random.integers(3))],
                prompt_tokens=sequence.prompt_tokens,
                most_tokens=sequence.most_tokens,
            )
            self.scheduler.fork(sequence, child)
            if len(child.tokens) == child.most_tokens:
                self.scheduler.end(child)
        sequence.tokens.append(int(random.integers(3)))
        if len(sequence.tokens) >= sequence.most_tokens or random.random() < self.ends_early:
            self.scheduler.end(sequence)


def serve(seed, windows, block, *, caching, swap, budget, pool_ratio):
    options = Options(
        max_num_seqs=6,
        max_num_batched_tokens=budget,
        prefix_caching=caching,
        preemption=Preemption.SWAP if swap else Preemption.RECOMPUTE,
        swap_bytes=int(swap),
    )
    reader = Reader(windows, block, options, pool_ratio, room=swap)
    random = np.random.default_rng(seed)
    shared = random.integers(0, 3, LONGEST).tolist()
    for number in range(14):
        prompt = shared[: random.integers(0, 20)] + random.integers(0, 3, random.integers(1, 10)).tolist()
        most = int(min(len(prompt) + random.integers(1, 15), LONGEST))
        sequence = Sequence(
            request=RequestId(number),
            tokens=prompt,
            prompt_tokens=len(prompt),
            most_tokens=most,
            siblings=int(random.choice([0, 0, 1, 3])),
        )
        reader.scheduler.add(sequence)
        if random.random() < 0.6:
            reader.step(random)
        if random.random() < 0.1 and not reader.scheduler.is_idle:
            known = [*reader.scheduler.running, *reader.scheduler.waiting]
            reader.scheduler.end(known[random.integers(len(known))])
    while not reader.scheduler.is_idle:
        reader.step(random)
    assert reader.store.saved == 0
    assert reader.scheduler.ledger().held == 0
    assert reader.reads > 0
    return reader.scheduler.tally


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    windows=st.sampled_from([(0,), (0, 8), (5,), (3, 8, 0)]),
    block=st.sampled_from([1, 2, 4, 7]),
    caching=st.booleans(),
    swap=st.sampled_from([0, 6, 10_000]),
    budget=st.sampled_from([3, 16, 512]),
    pool_ratio=st.sampled_from([1, 1.5, 4]),
)
def test_each_sequence_reads_its_own_tokens(seed, windows, block, caching, swap, budget, pool_ratio):
    serve(seed, windows, block, caching=caching, swap=swap, budget=budget, pool_ratio=pool_ratio)


@pytest.mark.parametrize("swap", [0, 10_000])
def test_what_is_tried_has_preemptions_hits_and_swaps(swap):
    tally = serve(5, (0,), 4, caching=True, swap=swap, budget=64, pool_ratio=1.5)
    assert tally.preemptions > 0
    assert tally.hit_tokens > 0
    assert (tally.swaps > 0) == (swap > 0)


def test_only_the_first_writer_into_a_shared_block_copies_it():
    reader = Reader((0,), 4, Options(max_num_seqs=4, prefix_caching=False), 3, room=0)
    reader.ends_early = 0
    tables = reader.scheduler.tables
    reader.scheduler.add(Sequence(request=RequestId(0), tokens=[1] * 6, prompt_tokens=6, most_tokens=20, siblings=2))
    random = np.random.default_rng(0)
    reader.step(random)
    # One full block and one with two tokens, which three sequences share.
    assert tables.blocks - tables.free_blocks == 2
    reader.step(random)
    # Two of them took a copy of the second block; the third writes where it is.
    assert tables.blocks - tables.free_blocks == 4
    assert reader.scheduler.ledger().memo.shared_saving == 2 * 4 * reader.groups.token_bytes


def test_a_block_is_known_by_its_tokens_and_all_before_them_and_by_the_key_of_the_engine():
    first, second = (
        Sequence(request=RequestId(i), tokens=[1, 2, 3, 4] * 3, prompt_tokens=12, most_tokens=20) for i in (0, 1)
    )
    key = b"k" * 16
    assert first.extend_chain(4, key) == second.extend_chain(4, key)
    assert len(set(first.chain)) == 3
    second.tokens[5] = 9
    second.chain.clear()
    other = list(second.extend_chain(4, key))
    assert other[0] == first.chain[0]
    assert other[1] != first.chain[1]
    assert other[2] != first.chain[2]
    second.chain.clear()
    assert second.extend_chain(4, b"other" * 3) != other
