"""From arrays to an outcome: latencies, factors, and what is refused as a fault of ours."""

import numpy as np
import pytest

from kvledger.errors import UnbalancedLedger
from kvledger.ledger import Account
from kvledger.pool import parse_policy
from kvledger.replay import Clock, Pool, Settings, _outcome, replay, simulate
from kvledger.replay import _layout as at
from kvledger.replay.settings import PoolSize

from .by_hand import run
from .random_traffic import traffic

POOL = Pool(bytes_per_token=12, memory_bytes=200_000)
SETTINGS = Settings(max_model_len=900, max_num_seqs=128, clock=Clock(base=0.01, a=2e-5, b=1e-4, c=1e-8))
SIZE = PoolSize(units=10, unit_tokens=1, unit_bytes=1, token_bytes=1)


def test_percentiles_are_nearest_rank_by_hand():
    """Ten requests one after the other, one step each: they end after 1 ... 10 s."""
    outcome, _ = run([(0, 2, 1)] * 10, "paged@2", tokens=100, max_num_seqs=1)
    latency = outcome.end_to_end
    assert (latency.p50, latency.p90, latency.p95, latency.p99, latency.max) == (5.0, 9.0, 10.0, 10.0, 10.0)
    assert latency.mean == 5.5
    assert latency.exact
    assert outcome.queue.max == 9.0
    assert outcome.first_token == outcome.end_to_end


def test_latencies_are_kept_per_request_in_trace_time():
    outcome, _ = run([(5, 2, 2), (7, 2, 1)], "paged@2", tokens=100)
    assert outcome.latencies.tolist() == [[5.0, 7.0], [6.0, 8.0], [7.0, 8.0]]


def test_a_request_that_is_never_served_has_no_latency():
    outcome, _ = run([(0, 2, 1), (0, 9, 1)], "paged@2", tokens=100)
    assert np.isnan(outcome.latencies[:, 1]).all()
    assert outcome.end_to_end.max == 1.0


def test_a_histogram_of_latencies_is_within_its_stated_error(monkeypatch):
    """Beyond a million requests times are counted in bins of 1/256 octave, so at most 0.14 % off."""
    arguments = (traffic(3000), parse_policy("paged"))
    exact = replay(*arguments, pool=POOL, settings=SETTINGS)
    monkeypatch.setattr(simulate, "_EXACT_LATENCIES", 0)
    binned = replay(*arguments, pool=POOL, settings=SETTINGS)
    assert binned.latencies.shape == (3, 0)
    for name in ("queue", "first_token", "end_to_end"):
        one, other = getattr(exact, name), getattr(binned, name)
        assert not other.exact
        for field in ("p50", "p90", "p95", "p99", "max", "mean"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=0.0014, abs=1e-9), (name, field)


def test_a_histogram_without_requests_has_no_latency(monkeypatch):
    monkeypatch.setattr(simulate, "_EXACT_LATENCIES", 0)
    outcome, _ = run([(0, 9, 1)], "paged@2", tokens=100)
    assert outcome.end_to_end is None


def test_factors_of_an_unused_pool_are_one_where_there_is_nothing_to_divide():
    factors = _outcome.factors_of(dict.fromkeys(Account, 0.0))
    assert (factors.length_ratio, factors.block_efficiency, factors.usable_share) == (1.0, 1.0, 0.0)


def sums(**values):
    row = np.zeros(at.A_LEN)
    for name, value in ({"SECONDS": 1.0} | values).items():
        row[getattr(at, f"A_{name}")] = value
    return row


def test_what_rounding_leaves_around_zero_is_zero():
    ratio = _outcome.ratios_of(sums(USED=10.0 + 1e-12, HELD=10.0 + 1e-12, KEPT=10.0 + 1e-12), SIZE)
    assert ratio[Account.FREE] == 0.0
    assert str(ratio[Account.RESERVED]) == "0.0"


@pytest.mark.parametrize(
    "values", [{"HELD": 11.0}, {"HELD": 5.0, "KEPT": 6.0}, {"HELD": 5.0, "KEPT": 4.0, "USED": 5.0}]
)
def test_a_share_that_is_really_negative_is_our_fault_and_says_so(values):
    with pytest.raises(UnbalancedLedger, match="an account holds -"):
        _outcome.ratios_of(sums(**values), SIZE)


def test_memory_that_does_not_come_back_is_our_fault_and_says_so(monkeypatch):
    real = _outcome.check_returned

    def leak(state):
        state.core.ints[at.I_FREE] -= 3
        real(state)

    monkeypatch.setattr(_outcome, "check_returned", leak)
    with pytest.raises(UnbalancedLedger, match="'free': 3"):
        run([(0, 2, 1)], "paged@2", tokens=100)
