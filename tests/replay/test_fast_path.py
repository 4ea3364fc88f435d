"""The fast path against the plain one, on traffic of thousands of requests."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account
from kvledger.pool import Kind, parse_policy
from kvledger.replay import Clock, Pool, Settings, replay, replay_plainly
from kvledger.testing import policies, schedulers, workloads

from .by_hand import ORDER, assert_equal, workload
from .random_traffic import traffic

CLOCK = Clock(base=0.01, a=2e-5, b=1e-4, c=1e-8)
POLICIES = [
    "max", "declared@first", "pow2@next", "exact@worst", "exact@buddy", "grow", "grow@doubling", "grow@step",
    "static-batch", "paged", "paged@1", "paged@128", "upfront", "no-evict", "vmm",
]  # fmt: skip
UNEVEN = Pool(bytes_per_token=12, memory_bytes=200_000, tensors_per_token=4, vmm_page_bytes=100)


@pytest.mark.parametrize("policy", POLICIES)
def test_thousands_of_requests_give_the_same_numbers_fast_and_plainly(policy):
    """A pool of 16,666 tokens; `vmm` pages hold 33 tokens and 4 bytes of padding."""
    chosen = Settings(max_model_len=900, max_num_seqs=128, max_num_batched_tokens=512, clock=CLOCK)
    arguments = (traffic(3000), parse_policy(policy))
    fast = replay(*arguments, pool=UNEVEN, settings=chosen)
    assert_equal(fast, replay_plainly(*arguments, pool=UNEVEN, settings=chosen))
    assert fast.finished + sum(fast.rejected.values()) == 3000
    assert fast.steps > 2048


@pytest.mark.parametrize("policy", ["grow@segments", "max", "paged"])
def test_kilobytes_a_token_give_the_same_numbers_fast_and_plainly(policy):
    """Segments of 2 and 20 MiB need tokens of real size: 4,096 bytes, in 100 MiB."""
    chosen = Settings(max_model_len=900, max_num_seqs=128, max_num_batched_tokens=512, clock=CLOCK)
    pool = Pool(bytes_per_token=4096, memory_bytes=100 * 2**20)
    arguments = (traffic(3000, rate=80.0), parse_policy(policy))
    fast = replay(*arguments, pool=pool, settings=chosen)
    assert_equal(fast, replay_plainly(*arguments, pool=pool, settings=chosen))
    assert fast.finished + sum(fast.rejected.values()) == 3000
    assert fast.saturated_seconds > 0


@pytest.mark.parametrize("policy", ["max", "exact@first", "paged", "no-evict", "grow@doubling", "vmm"])
@pytest.mark.parametrize("every", [0.7, 9.0])
def test_restarts_fall_into_the_same_step_on_the_fast_path(policy, every):
    """Lengths change for thousands of steps on end, so a stretch would run across many restarts."""
    requests = workload(*((i * 0.5, 20, 3000) for i in range(12)))
    chosen = Settings(
        max_model_len=4096, max_num_seqs=16, clock=CLOCK, restart_every_seconds=every, restart_down_seconds=0.25
    )
    pool = Pool(bytes_per_token=12, memory_bytes=400_000, tensors_per_token=4, vmm_page_bytes=100)
    fast = replay(requests, parse_policy(policy), pool=pool, settings=chosen)
    assert_equal(fast, replay_plainly(requests, parse_policy(policy), pool=pool, settings=chosen))
    assert fast.restarts > 3
    assert fast.finished == 12


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(workloads(), policies(), schedulers(), st.integers(3, 900), st.sampled_from([0.0, 7.0, 40.0]))
def test_any_replay_balances_at_every_step_and_in_every_mean(requests, policy, scheduler, tokens, every):
    """Every policy, `vmm` with uneven pages included: 7 bytes a token in two tensors, pages of 32 bytes, 9 tokens."""
    from dataclasses import replace

    pool = Pool(
        bytes_per_token=7, capacity_tokens=max(tokens, policy.block_size), tensors_per_token=2, vmm_page_bytes=32
    )
    if policy.kind is Kind.VMM and tokens * 7 < 64:
        pool = replace(pool, capacity_tokens=10)
    scheduler = replace(scheduler, restart_every_seconds=every * scheduler.max_model_len)
    chunks = []
    outcome = replay(requests, policy, pool=pool, settings=scheduler, series=chunks.append)
    accounts = np.concatenate([chunk.accounts for chunk in chunks])
    assert (accounts >= 0).all()
    assert (accounts.sum(axis=1) == outcome.capacity_bytes).all()
    assert outcome.finished + sum(outcome.rejected.values()) == outcome.requests
    view = outcome.paper_ratio
    categories = (view.token_states, view.reservation, view.internal_fragmentation, view.external_and_others)
    assert min(categories) >= 0.0
    for ratio, rows in ((outcome.mean_ratio, accounts), (outcome.saturated_ratio, accounts[_waiting(chunks)])):
        assert min(ratio.values()) >= 0.0
        if len(rows):
            expected = rows.mean(axis=0) / outcome.capacity_bytes
            assert [ratio[a] for a in ORDER] == pytest.approx(expected.tolist(), abs=1e-9)
            assert sum(ratio.values()) == pytest.approx(1.0, abs=1e-9)
            assert sum(categories) == pytest.approx(1.0, abs=1e-9)
    assert outcome.factors.product == pytest.approx(outcome.utilisation, abs=1e-9)
    assert outcome.headline_ratio[Account.UNATTRIBUTED] == 0.0
    assert_equal(replay(requests, policy, pool=pool, settings=scheduler), outcome)


def _waiting(chunks):
    return np.concatenate([chunk.waiting for chunk in chunks]) > 0


@settings(max_examples=40, deadline=None)
@given(workloads(declared=False), st.sampled_from([2, 4, 16, 64]))
def test_halving_the_block_size_never_raises_internal_waste(requests, block):
    """In a pool where everything fits at once, so that the schedule is the same."""
    wasted = []
    for size in (block, block // 2):
        chunks = []
        replay(
            requests,
            parse_policy(f"paged@{size}"),
            pool=Pool(bytes_per_token=1, capacity_tokens=64 * 400),
            settings=Settings(max_model_len=400),
            series=chunks.append,
        )
        accounts = np.concatenate([chunk.accounts for chunk in chunks])
        wasted.append(accounts[:, ORDER.index(Account.INTERNAL)])
    assert (wasted[1] <= wasted[0]).all()
