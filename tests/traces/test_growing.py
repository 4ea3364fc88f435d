"""A column that grows batch by batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.traces.growing import GrowingColumn


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50), min_size=1, max_size=20))
def test_what_was_appended_is_taken_in_order(batches) -> None:
    column = GrowingColumn(np.int64)
    for batch in batches:
        column.append(batch)
    taken = column.take()
    assert taken.tolist() == [value for batch in batches for value in batch]
    assert taken.dtype == np.int64


def test_values_are_cast_to_the_type_of_the_column() -> None:
    column = GrowingColumn(np.int32)
    column.append(np.array([1.0, 2.0]))
    assert column.take().tolist() == [1, 2]


def test_nothing_appended_is_not_the_same_as_no_rows() -> None:
    column = GrowingColumn(np.float64)
    assert not column
    assert column.take() is None
    column.append([])
    assert column
    assert len(column.take()) == 0


def test_a_column_that_was_taken_begins_anew() -> None:
    column = GrowingColumn(np.int32)
    column.append([1])
    first = column.take()
    column.append([2])
    assert (first.tolist(), column.take().tolist()) == ([1], [2])


@pytest.mark.parametrize("rows", [1 << 16, (1 << 16) + 1, 300_000])
def test_a_taken_column_holds_no_spare_room(rows) -> None:
    column = GrowingColumn(np.int32)
    for begin in range(0, rows, 9999):
        column.append(np.arange(begin, min(rows, begin + 9999)))
    taken = column.take()
    assert taken.nbytes == 4 * rows
    assert (taken == np.arange(rows)).all()
