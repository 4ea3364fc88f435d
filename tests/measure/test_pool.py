"""The pool behind a scrape: blocks, null block, structure, price."""

import pytest

from kvledger.engines.vllm.metrics import Generation, VllmEngine
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.measure.pool import NullBlock, Structure, count_held_blocks, read_pool_shape
from kvledger.measure.pricing import price_by_bytes, price_by_model, price_by_token
from kvledger.model.catalogue import find_model


def engine(usage=0.0, generation=Generation.V1, **labels):
    config = {"num_gpu_blocks": "101", "block_size": "16", **{k: str(v) for k, v in labels.items()}}
    return VllmEngine(index=0, usage_ratio=usage, generation=generation, cache_config=config)


def shape(usage=0.0, *, engines=1, generation=Generation.V1, **labels):
    return read_pool_shape(engine(usage, generation, **labels), engines=engines)


def test_a_pool_without_block_count_is_unknown():
    assert shape(num_gpu_blocks="None") is None
    assert shape(block_size="") is None


def test_the_gauge_of_new_releases_leaves_the_null_block_out():
    found = shape(0.25)
    assert found.null_block is NullBlock.OUTSIDE
    assert count_held_blocks(found, 0.25) == 25


@pytest.mark.parametrize("held", [1, 2, 7, 50, 100])
def test_the_gauge_up_to_0_9_2_counts_the_null_block(held):
    """0.8.5 to 0.9.2: usage = 1 - free / blocks, so an idle engine shows 1 / blocks."""
    usage = 1 - (101 - held) / 101
    found = shape(usage)
    assert found.null_block is NullBlock.INSIDE
    assert count_held_blocks(found, usage) == held - 1


def test_v0_has_no_null_block():
    found = shape(0.0, generation=Generation.V0)
    assert found.null_block is NullBlock.NONE
    assert found.usable_blocks == 101


def test_a_gauge_that_is_no_whole_number_of_blocks_belongs_to_another_count():
    assert count_held_blocks(shape(0.5, kv_cache_size_tokens=1616, kv_cache_max_concurrency=101 / 64), 0.123456) is None


def test_every_gauge_of_a_million_blocks_gives_its_block_back():
    found = shape(0.0, num_gpu_blocks=1_000_001, kv_cache_size_tokens=1, kv_cache_max_concurrency=1)
    for held in (0, 1, 2, 333_333, 999_999, 1_000_000):
        assert count_held_blocks(found, 1.0 - (1_000_000 - held) / 1_000_000) == held


def test_the_block_count_is_the_sum_over_data_parallel_engines():
    assert shape(num_gpu_blocks=400, engines=4).blocks == 100


def test_one_group_is_proved_by_the_printed_concurrency():
    found = shape(kv_cache_size_tokens=int(101 / 128 * 2048), kv_cache_max_concurrency=101 / 128)
    assert (found.structure, found.max_model_len) == (Structure.ONE_GROUP, 2048)


def test_groups_of_layers_are_noticed_by_the_printed_concurrency():
    """Seven groups take more blocks a request than one: 101 blocks / (128 + 6 * 66)."""
    concurrency = 101 / 524
    found = shape(kv_cache_size_tokens=int(concurrency * 2048), kv_cache_max_concurrency=concurrency)
    assert found.structure is Structure.GROUPS
    assert "524" in found.structure_source


def test_older_releases_do_not_tell_their_structure():
    assert shape().structure is Structure.UNKNOWN


def test_pool_bytes_price_a_block_unless_the_block_count_was_forced():
    assert shape(kv_cache_memory_bytes=101 * 4096).pricing.block_bytes == 4096
    assert shape(kv_cache_memory_bytes=101 * 4096, num_gpu_blocks_override=101).pricing is None


def test_a_model_prices_a_block_and_settles_the_structure():
    priced = price_by_model(shape(), find_model("llama-3-8b"), None)
    assert priced.pricing.block_bytes == 131_072 * 16
    assert priced.structure is Structure.ONE_GROUP


def test_a_model_with_windows_is_refused_with_its_layer():
    with pytest.raises(ModelError, match="do not keep every token"):
        price_by_model(shape(), find_model("gemma-3-27b"), None)


def test_bytes_price_a_block_with_a_remainder():
    priced = price_by_bytes(shape(), 101 * 16 * 10 + 5, source="given", accuracy=Accuracy.DERIVED)
    assert (priced.pricing.block_bytes, priced.pricing.capacity_bytes) == (160, 16165)
    with pytest.raises(UsageError, match="less than one byte"):
        price_by_bytes(shape(), 100, source="given", accuracy=Accuracy.DERIVED)


def test_bytes_a_token_price_a_block():
    assert price_by_token(shape(), 1000).pricing.block_bytes == 16_000
