"""Lines of logs that users made public, and what was misread or not read in them."""

import pytest

from kvledger.engines.facts import Engine, NoticeKind
from kvledger.engines.readers import read_log
from kvledger.engines.recognise import recognise
from kvledger.measure.log_check import check_log


def read(text):
    return read_log(text, recognise(text).engine)


def only(text):
    (found,) = check_log(read(text))
    return found


ALONE = {
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": Engine.SGLANG,
    "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 9": Engine.SGLANG,
    "Server error: Not enough memory to handle 16000 total tokens with 2 prefill tokens. You need to decrease "
    "`--max-batch-total-tokens` or `--max-batch-prefill-tokens`": Engine.TGI,
    " Sequence group 221 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
    "total_num_cumulative_preemption=101": Engine.VLLM,
    "ValueError: No available memory for the cache blocks.": Engine.VLLM,
    "send_error: task id = 12, error: Context size has been exceeded.": Engine.LLAMACPP,
}  # fmt: skip


@pytest.mark.parametrize("line", ALONE)
def test_a_line_that_users_quote_alone_names_its_engine(line):
    found = recognise(line)
    assert found is not None
    assert found.engine is ALONE[line]


def test_blocks_of_the_host_are_never_taken_for_the_pool():
    """Markdown takes the first `#` of a line."""
    bare = only("kv_cache_size=3.81GiB gpu_memory_utilization=0.90\nGPU blocks: 1952, # CPU blocks: 2048\n")
    assert bare.blocks.value == 1952
    start = read("Available KV cache memory: 3.81 GiB\nsee it: 1952, # CPU blocks: 2048\n").startups[-1]
    assert start.find_smallest("blocks") is None


def test_preemptions_of_v0_are_counted_from_their_running_total():
    line = "WARNING 08-20 10:18:39 scheduler.py:1141] Sequence group {0} is preempted by PreemptionMode.RECOMPUTE mode "
    line += "because there is not enough KV cache space. Increase it. total_num_cumulative_preemption={0}\n"
    assert only(line.format(1) + line.format(51) + line.format(101)).preemptions == 101
    assert only(line.format(101) + line.format(1)).preemptions == 102


DECODE = (
    "[2026-05-24 03:51:45 TP0] Decode batch, #running-req: 4, #full token: 2642688, full token usage: 1.00, "
    "#swa token: 14592, swa token usage: 0.06, cuda graph: True, gen throughput (token/s): 429.52, #queue-req: 3\n"
)
RETRACT = (
    "[2026-05-24 03:51:46 TP{0}] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 9\n"
)


def test_retractions_are_told_and_ranks_do_not_multiply_them():
    found = only(DECODE + "".join(RETRACT.format(rank) for rank in range(8)) + DECODE)
    assert found.preemptions == 2
    assert found.load.preemptions == 2
    assert "2 preemptions took it" in found.load.verdict.sentence


def test_advice_names_the_settings_of_the_engine():
    idle = DECODE.replace("full token usage: 1.00", "full token usage: 0.02")
    advice = only(idle * 2).load.verdict.advice
    assert "--max-running-requests" in advice
    assert "max_num_seqs" not in advice


def test_a_prompt_that_no_pool_of_v0_can_hold_is_an_error():
    text = "INFO 08-01 15:24:16 gpu_executor.py:56] # GPU blocks: 1650, # CPU blocks: 0\n" + (
        "WARNING 08-01 15:24:58 scheduler.py:706] Input prompt (512 tokens) is too long and exceeds the capacity of "
        "block_manager\n"
    )
    (notice,) = read(text).startups[-1].errors
    assert (notice.kind, notice.asked) == (NoticeKind.NEVER_FITS, 512)
    assert only(text).errors == (notice.text,)


def test_many_errors_are_told_once_and_counted():
    line = "srv send_error: request ({0} tokens) exceeds the available context size (4096 tokens), try increasing it\n"
    found = only("llama_context: n_ctx         = 4096\n" + "".join(line.format(5000 + n) for n in range(9)) + line * 0)
    assert len(found.errors) == 6
    assert "4 more errors" in found.errors[-1]


def test_an_older_llama_cpp_tells_its_cells_before_their_bytes():
    cells = "llama_kv_cache_init: kv_size = 8192, offload = 1, type_k = 'q8_0', type_v = 'f16', n_layer = 28\n"
    (pool,) = read(cells).startups[-1].pools
    assert (pool.cells.value, pool.tokens.value, pool.key_dtype, pool.value_dtype) == (8192, 8192, "q8_0", "f16")
    (pool,) = (
        read(
            cells + "llama_kv_cache_init:      CUDA0 KV buffer size =   112.00 MiB\n"
            "llama_new_context_with_model: KV self size  =  112.00 MiB, K (q8_0):   56.00 MiB, V (f16):   56.00 MiB\n"
        )
        .startups[-1]
        .pools
    )
    assert pool.name == "kv"
    assert pool.size_bytes.value == 112 * 2**20


def test_slots_are_counted_where_only_they_are_printed():
    line = "0.02.505.68{0} I slot   load_model: id  {0} | task -1 | new slot, n_ctx = 1024\n"
    start = read("".join(line.format(n) for n in range(4))).startups[-1]
    assert (start.max_running.value, start.max_model_len.value) == (4, 1024)
    told = "srv load_model: initializing, n_slots = 2, n_ctx_slot = 4096, kv_unified = 'true'\n" + line.format(0)
    assert read(told).startups[-1].max_running.value == 2


def test_only_the_size_line_of_vllm_depends_on_the_longest_length():
    assert only("Setting max batch total tokens to 16224\n").tokens_source == "as printed"
    v0 = "The model's max seq len (16000) is larger than the maximum number of tokens that can be stored in KV cache"
    assert only(f"{v0} (2368)\n").tokens_source == "as printed"
    v1 = "GPU KV cache size: 16,224 tokens\nMaximum concurrency for 8,192 tokens per request: 1.98x\n"
    assert only(v1).tokens_source == "as printed, at the longest length"


def test_every_pool_is_told_where_there_are_several():
    """240,000 cells of 16 layers and 4,608 of 48: 15,000 and 864 MiB."""
    found = only(
        "llama_kv_cache_unified_iswa: creating non-SWA KV cache, size = 240000 cells\n"
        "llama_kv_cache_unified: size = 15000.00 MiB (240000 cells,  16 layers,  1 seqs), K (f16): 7500.00 MiB, "
        "V (f16): 7500.00 MiB\n"
        "llama_kv_cache_unified_iswa: creating     SWA KV cache, size = 4608 cells\n"
        "llama_kv_cache_unified: size =  864.00 MiB (  4608 cells,  48 layers,  1 seqs), K (f16):  432.00 MiB, "
        "V (f16):  432.00 MiB\n"
    )
    assert [(pool.name, pool.size_bytes.value // 2**20, pool.tokens.value) for pool in found.pools] == [
        ("full", 15_000, 240_000),
        ("swa", 864, 4608),
    ]
    assert found.size_bytes.value == 15_864 * 2**20
    state = only(
        "[2026-09-09 11:57:18] Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.09GB, "
        "ssm_state size: 6.46GB\n[2026-09-09 11:57:18] KV Cache is allocated. #tokens: 2618868, K size: 19.98 GB, "
        "V size: 19.98 GB\n"
    )
    assert [(pool.name, pool.slots.value) for pool in state.pools] == [("state", 48)]
    assert state.size_bytes.holds(39.96 * 2**30)


def test_blocks_of_turbomind_are_bytes():
    """6,214 blocks of 8 MiB, with decimals since 0.7 and cut to whole MiB before."""
    lines = "[TM][INFO] [BlockManager] block_size = {} MB\n[TM][INFO] [BlockManager] max_block_count = 6214\n"
    found = only(lines.format("8.000"))
    assert found.size_bytes.holds(6214 * 8 * 2**20)
    assert found.size_bytes.high < 6214 * 8.001 * 2**20
    assert only(lines.format("8")).size_bytes.high > 6214 * 8.9 * 2**20


def test_an_estimate_of_ollama_belongs_to_the_server_that_starts_next():
    load = (
        'time=2025-03-03T07:58:33.1Z level=INFO source=server.go:97 msg=offload memory.required.kv="{kv} GiB"\n'
        'time=2025-03-03T07:58:33.2Z level=INFO source=server.go:380 msg="starting llama server" cmd="/bin/ollama '
        'runner --ctx-size {size} --batch-size 512 --parallel 1"\n'
    )
    log = read(load.format(kv="1.2", size=16_384) + load.format(kv="0.3", size=4096))
    told = [(start.find_smallest("size_bytes").value / 2**30, start.max_model_len.value) for start in log.startups]
    assert told == [(pytest.approx(1.2), 16_384), (pytest.approx(0.3), 4096)]


def test_a_remark_that_repeats_the_context_is_read_where_it_stands_alone():
    remark = "{}: n_ctx_per_seq (4096) < n_ctx_train (131072) -- the full capacity of the model will not be utilized\n"
    assert only(remark.format("llama_context")).max_model_len.value == 4096


def test_a_cache_that_could_not_be_allocated_is_an_error_with_its_bytes():
    text = "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953504\n"
    (notice,) = read("llama_context: n_ctx = 1048576\n" + text).startups[-1].errors
    assert (notice.kind, notice.needed.value) == (NoticeKind.OUT_OF_MEMORY, 137_438_953_504)


@pytest.mark.parametrize("change", ["\u00a0", "&#39;"])
def test_a_log_copied_from_a_page_is_the_same_log(change):
    text = (
        "(APIServer pid=1) INFO 07-09 02:56:25 [utils.py:273] non-default args: {'model': 'org/m', "
        "'max_model_len': 131072, 'kv_cache_dtype': 'fp8'}\n"
        "(EngineCore pid=7) INFO 07-09 02:58:11 [kv_cache_utils.py:2146] GPU KV cache size: 569,878 tokens\n"
    )
    copied = text.replace(" ", change) if change == "\u00a0" else text.replace("'", change)
    plain, found = read(text).startups[-1], read(copied).startups[-1]
    assert (found.model.value, found.kv_dtype.value, found.max_model_len.value) == (
        plain.model.value,
        plain.kv_dtype.value,
        plain.max_model_len.value,
    )
    assert found.find_smallest("tokens").value == 569_878


def test_a_line_with_figures_of_a_local_build_between_is_read():
    line = (
        "INFO 02-01 06:36:05 llm_engine.py:921] Avg prompt throughput: 382.6 tokens/s, Avg generation throughput: "
        "118.5 tokens/s, Max iteration time: 386.7 ms, Avg time/tok:149.4 ms, Running: 35 reqs, Swapped: 0 reqs, "
        "Pending: 115 reqs, GPU KV cache usage: 99.0%, CPU KV cache usage: 0.0%\n"
    )
    load = only(line).load
    assert (load.running, load.waiting) == (35, 115)
    assert load.held_ratio == pytest.approx((0.9895, 0.9905))


HELD = "[TP0] Decode batch. #running-req: 36, #token: {0}, token usage: {1}\n"


def test_tokens_held_and_their_share_tell_the_size_of_the_pool():
    """958,017 / 0.965 is 992,764; 959,430 / 0.965 is 994,228; 958,017 / 0.955 is 1,003,159."""
    found = only(HELD.format(958017, 0.96) + HELD.format(959430, 0.96))
    assert any("the pool holds 994,228 to 1,003,159 tokens" in note for note in found.notes)
    assert found.tokens is None
    told = only("max_total_num_tokens=1000000, chunked_prefill_size=8192\n" + HELD.format(958017, 0.96))
    assert told.notes == ()
    assert only(HELD.format(100, "0.50") + HELD.format(100, "0.10")).notes == ()
    assert only(HELD.format(0, "0.00")).notes == ()
    assert only(DECODE).notes == ()


def test_a_queue_that_no_line_tells_is_not_an_empty_one():
    found = only(HELD.format(958017, 0.36)).load
    assert found.waiting is None
    assert "whether requests wait is not told" in found.verdict.sentence
    told = only(HELD.format(958017, 0.36).rstrip() + ", #queue-req: 0\n").load
    assert told.waiting == 0
    assert "nothing waits for memory" in told.verdict.sentence
