"""Logs of vLLM: versions, ranks, engines, restarts, and lines that mean something else than they seem."""

from pathlib import Path

import pytest

from kvledger.engines.facts import NoticeKind, SampleKind
from kvledger.engines.vllm.log import read_log
from kvledger.units import GIB, MIB

DATA = Path(__file__).parents[2] / "data" / "vllm-0.32.0"


def only(text):
    (start,) = read_log(text).startups
    return start


def test_a_recorded_server_on_the_cpu():
    """One layer, float32, forced to 129 blocks of 32 tokens: 4,128 tokens, 2.02 requests of 2,048."""
    log = read_log((DATA / "one-layer-cpu.log").read_text())
    (start,) = log.startups
    assert (start.version.value, start.device.value, start.dtype.value) == ("0.32.0", "cpu", "float32")
    assert (start.tp.value, start.pp.value, start.dp.value, start.dcp.value) == (1, 1, 1, 1)
    assert (start.max_model_len.value, start.block_tokens.value, start.max_running.value) == (2048, 32, 64)
    assert start.prefix_caching.value is True
    (worker, core) = start.pools
    assert (worker.origin, core.origin) == ("Worker", "EngineCore")
    assert worker.size_bytes.holds(GIB)
    assert (core.tokens.value, core.blocks.value) == (4128, 129)
    assert core.concurrency.holds(129 * 32 / 2048)
    assert [s.running.value for s in log.samples] == [6, 1, 0, 1]
    assert [s.seconds - log.samples[0].seconds for s in log.samples] == [0, 10, 20, 30]
    assert log.samples[0].usage_ratio.value == pytest.approx(0.227)


def test_nested_settings_do_not_replace_the_flat_ones():
    config = "model='m', dtype=torch.float16, max_seq_len=8, observability_config=O(dtype='x', max_seq_len=9), seed=0"
    start = only(
        f"Initializing a V1 LLM engine (v0.20.1) with config: {config}, compilation_config={{'max_seq_len': 7}}"
    )
    assert (start.dtype.value, start.max_model_len.value) == ("float16", 8)
    assert start.options["core"] == "v1"


def test_v0_names_its_version_and_has_no_core_mark():
    start = only(
        "INFO 01-02 03:04:05 llm_engine.py:1] Initializing an LLM engine (v0.6.3) with config: model='m', "
        "kv_cache_dtype=fp8, tensor_parallel_size=4"
    )
    assert (start.version.value, start.options["core"], start.kv_dtype.value, start.tp.value) == (
        "0.6.3",
        "v0",
        "fp8",
        4,
    )


def test_ranks_are_kept_apart_and_the_smallest_decides():
    text = "\n".join(
        f"(Worker_TP{rank} pid={rank}) INFO 01-02 03:04:05 [w.py:1] Available KV cache memory: {gib} GiB"
        for rank, gib in enumerate((8.5, 8.11, 9.0))
    )
    start = only(text)
    assert len(start.pools) == 3
    assert start.find_smallest("size_bytes").origin == "Worker_TP1"
    assert start.find_smallest("size_bytes").holds(8.11 * GIB)


def test_ray_workers_are_told_apart_by_process():
    line = "(RayWorkerWrapper pid={}) INFO 01-02 03:04:05 [w.py:1] Available KV cache memory: 3.25 GiB"
    assert [p.origin for p in only(line.format(7) + "\n" + line.format(8)).pools] == [
        "RayWorkerWrapper pid=7",
        "RayWorkerWrapper pid=8",
    ]


def test_data_parallel_engines_have_pools_of_their_own():
    text = "\n".join(
        f"(EngineCore_DP{rank} pid={rank}) INFO 01-02 03:04:05 [k.py:1] GPU KV cache size: {tokens} tokens"
        for rank, tokens in ((0, "1,600"), (1, "3,200"))
    )
    start = only(text)
    assert start.engine_indices == (0, 1)
    assert start.find_smallest("tokens", engine_index=1).value == 3200


def test_a_size_line_repeated_by_ranks_keeps_the_smallest():
    text = "GPU KV cache size: 3,200 tokens\nMaximum concurrency for 100 tokens per request: 32.00x\n"
    smaller = "GPU KV cache size: 1,600 tokens\nMaximum concurrency for 100 tokens per request: 16.00x\n"
    for both in (text + smaller, smaller + text):
        (pool,) = only(both).pools
        assert (pool.tokens.value, pool.concurrency.value) == (1600, 16.0)


def test_a_restart_begins_a_new_start():
    banner = "(APIServer pid={}) INFO 01-02 03:04:05 [a.py:1] vLLM API server version 0.1{}.0\n"
    size = "(EngineCore pid={}) INFO 01-02 03:04:06 [k.py:1] GPU KV cache size: {} tokens\n"
    log = read_log(banner.format(1, 3) + size.format(2, "1,600") + banner.format(3, 9) + size.format(4, "800"))
    assert [s.version.value for s in log.startups] == ["0.13.0", "0.19.0"]
    assert [s.pools[0].tokens.value for s in log.startups] == [1600, 800]
    assert log.find_startup(2) is log.startups[0]
    assert log.find_startup(3) is log.startups[1]


def test_forced_blocks_count_only_after_the_memory_line():
    forced = "Overriding num_gpu_blocks={} with num_gpu_blocks_override=512\n"
    memory = "Available KV cache memory: 8.29 GiB\n"
    size = "GPU KV cache size: 39,664 tokens\n"
    dry = only(forced.format(0) + memory + size)
    assert dry.pools[0].blocks is None
    assert only(memory + forced.format(2479) + size).pools[0].blocks.value == 512
    assert only(forced.format(2479) + size).pools[0].blocks.value == 512


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("Available KV cache memory: 16.50 GiB", 16.5),
        ("Available KV cache memory: 16.5 GiB", 16.5),
        (
            "Initial free memory 78.1 GiB, reserved 16.5 GiB memory for KV Cache as specified by kv_cache_memory_bytes",
            16.5,
        ),
        ("Explicitly set (16.5/62.7) GiB for KV cache on node 0.", 16.5),
        ("Auto set (16.5/62.7) GiB for KV cache on node 1, with 20.0 GiB requested memory for the worker.", 16.5),
        ("VLLM_CPU_KVCACHE_SPACE not set. Using 4 GiB for KV cache.", 4),
        ("Current kv cache memory in use is 16.5 GiB.", 16.5),
        (
            "Memory profiling results: total_gpu_memory=23.69GiB initial_memory_usage=0.30GiB "
            "peak_torch_memory=16.46GiB memory_usage_post_profile=0.33GiB "
            "non_torch_memory=0.04GiB kv_cache_size=3.81GiB "
            "gpu_memory_utilization=0.90",
            3.81,
        ),
    ],
)
def test_bytes_of_the_pool_in_every_wording(line, gib):
    (pool,) = only(line).pools
    assert pool.size_bytes.holds(gib * GIB)
    assert pool.size_bytes.high - pool.size_bytes.low <= 0.01 * GIB + 2


@pytest.mark.parametrize(
    ("name", "device"), [("GPU", None), ("CPU", "cpu"), ("XPU", "xpu"), ("TPU", "tpu"), ("GPU + host", None)]
)
def test_the_size_line_names_the_device(name, device):
    start = only(f"{name} KV cache size: 1,587 tokens, Maximum concurrency for 1,000 tokens per request: 1.59x")
    assert (start.device and start.device.value) == device
    assert start.pools[0].tokens.value == 1587
    assert start.max_model_len.value == 1000


@pytest.mark.parametrize(
    ("line", "kind", "count"),
    [
        ("Add 3 padding layers, may waste at most 5.56% KV cache memory", NoticeKind.PADDING_LAYERS, 3),
        ("Multiplying the GPU KV cache size by the dcp_world_size 4.", NoticeKind.SHARDS_MULTIPLIED, 4),
        (
            "Multiplying the GPU KV cache size by the cp_world_size 8 (pcp_world_size 2 * dcp_world_size 4).",
            NoticeKind.SHARDS_MULTIPLIED,
            8,
        ),
        (
            "Auto-fit max_model_len: reduced from 40960 to 30000 to fit in available",
            NoticeKind.LENGTH_FITTED,
            30_000,
        ),
        (
            "KV cache page sizes cannot be unified; treating sliding-window layers as full attention",
            NoticeKind.PAGES_NOT_UNIFIED,
            None,
        ),
        ("No available memory for the cache blocks. Try increasing", NoticeKind.NO_MEMORY, None),
        ("max_num_seqs (1024) exceeds available Mamba cache blocks (614)", NoticeKind.TOO_FEW_STATES, None),
    ],
)
def test_warnings_and_errors_keep_their_numbers(line, kind, count):
    (notice,) = only(f"(EngineCore pid=1) WARNING 01-02 03:04:05 [k.py:1] {line}").notices
    assert (notice.kind, notice.count, notice.origin) == (kind, count, "EngineCore")
    assert notice.is_error is (kind in (NoticeKind.NO_MEMORY, NoticeKind.TOO_FEW_STATES))


def test_an_error_line_without_brackets_and_without_an_estimate():
    text = (
        "ValueError: To serve at least one request with the model's max seq len (262144), 9.29 GiB KV cache "
        "is needed, "
        "which is larger than the available KV cache memory (9.28 GiB). Try increasing "
        "`gpu_memory_utilization`"
    )
    (error,) = only(text).errors
    assert (error.asked, error.longest) == (262_144, None)
    assert error.needed.holds(9.286 * GIB)
    assert error.available.holds(9.284 * GIB)


def test_the_memory_of_a_graph_and_of_weights():
    start = only(
        "Model loading took 7.6 GiB memory and 4.2 seconds\nGraph capturing finished in 21 secs, took 0.58 GiB\n"
    )
    assert [item.name for item in start.memory] == ["weights", "graphs"]
    assert start.memory[0].size_bytes.holds(7.604 * GIB)
    assert start.memory[1].size_bytes.high - start.memory[1].size_bytes.low <= 11 * MIB


def test_all_fields_of_the_newest_periodic_line():
    line = (
        "INFO 01-02 03:04:05 [l.py:1] Engine 003: Avg prompt throughput: 10.0 tokens/s, Avg generation "
        "throughput: 20.5 "
        "tokens/s, Running: 7 reqs, Waiting: 5 reqs, Deferred: 2 reqs, KV fetch: 1 waiting to start, 2 in "
        "progress, "
        "3 completed waiting, Preemptions: 4, XPU KV cache usage: 99.9%, Prefix cache hit rate: 33.3%, "
        "External prefix "
        "cache hit rate: 1.0%, MM cache hit rate: 2.0%"
    )
    (sample,) = read_log(line).samples
    found = (sample.running, sample.waiting, sample.deferred, sample.preemptions)
    assert [quantity.value for quantity in found] == [7, 5, 2, 4]
    assert sample.engine_index == 3
    assert sample.usage_ratio.holds(0.9994)
    assert not sample.usage_ratio.holds(0.9984)
    assert sample.prefix_hit_ratio.value == pytest.approx(0.333)


def test_engines_averaged_in_one_line():
    (sample,) = read_log(
        "4 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: "
        "2.0 tokens/s, "
        "Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 10.0%, Prefix cache hit rate: "
        "0.0%"
    ).samples
    assert (sample.aggregated_engines, sample.running.value) == (4, 8)


def test_one_line_a_step():
    (sample,) = read_log(
        "Engine 001: Iteration(812): 1 context requests, 512 context tokens, 7 generation "
        "requests, 7 generation "
        "tokens, iteration elapsed time: 12.34 ms, GPU KV cache usage: 12.5%"
    ).samples
    assert (sample.kind, sample.engine_index) == (SampleKind.ITERATION, 1)
    assert (sample.running.value, sample.new_tokens.value) == (8, 519)
    assert sample.step_seconds.holds(0.01234)
    assert sample.usage_ratio.value == 0.125


def test_the_hit_rate_of_v0_joins_the_line_before():
    text = (
        "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 8 reqs, "
        "Swapped: 1 reqs, "
        "Pending: 2 reqs, GPU KV cache usage: 10.0%, CPU KV cache usage: 5.0%.\n"
        "Prefix cache hit rate: GPU: 61.25%, CPU: 0.00%\n"
    )
    (sample,) = read_log(text).samples
    assert (sample.swapped.value, sample.waiting.value) == (1, 2)
    assert sample.host_usage_ratio.value == 0.05
    assert sample.prefix_hit_ratio.value == pytest.approx(0.6125)


def test_times_without_a_year_go_on_over_new_year():
    line = (
        "INFO {} [l.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 "
        "tokens/s, "
        "Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 10.0%\n"
    )
    samples = read_log(line.format("12-31 23:59:55") + line.format("01-01 00:00:05")).samples
    assert samples[1].seconds - samples[0].seconds == 10
