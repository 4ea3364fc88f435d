"""The values of one setting of a grid."""

import pytest

from kvledger.errors import UsageError
from kvledger.sweep.axis import Range, values_of


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ([3, 1, 3], [3, 1]),
        (Range(start=1, end=4, step=1), [1, 2, 3, 4]),
        (Range(start=1, end=5, step=2.5), [1.0, 3.5]),
        (Range(start=0.1, end=0.3, step=0.1), [0.1, 0.2, pytest.approx(0.3)]),
        (Range(start=16, end=200, times=2), [16, 32, 64, 128]),
        (Range(start=10, end=100, times=1.5), [10, 15, 22, 34, 51, 76]),
        (Range(start="1GiB", end="4GiB", times=2), ["1GiB", "2GiB", "4GiB"]),
        (Range(start="1GiB", end="2GiB", step="512MiB"), ["1GiB", "1536MiB", "2GiB"]),
        (Range(start="1000B", end="3000B", step=1000), ["1000", "2000", "3000"]),
        ([True, 1], [True, 1]),
    ],
)
def test_a_list_or_a_range_gives_its_values_once_each(axis, values):
    assert values_of("x", axis) == values


@pytest.mark.parametrize(
    ("axis", "says"),
    [
        ([], "lists no value"),
        (Range(start=1, end=2), "one of `step` and `times`"),
        (Range(start=1, end=2, step=1, times=2), "one of `step` and `times`"),
        (Range(start=2, end=1, step=1), "from 2 to 1"),
        (Range(start="4GiB", end="1GiB", times=2), "from 4GiB to 1GiB"),
        (Range(start=1, end=2, step=0), "not above 0"),
        (Range(start=1, end=2, times=1), "not above 1"),
        (Range(start=0, end=2, times=2), "nowhere"),
        (Range(start=1, end=float("inf"), step=1), "from 1 to inf"),
        (Range(start=1, end=10**9, step=1), "1,000,000,000 values"),
        (Range(start="a lot", end="2GiB", step=1), "not a size"),
        (list(range(20_000)), "20,000 values"),
    ],
)
def test_what_is_no_axis_is_said_with_its_numbers(axis, says):
    with pytest.raises(UsageError, match=says):
        values_of("x", axis)
