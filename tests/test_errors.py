"""The tree of errors: stable codes, records that are JSON."""

import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger import errors
from kvledger.errors import CapacityError, Error, MissingExtra, SourceError, TraceError, UsageError

TREE = [value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Error)]
CODES = {
    "Error": "KVE000",
    "UsageError": "KVE001",
    "SourceError": "KVE002",
    "TraceError": "KVE003",
    "ModelError": "KVE004",
    "CapacityError": "KVE005",
    "MissingExtra": "KVE006",
    "UnbalancedLedger": "KVE007",
}


def test_codes_never_change():
    codes = {error.__name__: error.code for error in TREE}
    assert {name: codes.get(name) for name in CODES} == CODES


def test_codes_are_unique():
    codes = [error.code for error in TREE]
    assert len(codes) == len(set(codes))


def test_the_tree_drawn_at_the_top_of_the_module_names_every_error():
    assert all(error.__name__ in errors.__doc__ for error in TREE)


def test_every_error_can_be_caught_as_one():
    assert all(issubclass(error, Error) and not issubclass(error, (ValueError, OSError)) for error in TREE)
    assert issubclass(TraceError, SourceError)


def test_a_record_has_code_class_message_and_what_else_is_known():
    record = CapacityError("too small", hint="give more", needed_bytes=5).as_record()
    assert record == {
        "code": "KVE005",
        "error": "CapacityError",
        "message": "too small",
        "hint": "give more",
        "attributes": {"needed_bytes": 5},
    }


def test_a_record_leaves_out_what_is_not_known():
    assert UsageError("no").as_record() == {"code": "KVE001", "error": "UsageError", "message": "no"}


def test_an_error_reads_as_its_message():
    assert str(UsageError("what happened", hint="what next")) == "what happened"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(values)
def test_whatever_the_attributes_are_the_record_is_strict_json(value):
    text = json.dumps(UsageError("no", value=value).as_record(), allow_nan=False)
    assert json.loads(text)["code"] == "KVE001"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, "nan"), (math.inf, "inf"), (Path("a") / "b", str(Path("a/b"))), (np.int64(3), "3"),
        ((1, 2), [1, 2]), ({1: (2, None)}, {"1": [2, None]}), (True, True), (b"x", "b'x'"), (2**70, 2**70),
    ],
)  # fmt: skip
def test_attributes_json_does_not_know_become_text(value, written):
    assert UsageError("no", value=value).as_record()["attributes"] == {"value": written}


def test_a_missing_package_says_exactly_what_to_install():
    error = MissingExtra.for_package("huggingface_hub", extra="hub")
    assert error.hint == "pip install 'kvledger[hub]'"
    assert error.attributes == {"package": "huggingface_hub", "extra": "hub"}
    assert "`huggingface_hub`" in error.message
