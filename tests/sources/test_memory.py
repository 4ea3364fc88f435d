"""What is said when the machine has no memory left."""

import numpy as np
import pytest

from kvledger.sources.memory import available_bytes, explain_memory


def too_large():
    with pytest.raises(MemoryError) as caught:
        np.zeros((2**30, 2**20), np.int64)
    return caught.value


def test_what_numpy_was_asked_for_and_what_is_there_are_told():
    error = explain_memory(too_large(), available=2**34)
    assert "8192.00 TiB were asked for at once, and 16.00 GiB are available" in error.message
    assert error.attributes == {"needed_bytes": 2**53, "available_bytes": 2**34}
    assert error.hint


def test_where_nobody_says_what_was_asked_for_only_what_is_there_is_told():
    assert explain_memory(MemoryError(), available=2**34).message.endswith("this: 16.00 GiB are still available")
    assert explain_memory(MemoryError(), available=None).message == "the machine has not enough memory for this"


def test_available_memory_is_read_from_the_system(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       25000000 kB\nMemAvailable:   1048576 kB\n")
    assert available_bytes(path) == 2**30
    path.write_text("MemAvailable: many kB\n")
    assert available_bytes(path) != 2**30
    assert (available_bytes() or 1) > 0
