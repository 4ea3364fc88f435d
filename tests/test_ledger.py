"""The laws of the ledger: it balances, it adds, it integrates."""

import copy
from dataclasses import FrozenInstanceError, fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import UnbalancedLedger
from kvledger.ledger import Account, Accuracy, Ledger, LedgerIntegral, Memo, PaperView
from kvledger.testing import ledgers

SHEET = Ledger(capacity=100, used=40, cached=5, reserved=20, internal=10, external=7, free=15, unattributed=3)
SECONDS = st.floats(0, 1e6)


@given(ledgers())
def test_a_ledger_whose_accounts_sum_to_the_pool_is_returned_by_check(ledger):
    assert ledger.check() is ledger
    assert sum(ledger.accounts().values()) == ledger.capacity


@given(ledgers(), st.sampled_from(Account), st.integers(1, 10**6))
def test_one_byte_too_many_in_any_account_is_refused(ledger, account, excess):
    with pytest.raises(UnbalancedLedger):
        replace(ledger, **{str(account): ledger[account] + excess}).check()


def test_the_error_lists_every_addend_their_sum_and_the_pool():
    with pytest.raises(UnbalancedLedger) as caught:
        replace(SHEET, used=41).check()
    message = caught.value.message
    assert "used 41 + cached 5 + reserved 20 + internal 10 + external 7 + free 15 + unattributed 3 = 101" in message
    assert "the pool has 100 bytes" in message
    assert caught.value.attributes == {
        "capacity": 100, "used": 41, "cached": 5, "reserved": 20, "internal": 10, "external": 7, "free": 15,
        "unattributed": 3,
    }  # fmt: skip


def test_a_negative_account_is_refused_even_when_the_sum_is_right():
    with pytest.raises(UnbalancedLedger):
        Ledger(capacity=10, used=12, free=-2).check()


@pytest.mark.parametrize("half", [0.5, np.float64(0.5), "1", None])
def test_what_is_no_whole_number_is_refused(half):
    with pytest.raises((UnbalancedLedger, TypeError)):
        Ledger(capacity=1, used=half, free=half).check()


def test_a_negative_pool_is_refused():
    with pytest.raises(UnbalancedLedger):
        Ledger(capacity=-1).check()


@given(ledgers(), ledgers(), ledgers())
def test_addition_is_account_by_account_commutative_and_associative(a, b, c):
    both = a + b
    assert all(both[account] == a[account] + b[account] for account in Account)
    assert both.capacity == a.capacity + b.capacity
    assert both == b + a
    assert (a + b) + c == a + (b + c)


def test_adding_nothing_changes_nothing():
    assert SHEET + Ledger(capacity=0) == SHEET


def test_adding_to_an_unbalanced_ledger_is_refused():
    with pytest.raises(UnbalancedLedger):
        SHEET + Ledger(capacity=5, used=4)


def test_held_is_what_running_requests_keep_from_others():
    """40 used + 20 reserved + 10 internal."""
    assert SHEET.held == 70


def test_utilisation_is_the_share_in_use_and_zero_without_a_pool():
    assert SHEET.utilisation == 0.4
    assert Ledger(capacity=0).utilisation == 0.0


def test_a_ledger_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        SHEET.used = 1


def test_accounts_are_shown_in_the_order_of_the_design():
    order = ["used", "cached", "reserved", "internal", "external", "free", "unattributed"]
    assert [str(account) for account in SHEET.accounts()] == order


def test_the_ledger_has_one_field_per_account_and_nothing_unaccounted():
    assert {f.name for f in fields(Ledger)} == {str(a) for a in Account} | {"capacity", "memo"}


@pytest.mark.parametrize("account", Account)
def test_every_account_says_in_its_own_words_what_its_bytes_do(account):
    assert len(account.meaning) > 10
    assert [a.meaning for a in Account].count(account.meaning) == 1


def test_memo_lines_add_and_stay_beside_the_sheet():
    memo = Memo(shared_saving=1, reserved_never_used=2, stale=3)
    both = replace(SHEET, memo=memo) + replace(SHEET, memo=memo)
    assert both.memo == Memo(shared_saving=2, reserved_never_used=4, stale=6)
    assert both.check().capacity == 200


@given(st.lists(st.tuples(ledgers(most_bytes=2**30), SECONDS), max_size=8), st.integers(0, 8))
def test_folding_two_stretches_equals_folding_their_concatenation(stretches, cut):
    whole, first, second = LedgerIntegral(), LedgerIntegral(), LedgerIntegral()
    for i, (ledger, seconds) in enumerate(stretches):
        whole.add(ledger, seconds=seconds)
        (first if i < cut else second).add(ledger, seconds=seconds)
    first.merge(second)
    assert first.seconds == pytest.approx(whole.seconds)
    assert first.capacity_byte_seconds == pytest.approx(whole.capacity_byte_seconds)
    assert first.byte_seconds == pytest.approx(whole.byte_seconds)


@given(ledgers(), SECONDS, SECONDS)
def test_integration_is_linear_in_time(ledger, a, b):
    parts, whole = LedgerIntegral(), LedgerIntegral()
    parts.add(ledger, seconds=a)
    parts.add(ledger, seconds=b)
    whole.add(ledger, seconds=a + b)
    assert parts.byte_seconds == pytest.approx(whole.byte_seconds, rel=1e-9, abs=1e-3)


@given(ledgers(), ledgers(), st.floats(0.001, 1e6))
def test_integrating_a_sum_is_summing_the_integrals(a, b, seconds):
    together, apart = LedgerIntegral(), LedgerIntegral()
    together.add(a + b, seconds=seconds)
    apart.add(a, seconds=seconds)
    apart.add(b, seconds=seconds)
    assert together.byte_seconds == pytest.approx(apart.byte_seconds)


@given(st.lists(st.tuples(ledgers(), st.floats(0.001, 1e6)), min_size=1, max_size=8))
def test_mean_ratios_sum_to_one_and_stay_between_the_extremes(stretches):
    integral = LedgerIntegral()
    for ledger, seconds in stretches:
        integral.add(ledger, seconds=seconds)
    ratio = integral.mean_ratio()
    if integral.capacity_byte_seconds:
        assert sum(ratio.values()) == pytest.approx(1.0)
    assert all(-1e-12 <= value <= 1 + 1e-12 for value in ratio.values())


def test_the_mean_weighs_ledgers_by_time():
    """(40 * 1 s + 10 * 3 s) / (100 * 4 s) = 0.175."""
    integral = LedgerIntegral()
    integral.add(SHEET, seconds=1)
    integral.add(Ledger(capacity=100, used=10, free=90), seconds=3)
    assert integral.mean_ratio()[Account.USED] == pytest.approx(0.175)


def test_without_time_every_mean_is_zero():
    assert set(LedgerIntegral().mean_ratio().values()) == {0.0}
    assert list(LedgerIntegral().mean_ratio()) == list(Account)


def test_two_integrals_do_not_share_their_sums():
    first, second = LedgerIntegral(), LedgerIntegral()
    first.add(SHEET, seconds=1)
    assert second.byte_seconds == dict.fromkeys(Account, 0.0)
    assert copy.deepcopy(first) == first


def test_accuracies_are_the_three_of_the_design():
    assert [str(a) for a in Accuracy] == ["measured", "derived", "modelled"]


def test_the_paper_view_has_the_four_categories_of_figure_2_and_what_a_prefix_cache_keeps():
    view = PaperView(token_states=0.2, reservation=0.1, internal_fragmentation=0.6, external_and_others=0.1)
    names = [f.name for f in fields(view)]
    assert names.pop() == "kept_for_reuse"
    assert view.kept_for_reuse == 0.0
    assert names == ["token_states", "reservation", "internal_fragmentation", "external_and_others"]
    assert sum(getattr(view, name) for name in names) == pytest.approx(1.0)
    assert all(a != b for a, b in pairwise(names))
