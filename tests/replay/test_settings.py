"""Pools and how policies divide them; the scheduler's limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import CapacityError, UsageError
from kvledger.pool import parse_policies, parse_policy
from kvledger.replay import Pool, Settings
from kvledger.testing import schedulers


@pytest.mark.parametrize(
    ("policy", "units", "unit_tokens", "unit_bytes"),
    [("max", 409_600, 1, 131_072), ("paged", 25_600, 16, 2_097_152), ("paged@32", 12_800, 32, 4_194_304)],
)
def test_fifty_gibibytes_of_an_8b_model_by_hand(policy, units, unit_tokens, unit_bytes):
    """50 * 2**30 / 131,072 = 409,600 tokens; / 16 = 25,600 blocks."""
    size = Pool(bytes_per_token=131_072, memory_bytes=50 * 2**30).divide(parse_policy(policy))
    assert (size.units, size.unit_tokens, size.unit_bytes) == (units, unit_tokens, unit_bytes)
    assert size.capacity_bytes == 50 * 2**30


def test_what_does_not_make_a_whole_unit_is_left_out():
    """1,000 bytes at 7 a token: 142 tokens, 994 bytes; 8 blocks of 16, 896 bytes."""
    pool = Pool(bytes_per_token=7, memory_bytes=1000)
    assert pool.divide(parse_policy("exact")).capacity_bytes == 994
    assert pool.divide(parse_policy("paged")).capacity_bytes == 896


def test_blocks_of_one_size_are_the_same_memory_under_every_policy():
    """100 blocks of 32 tokens are 3,200 tokens: 200 blocks of 16, 25 of 128, and 3,200 of one."""
    pool = Pool(bytes_per_token=2, num_blocks=100, block_size=32, tensors_per_token=2, vmm_page_bytes=64)
    sizes = {p.name: pool.divide(p) for p in parse_policies("max,paged@16,paged@32,paged@128,vmm")}
    assert {name: size.units for name, size in sizes.items()} == {
        "max": 3200, "paged@16": 200, "paged@32": 100, "paged@128": 25, "vmm": 50,
    }  # fmt: skip
    assert {size.capacity_bytes for size in sizes.values()} == {6400}


def test_blocks_without_a_size_are_those_of_the_policy():
    assert Pool(bytes_per_token=1, num_blocks=10).divide(parse_policy("paged@32")).units == 10


def test_pages_map_the_tokens_of_one_tensor():
    """32 layers, 64 tensors, 2,048 bytes a tensor and token: a 2 MiB page holds 1,024 tokens; a group is 128 MiB."""
    size = Pool(bytes_per_token=131_072, memory_bytes=2**30, tensors_per_token=64).divide(parse_policy("vmm"))
    assert (size.units, size.unit_tokens, size.unit_bytes) == (8, 1024, 128 * 2**20)


def test_pages_without_a_number_of_layers_are_refused():
    with pytest.raises(UsageError, match="number of layers") as caught:
        Pool(bytes_per_token=4, memory_bytes=100).divide(parse_policy("vmm"))
    assert "--layers" in caught.value.hint


def test_a_page_smaller_than_a_token_is_refused():
    pool = Pool(bytes_per_token=4096, memory_bytes=2**30, tensors_per_token=2, vmm_page_bytes=1024)
    with pytest.raises(UsageError, match="holds no whole token: one layer's token is 2048 bytes"):
        pool.divide(parse_policy("vmm"))


def test_a_page_of_absurdly_many_tokens_is_refused():
    pool = Pool(bytes_per_token=1, memory_bytes=2**50, tensors_per_token=64, vmm_page_bytes=2**30)
    with pytest.raises(UsageError, match="more than 16777216"):
        pool.divide(parse_policy("vmm"))


@pytest.mark.parametrize("given", [{}, {"memory_bytes": 1, "num_blocks": 1}, {"memory_bytes": 1, "capacity_tokens": 1}])
def test_a_pool_has_exactly_one_size(given):
    with pytest.raises(UsageError) as caught:
        Pool(bytes_per_token=1, **given)
    assert "--memory 50GiB" in caught.value.hint


@pytest.mark.parametrize("size", ["memory_bytes", "capacity_tokens", "num_blocks"])
@pytest.mark.parametrize(("value", "message"), [(0, "no memory to manage"), (-1, "no memory"), (2**61, r"2\*\*60")])
def test_a_pool_of_nothing_or_of_too_much_is_refused(size, value, message):
    with pytest.raises(CapacityError, match=message):
        Pool(bytes_per_token=1, **{size: value})


@pytest.mark.parametrize(
    "setting",
    [
        {"bytes_per_token": 0}, {"bytes_per_token": 2**41}, {"block_size": 0}, {"tensors_per_token": 0},
        {"vmm_page_bytes": 0}, {"vmm_page_bytes": 2**31},
    ],
)  # fmt: skip
def test_settings_of_a_pool_out_of_range_are_refused(setting):
    with pytest.raises(UsageError):
        Pool(**({"bytes_per_token": 1, "memory_bytes": 100} | setting))


@pytest.mark.parametrize(
    ("policy", "message", "hint"),
    [
        ("paged", "8 bytes is smaller than one unit of `paged`, which is 16 tokens or 128 bytes", "--block-size"),
        ("vmm", "8 bytes is smaller than one unit of `vmm`", "--page-size"),
    ],
)
def test_a_pool_smaller_than_one_unit_says_both_sizes_and_what_to_change(policy, message, hint):
    pool = Pool(bytes_per_token=8, memory_bytes=8, tensors_per_token=2, vmm_page_bytes=100)
    with pytest.raises(CapacityError, match=message) as caught:
        pool.divide(parse_policy(policy))
    assert hint in caught.value.hint


def test_a_pool_smaller_than_one_token_asks_for_more_memory():
    with pytest.raises(CapacityError) as caught:
        Pool(bytes_per_token=8, memory_bytes=7).divide(parse_policy("exact"))
    assert caught.value.hint == "give more memory; a size without a unit is in bytes, so write GiB if you mean it"


def test_tokens_that_would_be_more_than_an_exbibyte_are_refused():
    with pytest.raises(CapacityError, match=r"more than 2\*\*60 bytes together"):
        Pool(bytes_per_token=131_072, capacity_tokens=2**50).divide(parse_policy("max"))


@given(st.integers(1, 2**20), st.integers(1, 2**50), st.integers(1, 2**20))
def test_a_division_never_makes_memory(bytes_per_token, memory_bytes, block):
    pool = Pool(bytes_per_token=bytes_per_token, memory_bytes=memory_bytes)
    try:
        size = pool.divide(parse_policy(f"paged@{block}"))
    except CapacityError:
        assert memory_bytes < bytes_per_token * block
        return
    assert 0 <= memory_bytes - size.capacity_bytes < size.unit_bytes


@given(schedulers())
def test_drawn_settings_are_valid(settings):
    assert settings.max_model_len >= 2


@pytest.mark.parametrize(
    "setting",
    [
        {"max_model_len": 1}, {"max_model_len": 2**41}, {"max_num_seqs": 0}, {"max_num_seqs": 2**21},
        {"max_num_batched_tokens": 0}, {"restart_every_seconds": -1.0}, {"restart_down_seconds": float("nan")},
        {"restart_every_seconds": float("inf")},
    ],
)  # fmt: skip
def test_a_scheduler_out_of_range_is_refused(setting):
    with pytest.raises(UsageError):
        Settings(**({"max_model_len": 8} | setting))
