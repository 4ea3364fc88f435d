"""Statistics of TensorRT-LLM: JSON of iterations, Prometheus names, and those of Triton."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.tensorrt_llm.metrics import read_iterations, read_metrics
from kvledger.errors import Error, SourceError

ITERATION = {
    "timestamp": "03-04-2026 10:00:00.500000",
    "iter": 12,
    "iterLatencyMS": 15.5,
    "gpuMemUsage": 58_000_000_000,
    "numActiveRequests": 5,
    "numQueuedRequests": 3,
    "maxNumActiveRequests": 64,
    "kvCacheStats": {
        "maxNumBlocks": 1000, "freeNumBlocks": 400, "usedNumBlocks": 600, "tokensPerBlock": 32, "cacheHitRate": 0.25,
        "reusedBlocks": 8, "missedBlocks": 24, "allocTotalBlocks": 90,
    },
    "inflightBatchingStats": {
        "numScheduledRequests": 4, "numPausedRequests": 1, "numCtxKvTokens": 100, "numGenKvTokens": 15_000,
    },
}  # fmt: skip


def test_an_iteration_is_a_snapshot():
    (snapshot,) = read_iterations(json.dumps([ITERATION]))
    (pool,) = snapshot.pools
    assert (pool.capacity.value, pool.used.value, pool.free.value, pool.block_tokens.value) == (1000, 600, 400, 32)
    assert pool.cached is None
    assert (snapshot.running.value, snapshot.waiting.value, snapshot.paused.value) == (4, 3, 1)
    assert snapshot.live_tokens.value == 15_100
    assert (snapshot.prefix_hit_ratio.value, snapshot.device_bytes.value) == (0.25, 58_000_000_000)
    assert snapshot.seconds % 60 == 0.5
    assert snapshot.others["reusedBlocks"] == 8


@pytest.mark.parametrize("form", [json.dumps(ITERATION), json.dumps([[ITERATION]]), json.dumps([ITERATION])])
def test_an_object_a_list_and_a_list_in_a_list(form):
    assert len(read_iterations(form)) == 1


def test_one_object_a_line():
    assert len(read_iterations("\n".join([json.dumps(ITERATION)] * 3) + "\n")) == 3


def test_an_empty_answer_has_no_iterations():
    """The list is drained on read, and empty when statistics are off."""
    assert read_iterations("[]") == ()


def test_null_statistics_are_missing_not_zero():
    (snapshot,) = read_iterations(json.dumps({"iter": 1, "kvCacheStats": None, "inflightBatchingStats": None}))
    assert (snapshot.pools, snapshot.running, snapshot.live_tokens) == ((), None, None)
    assert snapshot.missing == ("kvCacheStats",)


def test_a_runtime_that_does_not_count_tokens_gives_none():
    batch = {"numScheduledRequests": 1, "numCtxKvTokens": 0, "numGenKvTokens": 0}
    (snapshot,) = read_iterations(json.dumps(ITERATION | {"inflightBatchingStats": batch}))
    assert snapshot.live_tokens is None


@pytest.mark.parametrize("text", ["", "x", "3", "[3]", "[" * 5000, "{]\n{]"])
def test_what_is_no_statistics_is_refused(text):
    with pytest.raises(SourceError):
        read_iterations(text)


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:"])
def test_prometheus_names(prefix):
    labels = 'model_name="m",engine_type="trtllm"'
    names = {
        "kv_cache_max_blocks": 1000, "kv_cache_used_blocks": 600, "kv_cache_free_blocks": 400,
        "kv_cache_tokens_per_block": 32, "kv_cache_utilization": 0.6, "kv_cache_hit_rate": 0.25,
        "num_requests_running": 4, "num_requests_waiting": 3, "num_paused_requests": 1, "gpu_memory_usage_bytes": 5e10,
    }  # fmt: skip
    (snapshot,) = read_metrics("".join(f"{prefix}{name}{{{labels}}} {value}\n" for name, value in names.items()))
    (pool,) = snapshot.pools
    assert (pool.capacity.value, pool.used.value, pool.usage_ratio.value) == (1000, 600, 0.6)
    assert (snapshot.model, snapshot.running.value, snapshot.paused.value) == ("m", 4, 1)
    assert snapshot.missing == ()


def test_names_of_triton():
    labels = 'model="tensorrt_llm",version="1"'
    blocks = {"max": 6239, "used": 39, "free": 6200, "tokens_per": 64, "fraction": 0.00625}
    requests = {"active": 2, "max": 512, "scheduled": 1, "context": 1, "waiting": 7}
    text = "".join(
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{k}",{labels}}} {v}\n' for k, v in blocks.items()
    )
    text += "".join(f'nv_trt_llm_request_metrics{{{labels},request_type="{k}"}} {v}\n' for k, v in requests.items())
    text += f'nv_trt_llm_runtime_memory_metrics{{memory_type="gpu",{labels}}} 1610236\n'
    text += f'nv_trt_llm_inflight_batcher_metrics{{inflight_batcher_specific_metric="paused_requests",{labels}}} 3\n'
    (snapshot,) = read_metrics(text)
    (pool,) = snapshot.pools
    assert (pool.capacity.value, pool.used.value, pool.free.value, pool.block_tokens.value) == (6239, 39, 6200, 64)
    assert (snapshot.running.value, snapshot.waiting.value, snapshot.max_running.value) == (1, 7, 512)
    assert (snapshot.paused.value, snapshot.device_bytes.value) == (3, 1_610_236)


NAMES = ["kvCacheStats", "inflightBatchingStats", "timestamp", "maxNumBlocks", "usedNumBlocks"]
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
)


@given(JSON)
def test_any_json_gives_snapshots_or_our_error(value):
    with contextlib.suppress(Error):
        read_iterations(json.dumps(value))
