"""Forks and swapping beside a prefix cache: against the cache without forks, against forks without it, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account
from kvledger.pool import Kind, Policy, Preemption, Sampling
from kvledger.pool.forks import FILLED
from kvledger.pool.prefix import FREE
from kvledger.replay import Pool, Settings, SharedPrefix, Workload, replay
from kvledger.replay.samples import with_beams, with_samples
from kvledger.replay.simulate import assemble

from .by_hand import ORDER, assert_equal, workload
from .test_forks import scenarios as crowds
from .test_forks import traffic_of
from .test_prefix import scenarios

FORKS = Policy(name="p", kind=Kind.PAGED, block_size=4, prefix_caching=True, sampling=Sampling.FORKS)


def series(requests, policy, pool, scheduler):
    chunks = []
    outcome = replay(requests, policy, pool=pool, settings=scheduler, series=chunks.append)
    names = ("accounts", "running", "waiting", "preemptions", "used_blocks")
    return outcome, {name: [v for c in chunks for v in getattr(c, name).tolist()] for name in names}


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.booleans())
def test_one_sample_finds_and_loses_blocks_as_a_request_that_cannot_fork(scenario, swaps):
    """Step by step; where nothing was preempted also with a host to swap to, and otherwise with one too small."""
    requests, (content, _), block, units, scheduler, whole, watermark = scenario
    arrival, prompt, output, _ = (np.array(column) for column in zip(*requests, strict=True))
    traffic = Workload(
        arrival_seconds=arrival.astype(np.float64), prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32), content=content,
    )  # fmt: skip
    policy = replace(FORKS, block_size=block, watermark_ratio=watermark, full_sequence_must_fit=whole)
    arguments = (Pool(bytes_per_token=3, num_blocks=units, block_size=block), Settings(**scheduler))
    plain, rows = series(traffic, policy, *arguments)
    if swaps:
        policy = replace(policy, preemption=Preemption.SWAP, swap_bytes=0 if plain.preemptions else 10**6)
    forked, others = series(with_samples(traffic, 1), policy, *arguments)
    assert others == rows
    assert forked.prefix == plain.prefix
    assert_equal(replace(forked, meaning=plain.meaning), plain)
    assert forked.shared_saving_ratio == pytest.approx(plain.shared_saving_ratio, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(crowds(), st.integers(0, 20))
def test_crowds_of_samples_and_beams_balance_and_leave_an_empty_pool(case, shared):
    """Every step's ledger, and at the end no block that anybody refers to or that counts as filled."""
    traffic = traffic_of(case["requests"], turnover=case["turnover"], seed=case["seed"])
    traffic = replace(traffic, content=SharedPrefix(tokens=np.minimum(traffic.prompt_tokens, shared).astype(np.int32)))
    policy = replace(
        FORKS, block_size=case["block"], full_sequence_must_fit=case["whole"], watermark_ratio=case["watermark"],
        preemption=Preemption.RECOMPUTE if case["host"] is None else Preemption.SWAP,
        swap_bytes=3 * case["block"] * (case["host"] or 0),
    )  # fmt: skip
    scheduler = Settings(**{n: case[n] for n in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")})
    pool = Pool(bytes_per_token=3, num_blocks=case["units"], block_size=case["block"])
    outcome, rows = series(traffic, policy, pool, scheduler)
    assert all(min(row) >= 0 and sum(row) == outcome.capacity_bytes for row in rows["accounts"])
    assert outcome.finished + sum(outcome.rejected.values()) == outcome.requests
    alone, _ = series(traffic, replace(policy, prefix_caching=False), pool, scheduler)
    assert (outcome.finished, outcome.output_tokens) == (alone.finished, alone.output_tokens)
    if outcome.preemptions == alone.preemptions == 0 and not shared:
        assert outcome.steps == alone.steps
        assert outcome.mean_ratio[Account.USED] == pytest.approx(alone.mean_ratio[Account.USED])
        assert outcome.sharing == alone.sharing
    machine = assemble(traffic, policy, pool=pool, settings=scheduler)
    while machine.advance(100) != 0:
        pass
    tables = machine.tables.tables
    assert (tables.pool.counts[FREE], tables.counts[FILLED]) == (case["units"], 0)
    assert not tables.pool.references.any()
    assert not tables.host.references.any()
    assert not tables.marks.any()


def test_two_requests_of_two_samples_share_a_prompt_by_hand():
    """Prompts of 10 in blocks of 4, the first 8 tokens the same, 3 tokens a sample; the second comes a step later.

    Step 1: 3 blocks for the first prompt, 10 slots used. Step 2: its samples write a token each, the first copies the
    last block (4 blocks, 8 + 2 x 3 slots); the second request finds 2 blocks, takes 1 (8 + 6 + 2 slots in 5 blocks).
    Step 3: one token each (8 + 8 slots of the first, 6 of the second in two blocks): 6 blocks; the first ends.
    Step 4: the second has 8 + 2 x 4 slots in 4 blocks, and the 2 blocks that the first filled are cached.
    """
    traffic = replace(
        workload((0, 10, 3), (1, 10, 3)), content=SharedPrefix(tokens=np.array([8, 8], np.int32))
    )  # fmt: skip
    pool = Pool(bytes_per_token=1, num_blocks=10, block_size=4)
    outcome, rows = series(with_samples(traffic, 2), FORKS, pool, Settings(max_model_len=20))
    shown = [
        [row[ORDER.index(a)] for a in (Account.USED, Account.CACHED, Account.INTERNAL)] for row in rows["accounts"]
    ]
    assert shown == [[10, 0, 2], [16, 0, 4], [22, 0, 2], [16, 8, 0]]
    assert rows["used_blocks"] == [3, 5, 6, 4]
    assert (outcome.prefix.hit_tokens, outcome.prefix.queried_tokens) == (8, 20)
    assert outcome.sharing.copied_blocks == 2
    saved = [0, 8 + 8, 3 * 8, 8]
    assert outcome.shared_saving_ratio == pytest.approx(sum(saved) / 4 / 40)


def test_a_preempted_group_finds_the_rounds_of_its_samples_again_and_candidates_only_their_prompt():
    """The later one is preempted when it has 8 blocks, of which the other takes two before it ends and lets it back.

    Of 2 blocks of the prompt and 3 rounds of 2 samples the last round is gone: 8 + 2 x 2 x 4 tokens are found.
    """
    requests = workload((0, 8, 10), (0, 8, 12))
    pool = Pool(bytes_per_token=1, num_blocks=14, block_size=4)
    scheduler = Settings(max_model_len=40)
    sampled, _ = series(with_samples(requests, 2), FORKS, pool, scheduler)
    searched, _ = series(with_beams(requests, 2), FORKS, pool, scheduler)
    assert (sampled.preemptions, sampled.prefix.again_tokens) == (1, 24)
    assert (searched.preemptions, searched.prefix.again_tokens) == (1, 8)


def test_what_the_device_still_has_is_not_brought_back_from_the_host():
    """The same traffic: a group is moved out, and part of it is found where it was."""
    traffic = with_samples(
        replace(workload((0, 8, 20), (0, 8, 12)), content=SharedPrefix(tokens=np.array([8, 8], np.int32))), 2
    )
    policy = replace(FORKS, preemption=Preemption.SWAP, swap_bytes=1000)
    outcome, _ = series(
        traffic, policy, Pool(bytes_per_token=1, num_blocks=14, block_size=4), Settings(max_model_len=40)
    )
    assert outcome.swap.swapped > 0
    assert outcome.swap.in_bytes < outcome.swap.out_bytes
    assert outcome.finished == 2
