"""The timeline: bounded, and it conserves every sum."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account
from kvledger.pool import parse_policy
from kvledger.replay import Clock, Pool, Settings, Workload, replay

from .by_hand import ORDER, workload
from .random_traffic import traffic

POOL = Pool(bytes_per_token=12, memory_bytes=200_000, tensors_per_token=4, vmm_page_bytes=100)
SETTINGS = Settings(
    max_model_len=900, max_num_seqs=128, max_num_batched_tokens=512, clock=Clock(base=0.01, a=2e-5, b=1e-4, c=1e-8)
)


def assert_conserves(outcome):
    timeline = outcome.timeline
    assert sum(point.steps for point in timeline) == outcome.steps
    assert sum(point.seconds for point in timeline) == pytest.approx(outcome.busy_seconds)
    for account in Account:
        whole = sum(point.ratio[account] * point.seconds for point in timeline)
        assert whole == pytest.approx(outcome.mean_ratio[account] * outcome.busy_seconds, abs=1e-9)
    running = sum(point.running * point.seconds for point in timeline)
    assert running == pytest.approx(outcome.mean_running * outcome.busy_seconds)
    assert max((point.peak_running for point in timeline), default=0) == outcome.peak_running
    assert max((point.peak_waiting for point in timeline), default=0) == outcome.peak_waiting
    assert [point.start_seconds for point in timeline] == sorted(point.start_seconds for point in timeline)
    assert timeline[-1].preemptions == outcome.preemptions
    assert [point.preemptions for point in timeline] == sorted(point.preemptions for point in timeline)


@pytest.mark.parametrize("policy", ["max", "exact", "grow@doubling", "static-batch", "paged", "no-evict", "vmm"])
@pytest.mark.parametrize("requests", [40, 4000])
def test_a_timeline_conserves_the_sums_of_its_steps(policy, requests):
    outcome = replay(traffic(requests), parse_policy(policy), pool=POOL, settings=SETTINGS)
    assert_conserves(outcome)
    assert len(outcome.timeline) <= 2048
    if outcome.steps > 2048:
        assert len(outcome.timeline) > 1024


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3 * 2048 + 5), st.integers(1, 4))
def test_any_number_of_steps_is_merged_without_a_loss(steps, requests):
    """Identical requests of ``steps`` tokens each decode side by side."""
    outcome = replay(
        workload(*((0, 1, steps) for _ in range(requests))),
        parse_policy("paged@16"),
        pool=Pool(bytes_per_token=1, capacity_tokens=4 * (3 * 2048 + 32)),
        settings=Settings(max_model_len=2**20),
    )
    assert outcome.steps == steps
    assert_conserves(outcome)


def test_peaks_survive_the_merging():
    """The largest value of any step, read from the series, is the largest of any stretch."""
    chunks = []
    outcome = replay(traffic(3000), parse_policy("exact"), pool=POOL, settings=SETTINGS, series=chunks.append)
    accounts = np.concatenate([chunk.accounts for chunk in chunks]) / outcome.capacity_bytes
    held = accounts[:, [ORDER.index(a) for a in (Account.USED, Account.RESERVED, Account.INTERNAL)]].sum(axis=1)
    assert max(p.peak_used_ratio for p in outcome.timeline) == pytest.approx(accounts[:, 0].max())
    assert max(p.peak_held_ratio for p in outcome.timeline) == pytest.approx(held.max())
    external = accounts[:, ORDER.index(Account.EXTERNAL)].max()
    assert max(p.peak_external_ratio for p in outcome.timeline) == pytest.approx(external)


def test_a_peak_of_held_pages_is_not_hidden_by_their_padding():
    """Pages of 100 bytes hold 8 tokens of 12 bytes in 4 tensors; the peak is in bytes of the pool, padding included."""
    chunks = []
    outcome = replay(traffic(500), parse_policy("vmm"), pool=POOL, settings=SETTINGS, series=chunks.append)
    accounts = np.concatenate([chunk.accounts for chunk in chunks]) / outcome.capacity_bytes
    held = accounts[:, [ORDER.index(a) for a in (Account.USED, Account.RESERVED, Account.INTERNAL)]].sum(axis=1)
    assert max(p.peak_held_ratio for p in outcome.timeline) == pytest.approx(held.max())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_trace():
    peaks = []
    for requests in (2**20 + 1, 4 * 2**20):
        random = np.random.default_rng(1)
        trace = Workload(
            arrival_seconds=np.cumsum(random.exponential(0.02, requests)),
            prompt_tokens=random.integers(1, 50, requests).astype(np.int32),
            output_tokens=random.integers(1, 50, requests).astype(np.int32),
        )
        tracemalloc.start()
        outcome = replay(trace, parse_policy("paged"), pool=POOL, settings=SETTINGS)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert outcome.finished == requests
        assert not outcome.end_to_end.exact
    assert max(peaks) < 64 * 2**20
    assert peaks[1] - peaks[0] < 2**20
