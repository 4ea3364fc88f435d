"""Logs of TensorRT-LLM: both flows, old and new wordings, windows and iterations."""

import pytest

from kvledger.engines.facts import NoticeKind, SampleKind
from kvledger.engines.tensorrt_llm.log import read_log
from kvledger.measure.log_check import check_log
from kvledger.units import GIB
from tests.engines.log_samples import TENSORRT_LLM


def only(text):
    (start,) = read_log(text).startups
    return start


def test_a_whole_start():
    """20,736 blocks x 32 tokens = 663,552 tokens x 65,536 B = 40.5 GiB."""
    start = only(TENSORRT_LLM)
    (pool,) = start.pools
    assert (pool.blocks.value, pool.block_tokens.value, pool.tokens.value) == (20_736, 32, 663_552)
    assert pool.size_bytes.holds(663_552 * 65_536)
    assert (start.version.value, start.memory_ratio.value) == ("1.2.0", 0.9)
    sizes = {item.name: item.size_bytes for item in start.memory}
    assert sizes["kv-token"].value == 65_536
    assert sizes["total"].holds(79.25 * GIB)
    (notice,) = start.notices
    assert (notice.kind, notice.asked, notice.count) == (NoticeKind.WINDOW_CUT, 65_536, 32_768)


def test_the_pool_of_the_profiling_run_is_replaced():
    line = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({}).\n"
    (pool,) = only(line.format("0.50", 8192) + line.format("40.50", 663_552)).pools
    assert pool.tokens.value == 663_552


def test_a_smaller_pool_after_a_larger_one_is_the_second_of_an_encoder_decoder_model():
    """T5 of TensorRT-LLM#2398: 2,112 tokens of the decoder, then 1,152 of cross attention."""
    line = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({}).\n"
    start = only(line.format("0.10", 2112) + line.format("0.05", 1152))
    (second,) = [notice for notice in start.notices if notice.kind is NoticeKind.SECOND_POOL]
    assert (second.asked, second.count) == (2112, 1152)
    (check,) = check_log(read_log(line.format("0.10", 2112) + line.format("0.05", 1152)))
    assert any("a pool of 2,112 tokens was allocated before this one of 1,152" in note for note in check.notes)
    assert not only(line.format("0.50", 8192) + line.format("40.50", 663_552)).notices


def test_the_oldest_lines_give_exact_bytes():
    (pool,) = only("Allocate 69524783104 bytes for k/v cache.\nUsing 132608 tokens in paged KV cache.\n").pools
    assert (pool.size_bytes.value, pool.tokens.value) == (69_524_783_104, 132_608)
    assert pool.size_bytes.is_exact


def test_windows_are_pools_of_their_own():
    line = (
        "[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 9 [window size={}], tokens per block=32, "
        "primary blocks={}, "
        "secondary blocks=0\n"
    )
    start = only(line.format(1024, 500) + line.format(32_768, 9000))
    assert {pool.name: pool.blocks.value for pool in start.pools} == {"window 1024": 500, "window 32768": 9000}


def test_blocks_and_their_tokens_on_lines_of_their_own():
    start = only(
        "[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 64\n"
        "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 631\n"
        "[TensorRT-LLM][INFO] Number of blocks in KV cache secondary pool: 7\n"
        "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
    )
    (pool,) = start.pools
    assert (pool.blocks.value, pool.host_blocks.value, pool.block_tokens.value) == (631, 7, 64)
    assert start.max_running.value == 64


def test_too_few_tokens_for_one_sequence_is_an_error():
    (error,) = only(
        "[TensorRT-LLM][ERROR] maxTokensInPagedKvCache (2048) must be large enough to process at least 1 sequence"
    ).errors
    assert (error.kind, error.longest) == (NoticeKind.TOO_LONG, 2048)


def test_an_iteration_of_the_pytorch_flow():
    (sample,) = read_log(TENSORRT_LLM).samples
    assert sample.kind is SampleKind.ITERATION
    assert (sample.running.value, sample.new_tokens.value, sample.origin) == (5, 603, "rank 0")
    assert sample.step_seconds.value == pytest.approx(0.0625)


def test_the_statistics_of_the_batch_manager():
    (sample,) = read_log(
        '[TensorRT-LLM][INFO] {"Active Request Count":2,"Free KV cache blocks":6200,"Max KV cache blocks":6239,'
        '"Paused Requests":1,"Scheduled Requests":2,"Tokens per KV cache block":64,"Used KV cache blocks":39}'
    ).samples
    (pool,) = sample.pools
    assert (pool.unit, pool.capacity.value, pool.used.value, pool.free.value) == ("blocks", 6239, 39, 6200)
    assert (sample.running.value, sample.swapped.value) == (2, 1)
