"""What identifies a cell, and when it is done."""

import pytest

from kvledger.sweep.job import JobResult, failed, key_of


def key(values, inputs=(), version="1"):
    return key_of(values, inputs=dict(inputs), version=version)


def test_the_order_of_settings_does_not_change_a_cell():
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "other",
    [
        key({"a": 1, "b": 3}),
        key({"a": 1}),
        key({"a": 1, "b": "2"}),
        key({"a": True, "b": 2}),
        key({"a": 1.0, "b": 2}),
        key({"a": 1, "b": 2}, {"t": "abc"}),
        key({"a": 1, "b": 2}, version="2"),
        key({"a": 1, "b": float("inf")}),
    ],
)
def test_another_setting_input_or_version_is_another_cell(other):
    assert other != key({"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("code", "final"), [("KVE001", True), ("KVE004", True), ("KVE005", True), ("KVE000", False), ("KVE002", False)]
)
def test_only_errors_that_would_come_again_are_final(code, final):
    assert failed("k", code=code, message="m").is_final is final
    assert failed("k", code=code, message="m").has_errors


def test_rows_with_results_are_final():
    result = JobResult(key="k", rows=[{"policy": "paged"}])
    assert result.is_final
    assert not result.has_errors
