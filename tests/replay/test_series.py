"""Rows of every step, in batches."""

import numpy as np
import pytest

from kvledger.errors import UnbalancedLedger
from kvledger.ledger import Account
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, replay

from .by_hand import ORDER, workload

LONG = workload((0, 10, 70_000), (100_000, 10, 70_000))


def rows_of(policy="paged"):
    chunks = []
    outcome = replay(
        LONG,
        parse_policy(policy),
        pool=Pool(bytes_per_token=3, capacity_tokens=100_000),
        settings=Settings(max_model_len=80_000),
        series=chunks.append,
    )
    return outcome, chunks


@pytest.mark.parametrize("policy", ["paged", "exact", "static-batch"])
def test_more_steps_than_a_batch_holds_arrive_in_order_and_none_twice(policy):
    outcome, chunks = rows_of(policy)
    assert outcome.steps == 140_000
    assert len(chunks) > 2
    assert np.concatenate([c.step for c in chunks]).tolist() == list(range(140_000))
    times = np.concatenate([c.time_seconds for c in chunks])
    assert times[[0, 69_999, 70_000, -1]].tolist() == [0.0, 69_999.0, 100_000.0, 169_999.0]


def test_batches_handed_out_are_not_overwritten_later():
    _, chunks = rows_of()
    assert chunks[0].accounts[0].tolist() != chunks[1].accounts[0].tolist()
    assert chunks[0].step[0] == 0
    assert chunks[0].time_seconds[0] == 0.0


def test_rows_are_in_bytes_and_sum_to_the_pool():
    outcome, chunks = rows_of()
    accounts = np.concatenate([c.accounts for c in chunks])
    assert (accounts.sum(axis=1) == outcome.capacity_bytes).all()
    assert accounts[0, ORDER.index(Account.USED)] == 10 * 3
    assert np.concatenate([c.used_blocks for c in chunks])[0] == 1


def test_contiguous_policies_have_no_blocks():
    _, chunks = rows_of("exact")
    assert not np.concatenate([c.used_blocks for c in chunks]).any()


def test_progress_is_reported_up_to_the_last_request():
    reached = []
    replay(
        LONG,
        parse_policy("paged"),
        pool=Pool(bytes_per_token=3, capacity_tokens=100_000),
        settings=Settings(max_model_len=80_000),
        progress=reached.append,
    )
    assert reached == sorted(reached)
    assert reached[-1] == 2


def test_rows_that_do_not_balance_are_our_fault_and_say_so(monkeypatch):
    """Free memory that the kernels lost: 5 held and nothing used shows as internal; more than the pool cannot be."""
    from kvledger.replay import _outcome

    whole = _outcome.series_of

    def broken(state, size):
        state.core.ints[0:0] = 0
        state.log.rows[0, 6] = size.units * size.unit_tokens + size.unit_tokens
        return whole(state, size)

    monkeypatch.setattr(_outcome, "series_of", broken)
    with pytest.raises(UnbalancedLedger, match="do not balance at step 0"):
        rows_of()
