"""A busy hour in short: random arrivals, cancellations, requests that cannot be served, and a model that fails."""

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvledger.errors import Error
from kvledger.runtime import Ending, Engine, Generation, Options, Preemption

pytest.importorskip("torch")
pytest.importorskip("transformers")

from .small_models import VOCABULARY, small_model


class Broken(RuntimeError):
    """What the model raises now and then."""


@dataclass
class Soak:
    """Traffic drawn from a seed, and what became of it."""

    engine: Engine
    random: random.Random
    outcomes: Counter = field(default_factory=Counter)
    open: dict = field(default_factory=dict)
    given_up: set = field(default_factory=set)
    shared: list = field(default_factory=lambda: [[7] * 40, list(range(20, 60))])

    def draw_prompt(self):
        kind = self.random.random()
        if kind < 0.02:
            return self.random.choice([[], [VOCABULARY], [-5], [1] * 500, "text without a tokenizer"])
        prompt = [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(1, 50))]
        return self.random.choice(self.shared)[: self.random.randint(1, 40)] + prompt if kind < 0.5 else prompt

    def draw_generation(self):
        samples = self.random.choice([1] * 8 + [2, 4])
        most = self.random.randint(1, 40)
        return Generation(
            max_tokens=most,
            min_tokens=self.random.choice([0, 0, most]),
            logprobs=self.random.choice([None, None, 0, 3]),
            temperature=self.random.choice([0.0, 1.0]),
            top_p=self.random.choice([1.0, 0.9]),
            seed=self.random.randrange(1000),
            samples=samples,
            stop_token_ids=(self.random.randrange(VOCABULARY),),
            ignore_eos=True,
        )

    def arrive(self):
        generation = self.draw_generation()
        try:
            number = self.engine.submit(self.draw_prompt(), generation)
        except Error as error:
            self.outcomes["refused"] += len(error.message) > 0
        else:
            self.open[number] = generation.samples

    def collect(self, tokens):
        for number in {token.request for token in tokens if token.ending}:
            result = self.engine.take(number)
            if result is not None:
                assert len(result.answers) == self.open.pop(number)
                for answer in result.answers:
                    assert (answer.ending is Ending.ERROR) == (answer.error is not None)
                    self.outcomes[str(answer.ending)] += 1

    def give_up(self, number):
        self.collect(self.engine.cancel(number))
        self.engine.check()

    def give_up_in_every_state(self):
        """Give up a request that is swapped out, preempted, in the middle of its prompt, or one of several samples."""
        running, waiting = self.engine.scheduler.running, self.engine.scheduler.waiting
        states = {
            "swapped": [s for s in waiting if s.saved is not None],
            "preempted": [s for s in waiting if s.was_admitted and s.saved is None],
            "in its prompt": [s for s in running if s.computed < s.prompt_tokens],
            "forked": [s for s in running if s.sample],
        }
        for state, sequences in states.items():
            found = [s.request for s in sequences if s.request in self.open]
            if found:
                self.given_up.add(state)
                self.give_up(self.random.choice(found))

    def run(self, requests, *, check_every):
        run, steps, left = self.engine.runner.run, 0, requests

        def fail_sometimes(schedule):
            if self.random.random() < 0.003:
                raise Broken("out of memory, say")
            return run(schedule)

        self.engine.runner.run = fail_sometimes
        while left or not self.engine.is_idle:
            for _ in range(min(left, self.random.choice([0, 0, 0, 1, 1, 2, 6]))):
                left -= 1
                self.arrive()
            if self.open and self.random.random() < 0.05:
                self.give_up(self.random.choice(list(self.open)))
            if self.random.random() < 0.02:
                self.give_up_in_every_state()
            self.collect(self.engine.step().tokens)
            steps += 1
            if steps % check_every == 0:
                self.engine.check()
        self.engine.runner.run = run
        return steps


def make_soak(seed, preemption, family="llama"):
    swap_bytes = 40_000 if preemption is Preemption.SWAP else 0
    options = Options(
        max_model_len=110,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        preemption=preemption,
        swap_bytes=swap_bytes,
        watermark_ratio=0.02,
    )
    return Soak(Engine(small_model(family), 90_000, block_size=4, options=options), random.Random(seed))


def assert_nothing_is_left(soak, requests):
    engine = soak.engine
    engine.check()
    assert not soak.open
    assert sum(soak.outcomes.values()) >= requests
    assert engine.ledger().held == 0
    assert engine.pages.swapped_bytes == 0
    assert engine.ledger().cached + engine.ledger().free == engine.pages.nbytes
    cached = engine.ledger().cached
    assert engine.scheduler.tables.drop_cached() * engine.layout.groups.block_bytes == cached > 0
    engine.check()
    assert engine.ledger().free == engine.pages.nbytes
    assert len(engine.scheduler.tables._spare) == engine.options.max_num_seqs + 1
    assert not engine._requests
    engine.close()


@pytest.mark.parametrize("preemption", Preemption)
def test_nothing_is_lost_and_nothing_is_left(preemption):
    soak = make_soak(1, preemption)
    soak.run(120, check_every=1)
    assert soak.engine.tally.preemptions > 0
    assert {"refused", "stop", "length", "cancelled"} <= set(soak.outcomes)
    assert {"forked", "swapped" if preemption is Preemption.SWAP else "preempted"} <= soak.given_up
    assert_nothing_is_left(soak, 120)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize(("family", "preemption"), [("llama", Preemption.RECOMPUTE), ("gemma3", Preemption.SWAP)])
def test_memory_stays_flat_through_thousands_of_requests(family, preemption):
    soak = make_soak(2, preemption, family)
    soak.run(500, check_every=20)
    before = resident_bytes()
    soak.run(3000, check_every=20)
    assert resident_bytes() - before < 8 * 2**20
    assert soak.outcomes["error"] > 0
    assert soak.engine.tally.preemptions > 100
    assert_nothing_is_left(soak, 3500)
