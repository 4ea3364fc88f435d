"""How many tokens a contiguous policy holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.pool import sizes

TOKENS = st.integers(1, 2**40)


@given(TOKENS)
def test_a_power_of_two_is_the_smallest_that_is_at_least_the_value(value):
    assert sizes.power_of_two(value) == 1 << (value - 1).bit_length()


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_aligning_gives_the_smallest_multiple_that_is_at_least_the_value(value, grain):
    aligned = sizes.align_up(value, grain)
    assert aligned % grain == 0
    assert 0 <= aligned - value < grain


@pytest.mark.parametrize(
    ("reservation", "tokens"),
    [(sizes.MAX, 4096), (sizes.DECLARED, 100 + 500), (sizes.POW2, 100 + 256), (sizes.EXACT, 100 + 200)],
)
def test_reservations_of_one_request_by_hand(reservation, tokens):
    """Prompt 100, output 200, max_tokens 500, max_model_len 4096; 256 is the power of two above 200."""
    assert sizes.reserved_tokens(reservation, 100, 200, 500, 4096) == tokens


def test_a_reservation_of_a_power_of_two_never_exceeds_the_longest_sequence():
    assert sizes.reserved_tokens(sizes.POW2, 100, 200, 500, 310) == 310


@pytest.mark.parametrize(
    ("growth", "grown", "before"),
    [(sizes.GROW_EXACT, 300, 299), (sizes.GROW_DOUBLING, 512, 256), (sizes.GROW_STEP, 512, 256)],
)
def test_growing_extents_by_hand(growth, grown, before):
    """To hold 300 tokens: 300; the power of two 512; two steps of 256. And the size each had before that."""
    assert sizes.grown_tokens(growth, 300, 256) == grown
    assert sizes.previous_grown_tokens(growth, 300, 256) == before


@given(st.sampled_from([sizes.GROW_EXACT, sizes.GROW_DOUBLING, sizes.GROW_STEP]), TOKENS, st.integers(1, 512))
def test_the_size_before_growing_does_not_hold_the_tokens_and_the_size_after_does(growth, tokens, step):
    grown = sizes.grown_tokens(growth, tokens, step)
    before = sizes.previous_grown_tokens(growth, tokens, step)
    assert before < tokens <= grown
    if before > 0:
        assert sizes.grown_tokens(growth, before, step) == before
