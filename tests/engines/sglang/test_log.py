"""Logs of SGLang: pools and their names, ranks, restarts, batch lines of all kinds of models."""

import pytest

from kvledger.engines.facts import NoticeKind, SampleKind
from kvledger.engines.sglang.log import read_log
from kvledger.units import GIB
from tests.engines.log_samples import SGLANG


def only(text):
    (start,) = read_log(text).startups
    return start


def test_a_whole_start():
    start = only(SGLANG)
    assert start.model.value == "org/model-8b"
    assert (start.tp.value, start.block_tokens.value, start.max_running.value) == (2, 16, 2048)
    assert (start.max_model_len.value, start.batch_tokens.value) == (32_768, 8192)
    assert start.memory_ratio.holds(0.85)
    assert start.prefix_caching.value is True
    assert [pool.origin for pool in start.find_pools("kv")] == ["TP0", "TP1"]
    assert start.find_smallest("size_bytes").holds(32 * GIB)
    assert start.find_smallest("tokens").value == 524_288
    assert "api_key" not in start.options


def test_batch_lines_and_a_retraction():
    prefill, decode, retraction = read_log(SGLANG).samples
    assert (prefill.kind, decode.kind, retraction.kind) == (SampleKind.PREFILL, SampleKind.DECODE, SampleKind.EVENT)
    assert (prefill.new_sequences.value, prefill.new_tokens.value, prefill.cached_tokens.value) == (2, 700, 64)
    assert prefill.prompt_tokens_per_second.holds(350.25)
    assert (decode.tokens.value, decode.running.value, decode.waiting.value) == (54_321, 6, 0)
    assert retraction.preemptions.value == 2
    assert decode.seconds - prefill.seconds == 5


def test_two_pools_of_a_windowed_model():
    """The pools print one line each, told apart by the tokens announced before; the last line gives their sum."""
    start = only(
        "Use sliding window memory pool. full_layer_tokens=1000, swa_layer_tokens=800\n"
        "KV Cache is allocated. #tokens: 800, K size: 1.00 GB, V size: 1.00 GB\n"
        "KV Cache is allocated. #tokens: 1000, K size: 2.00 GB, V size: 2.00 GB\n"
        "SWAKVPool mem usage: 6.00 GB, swa size: 800, full size: 1000\n"
    )
    sizes = {pool.name: (pool.tokens and pool.tokens.value, pool.size_bytes.value / GIB) for pool in start.pools}
    assert sizes == {"swa": (800, 2.0), "full": (1000, 4.0), "kv": (None, 6.0)}


def test_labels_name_the_pools():
    start = only(
        "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 800, KV size: 1.00 GB\n"
        "Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 800, KV size: 2.00 GB\n"
    )
    assert [pool.name for pool in start.pools] == ["swa", "full"]


def test_a_second_pool_of_a_rank_is_the_draft_models():
    line = "[2026-03-04 10:00:00 TP0] KV Cache is allocated. #tokens: 1000, K size: {0} GB, V size: {0} GB\n"
    start = only(line.format("4.00") + line.format("0.25"))
    assert [(pool.name, pool.size_bytes.value / GIB) for pool in start.pools] == [("kv", 8.0), ("draft", 0.5)]


def test_a_pool_sized_after_graph_capture():
    """The first line is address space, the second memory."""
    start = only(
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 2000, K size: 8.00 GB, V size: 8.00 GB\n"
        "Post-capture KV sizing: full_layer_tokens=1000, swa_layer_tokens=0\n"
        "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 1000, KV size: 8.00 GB, "
        "avail mem=3.00 GB\n"
    )
    assert [(pool.name, pool.tokens.value, pool.is_memory) for pool in start.pools] == [
        ("virtual", 2000, False),
        ("kv", 1000, True),
    ]


def test_states_with_their_intermediate_copies():
    (pool,) = only(
        "Mamba Cache is allocated. max_mamba_cache_size: 187, conv_state size: 0.25GB, ssm_state size: 4.25GB "
        "intermediate_ssm_state_cache size: 0.50GB intermediate_conv_window_cache size: 0.25GB "
    ).pools
    assert (pool.name, pool.slots.value) == ("state", 187)
    assert pool.size_bytes.holds(5.25 * GIB)
    assert pool.size_bytes.high - pool.size_bytes.low == pytest.approx(0.04 * GIB, abs=8)


def test_weights_after_the_last_line_of_a_start_begin_a_new_one():
    start = (
        "Load weight end. type=A, dtype=torch.float16, avail mem=9.00 GB, mem usage=4.00 GB.\n"
        "KV Cache is allocated. #tokens: {}, K size: 1.00 GB, V size: 1.00 GB\n"
        "max_total_num_tokens={}, chunked_prefill_size=None, max_prefill_tokens=16384, context_len=4096\n"
    )
    starts = read_log(start.format(10, 10) + start.format(20, 20)).startups
    assert [s.pools[0].tokens.value for s in starts] == [10, 20]
    assert starts[0].batch_tokens is None


def test_the_batch_lines_of_windowed_and_state_models():
    (swa, mamba) = read_log(
        "Decode batch. #running-req: 3, #full token: 900, full token usage: 0.09, #swa token: 700, swa token "
        "usage: 0.70, "
        "cuda graph: True, gen throughput (token/s): 10.00, #queue-req: 0, \n"
        "Decode batch [17], #running-req: 3, #full token: 900, full token usage: 0.09, mamba num: 6, mamba "
        "usage: 0.50, "
        "accept len: 2.50, cuda graph: True, gen throughput (token/s): 10.00, #queue-req: 0\n"
    ).samples
    assert [(p.name, p.used.value, p.usage_ratio.value) for p in swa.pools] == [("full", 900, 0.09), ("swa", 700, 0.7)]
    assert swa.usage_ratio.value == 0.7
    assert [(p.name, p.unit, p.used.value) for p in mamba.pools] == [("full", "tokens", 900), ("state", "slots", 6)]
    assert mamba.tokens.value == 900


def test_the_hit_rate_of_the_oldest_releases():
    (sample,) = read_log(
        "[2025-01-02 03:04:05 TP0] Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 3, cache hit rate: "
        "30.00%, "
        "token usage: 0.00, #running-req: 0, #queue-req: 0"
    ).samples
    assert sample.prefix_hit_ratio.value == 0.3


def test_no_memory_is_an_error():
    (error,) = only("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.").errors
    assert error.kind is NoticeKind.NO_MEMORY
