"""Logs of LMDeploy: both engines, and the periodic line."""

from kvledger.engines.facts import NoticeKind
from kvledger.engines.lmdeploy.log import read_log
from kvledger.units import MIB
from tests.engines.log_samples import LMDEPLOY


def test_the_configuration_of_the_cache():
    log = read_log(LMDEPLOY)
    (start,) = log.startups
    (pool,) = start.pools
    assert (pool.blocks.value, pool.block_tokens.value, pool.host_blocks) == (9731, 64, None)
    assert (start.max_running.value, start.batch_tokens.value, start.memory_ratio.value) == (256, 8192, 0.8)
    assert start.prefix_caching.value is True


def test_the_configuration_on_a_line_of_its_own_and_a_draft():
    text = (
        "2026-03-04 10:00:20,123 - lmdeploy - INFO - base.py:1 - Building {}CacheEngine with config: \n"
        "CacheConfig(block_size=64, num_gpu_blocks={}).\n"
    )
    (start,) = read_log(text.format("", 9000) + text.format("Spec ", 80)).startups
    assert [(pool.name, pool.blocks.value) for pool in start.pools] == [("kv", 9000), ("draft", 80)]


def test_blocks_of_turbomind_are_cut_to_whole_mib():
    (start,) = read_log(
        "[TM][INFO] [BlockManager] block_size = 4 MB\n[TM][INFO] [BlockManager] max_block_count = 2001\n"
    ).startups
    (pool,) = start.pools
    assert pool.blocks.value == 2001
    assert (pool.block_bytes.low, pool.block_bytes.high) == (4 * MIB, 5 * MIB - 1)


def test_the_periodic_line():
    (sample,) = read_log(LMDEPLOY).samples
    assert (sample.engine_index, sample.running.value, sample.waiting.value) == (1, 4, 1)
    assert sample.usage_ratio.holds(0.123)
    assert sample.prefix_hit_ratio.holds(0.05)
    assert sample.generation_tokens_per_second.holds(340.1)


def test_no_memory_is_an_error():
    (start,) = read_log("RuntimeError: No enough gpu memory for kv cache.").startups
    assert start.errors[0].kind is NoticeKind.NO_MEMORY
