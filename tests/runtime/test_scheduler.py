"""The scheduler of the engine does, step by step and byte by byte, what the replay says it does."""

import numpy as np
import pytest

from kvledger.errors import CapacityError
from kvledger.runtime.options import Options, Preemption
from kvledger.runtime.scheduler import Scheduler
from kvledger.runtime.sequence import RequestId, Sequence

from .driving import Asked, draw_requests, make_groups, replay_rows, run_scheduler, smallest_pool

LONGEST = 130


def draw_setting(seed):
    random = np.random.default_rng(seed)
    windows = [(0,), (0, 8), (3,), (8, 20, 0)][random.integers(4)]
    groups = make_groups(*windows, block=int(random.choice([1, 2, 4, 16])))
    options = Options(
        max_num_seqs=int(random.choice([1, 3, 16])),
        max_num_batched_tokens=int(random.choice([1, 7, 64, 4096])),
        watermark_ratio=float(random.choice([0, 0, 0.1])),
        full_sequence_must_fit=bool(random.integers(2)),
        prefix_caching=bool(random.integers(2)),
    )
    blocks = int(smallest_pool(groups, options, LONGEST) * random.choice([1, 1.3, 3])) + 1
    return groups, options, blocks


def assert_equal_to_the_replay(seed, requests):
    groups, options, blocks = draw_setting(seed)
    asked = draw_requests(requests, seed=seed)
    theirs, outcome = replay_rows(asked, groups, options, blocks=blocks, max_model_len=LONGEST)
    scheduler = Scheduler(groups, options, blocks=blocks, max_model_len=LONGEST)
    ours = list(run_scheduler(scheduler, asked))
    for step, (mine, replayed) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == replayed, f"step {step} of {options} in {blocks} blocks of {groups}"
    if options.prefix_caching:
        assert outcome.prefix.hit_tokens == scheduler.tally.hit_tokens
        assert outcome.prefix.queried_tokens == scheduler.tally.queried_tokens
    return scheduler.tally


@pytest.mark.parametrize("seed", range(12))
def test_every_step_has_the_ledger_of_the_replay(seed):
    assert_equal_to_the_replay(seed, requests=12)


@pytest.mark.slow
def test_every_step_has_the_ledger_of_the_replay_in_long_runs():
    tallies = [assert_equal_to_the_replay(seed, requests=40) for seed in range(1000, 1150)]
    assert sum(tally.preemptions > 0 for tally in tallies) >= 20
    assert sum(tally.hit_tokens > 0 for tally in tallies) >= 20


def test_the_first_come_is_served_first_and_the_last_admitted_gives_way():
    groups = make_groups(0, block=4)
    options = Options(prefix_caching=False, max_model_len=20)
    scheduler = Scheduler(groups, options, blocks=5, max_model_len=20)
    asked = [Asked(0, [1] * 8, [1] * 8), Asked(0, [2] * 8, [2] * 8)]
    rows = list(run_scheduler(scheduler, asked))
    assert rows[0][:3] == (2, 0, 0)
    # Both have 8 tokens in 2 blocks. The ninth of the first takes the last free block, that of the second has none.
    assert rows[1][:3] == (1, 1, 1)


def test_a_step_says_whether_memory_or_the_budget_of_tokens_made_somebody_wait():
    scheduler = Scheduler(make_groups(0, block=4), Options(max_num_batched_tokens=8), blocks=5, max_model_len=20)
    for number, tokens in enumerate([8, 8, 8]):
        prompt = [number] * tokens
        scheduler.add(Sequence(request=RequestId(number), tokens=prompt, prompt_tokens=tokens, most_tokens=tokens + 8))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (len(scheduler.waiting), first.refused) == (1, False)
    assert (second.tokens, second.refused) == (8, False)
    third = scheduler.schedule()  # one block of five is left for the last two
    assert (third.tokens, third.refused, len(scheduler.waiting)) == (0, True, 1)


def test_a_pool_that_cannot_serve_the_longest_sequence_is_refused_with_what_it_can():
    with pytest.raises(CapacityError, match="serve one of 21 tokens") as caught:
        Scheduler(make_groups(0, block=4), Options(), blocks=5, max_model_len=64)
    assert caught.value.hint == "give more memory, or max_model_len=21"


def test_swapping_without_a_store_falls_back_to_computing_again():
    groups = make_groups(0, block=4)
    options = Options(prefix_caching=False, preemption=Preemption.SWAP, swap_bytes=2**20)
    scheduler = Scheduler(groups, options, blocks=5, max_model_len=20)
    rows = list(run_scheduler(scheduler, [Asked(0, [1] * 8, [1] * 8), Asked(0, [2] * 8, [2] * 8)]))
    assert rows[-1][2] == scheduler.tally.preemptions > 0
    assert scheduler.tally.swaps == 0
    assert scheduler.tally.recomputed_tokens > 0
