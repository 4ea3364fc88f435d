"""Printed numbers and the intervals they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.quantity import add, exact, largest, printed, printed_bytes, smallest, truncated_bytes, whole
from kvledger.engines.quantity import given as setting
from kvledger.ledger import Accuracy
from kvledger.units import GIB, MIB


@given(st.integers(0, 2**50))
def test_a_rounded_size_holds_the_true_one(size):
    text = f"{size / GIB:.2f}"
    assert printed_bytes(text, GIB).holds(size)


@given(st.integers(0, 2**45))
def test_a_size_that_lost_its_zeros_holds_the_true_one(size):
    assert printed_bytes(str(round(size / GIB, 2)), GIB, decimals=2).holds(size)


@given(st.integers(0, 2**50))
def test_a_cut_size_holds_the_true_one(size):
    quantity = truncated_bytes(size // MIB, MIB)
    assert quantity.holds(size)
    assert quantity.high - quantity.low == MIB - 1


@given(st.floats(0, 1))
def test_a_rounded_percentage_holds_the_true_ratio(ratio):
    assert printed(f"{ratio * 100:.1f}", factor=0.01).holds(ratio)


def test_a_printed_zero_is_not_negative():
    assert printed("0.0", factor=0.01).low == 0
    assert printed_bytes("0.00", MIB).low == 0


@pytest.mark.parametrize("text", ["", "1e999", "nan", "inf", "9" * 50, "1.2.3", "x", "--1"])
def test_what_is_no_number_is_none(text):
    assert printed(text) is None
    assert printed_bytes(text, GIB) is None
    assert whole(text) is None


def test_numbers_beyond_belief_are_none():
    assert exact(float("nan")) is None
    assert exact(2.0**61) is None
    assert whole("1" + "0" * 19) is None
    assert printed_bytes("9999999999", GIB) is None


def test_a_setting_is_exact():
    assert setting("0.9").is_exact
    assert not printed("0.9").is_exact


def test_sums_add_the_intervals_and_are_derived():
    total = add([printed_bytes("1.00", MIB), printed_bytes("2.00", MIB)])
    assert total.value == 3 * MIB
    assert total.high - total.low == pytest.approx(0.02 * MIB, abs=4)
    assert total.accuracy is Accuracy.DERIVED
    assert add([exact(1), None]) is None
    assert add([]) is None


def test_the_smallest_and_largest_ignore_what_is_missing():
    assert smallest([None, exact(3), exact(2)]).value == 2
    assert largest([exact(3), None]).value == 3
    assert smallest([None]) is None
