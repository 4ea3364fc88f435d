"""What is found in logs, next to logs in which it must not be found."""

import random

import pytest

from kvledger.cli.looking import look_at_log
from kvledger.engines.readers import read_log
from kvledger.engines.recognise import recognise
from kvledger.measure.log_check import check_log
from tests.engines.log_samples import READERS, SAMPLES
from tests.engines.test_mutated_texts import damage

from .test_handed_complaints import LLAMA_SPLIT, OOM, STATS_V0, busy, log, start

SIZE = "Available KV cache memory: 16.00 GiB"
TOKENS = "GPU KV cache size: 131,072 tokens"
TIMES = "Maximum concurrency for 8,192 tokens per request: 16.00x"


def find(text):
    """Return the findings of a log, by code."""
    found = read_log(text, recognise(text).engine)
    return {finding.code: finding for finding in look_at_log(found, check_log(found)).findings}


def served(*lines, seats=None, **settings):
    first = start(**settings) + ("" if seats is None else f", max_num_seqs={seats}")
    return find(log(first, SIZE, TOKENS, TIMES, *lines))


def test_a_quiet_start_has_nothing_to_find():
    assert served() == {}


def test_bytes_come_from_size_and_tokens():
    """16 GiB are 131,072 tokens; at 10 % and at least one request of 8,192 tokens 7/8 can go."""
    found = served(*busy(12, 3, 0, 10.0))["KV020"]
    assert found.size.unit == "bytes"
    assert found.returned == pytest.approx(0.875 * 16 * 2**30, rel=0.01)


def test_a_short_look_or_a_half_full_pool_gives_nothing_back():
    assert "KV020" not in served(*busy(5, 3, 0, 10.0))
    assert "KV020" not in served(*busy(12, 3, 0, 41.0))
    assert "KV020" not in served(*busy(12, 3, 2, 10.0))


def test_preemptions_that_are_printed_are_found():
    line = busy(1, 20, 5, 99.0)[0].replace(", GPU KV", ", Preemptions: {0}, GPU KV")
    assert "KV010" in served(*(line.format(count) for count in (5, 9, 8)))
    assert "KV010" not in served(*(line.format(count) for count in (0, 1, 0)))


def test_requests_that_wait_beside_free_memory_are_told():
    found = served(*busy(3, 16, 30, 20.0))["KV014"]
    assert "memory is not the limit" in found.sentence
    assert "KV014" not in served(*busy(3, 16, 0, 20.0))
    assert "KV014" not in served(*busy(3, 16, 30, 95.0))


def test_more_seats_are_proposed_where_the_log_says_that_all_are_taken():
    """16 of 16 hold 20.1 %: 71 like them hold 90 %."""
    seats = "non-default args: {'model': 'm', 'max_num_seqs': 16}"
    found = served(seats, *busy(3, 16, 30, 20.0))["KV014"]
    assert found.best.setting == "--max-num-seqs 71"
    assert found.returned > 0
    assert served(seats, *busy(3, 15, 30, 20.0))["KV014"].remedies == ()


def test_three_lines_without_a_token_are_a_stall_and_two_are_none():
    def stalled(count):
        return find(log("# GPU blocks: 2000, # CPU blocks: 2048",
                        "Maximum concurrency for 4096 tokens per request: 7.81x",
                        *busy(2, 5, 3, 80.0, form=STATS_V0),
                        *busy(count, 5, 3, 80.0, prompt=0.0, generation=0.0, form=STATS_V0)))  # fmt: skip

    assert "KV013" in stalled(3)
    assert "KV013" not in stalled(2)


def test_a_queue_behind_an_empty_pool_is_told():
    idle = [line.replace("usage: -0.1%", "usage: 0.0%") for line in busy(4, 0, 2, 0.0, prompt=0.0, generation=0.0)]
    assert "needs more than its 131,072 tokens" in served(*idle)["KV012"].sentence
    assert "KV012" not in served(*idle[:2])
    assert "KV012" not in served(*(line.replace("Waiting: 2", "Waiting: 0") for line in idle))


def test_fp8_is_not_proposed_where_the_log_does_not_tell_the_dtype():
    lines = log(SIZE, TOKENS, TIMES, *busy(3, 12, 3, 99.0))
    assert find(lines)["KV011"].remedies == ()
    assert served(*busy(3, 12, 3, 99.0))["KV011"].best.setting == "--kv-cache-dtype fp8"


def test_a_second_start_with_the_same_memory_has_not_shrunk():
    def starts(size):
        return find(log(start(length=4096), SIZE, TOKENS, start(length=8192), f"Available KV cache memory: {size} GiB"))

    assert "KV023" in starts("10.00")
    assert "KV023" not in starts("15.90")
    shrunk = log(start(length=8192), SIZE, start(length=4096), "Available KV cache memory: 10.00 GiB")
    assert "KV023" not in find(shrunk)


def test_ranks_with_less_memory_decide_for_all():
    def ranks(*sizes):
        return find("\n".join(
            f"(Worker_TP{n} pid={n}) INFO 05-01 10:00:00 [x.py:1] Available KV cache memory: {size} GiB"
            for n, size in enumerate(sizes)
        ))  # fmt: skip

    found = ranks("8.69", "7.46")["KV045"]
    assert found.size.low == pytest.approx(1.23 * 2**30, rel=0.01)
    assert "KV045" not in ranks("8.69", "8.67")


def test_a_token_line_that_agrees_with_the_concurrency_is_no_riddle():
    assert "KV060" not in served()
    assert "KV060" in find(log(start(), "GPU KV cache size: 32,768 tokens", TIMES))


def test_fewer_requests_than_the_worst_case_are_no_riddle():
    assert "KV061" in served(*busy(3, 17, 0, 60.0))
    assert "KV061" not in served(*busy(3, 16, 0, 60.0))


def test_one_rank_prints_its_own_cache_and_two_do_not():
    assert "KV063" in served(tp=2)
    assert "KV063" not in served(tp=1)


def test_a_wide_block_matters_only_where_prefixes_are_cached():
    wide = "Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size."
    assert "KV032" in find(log(start(), wide, SIZE))
    assert "KV032" not in find(log(start().replace("caching=True", "caching=False"), wide, SIZE))
    assert "KV032" not in find(log(start(), wide.replace("784", "128"), SIZE))


def test_a_block_above_the_longest_request_finds_nothing_for_any_prompt():
    """vllm-project/vllm#48401: blocks of 8,320 tokens above the longest request."""
    wide = "Setting attention block size to {0} tokens to ensure that attention page size is >= mamba page size."
    above = find(log(start(), wide.format(8320), SIZE, TOKENS, TIMES))["KV032"].sentence
    assert "no prompt of this server, 8,192 tokens at most, can ever be found" in above
    below = find(log(start(), wide.format(784), SIZE, TOKENS, TIMES))["KV032"].sentence
    assert "a shorter prompt can never be found" in below


def test_an_old_release_expands_latents_and_a_distilled_model_has_none():
    def serving(version, model):
        return find(log(start(version=version, model=model), "# GPU blocks: 835, # CPU blocks: 2048",
                        "Maximum concurrency for 8192 tokens per request: 1.63x",
                        "The model's max seq len (163840) is larger than the maximum number of tokens that can be "
                        "stored in KV cache (13360)."))  # fmt: skip

    assert "KV047" in serving("0.6.4", "deepseek-ai/DeepSeek-V3")
    assert "KV047" not in serving("0.8.5", "deepseek-ai/DeepSeek-V3")
    assert "KV047" not in serving("0.6.4", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B")


def test_memory_that_is_full_is_no_fragmentation():
    """10 MiB in the allocator are no help for 546 MiB."""
    full = OOM.format("546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 14.19 MiB is free. Process 1 has "
                      "15.25 GiB memory in use. Of the allocated memory 15.13 GiB is allocated by PyTorch, and 10.00 "
                      "MiB is reserved by PyTorch but unallocated.")  # fmt: skip
    found = find(log(start(), full))
    assert "KV070" not in found
    assert "KV072" in found


def test_memory_that_runs_out_after_the_pool_was_cut_is_another_matter():
    refused = OOM.format("16.00 GiB. GPU 0 has a total capacity of 44.53 GiB of which 187.94 MiB is free.")
    assert "KV072" in find(log(start(), refused))
    assert "KV072" not in find(log(start(), SIZE, refused))


def test_a_single_slot_owns_all_of_its_context():
    alone = LLAMA_SPLIT.replace("n_seq_max     = 6", "n_seq_max     = 1").replace("n_slots = 6", "n_slots = 1")
    alone = alone.replace("27306", "163840")
    assert "KV048" in find(LLAMA_SPLIT)
    assert "KV048" not in find(alone)


@pytest.mark.parametrize("engine", READERS)
def test_damaged_logs_stop_no_rule(engine):
    for seed in range(60):
        text = damage(SAMPLES[engine], random.Random(seed)) if seed else SAMPLES[engine]
        found = READERS[engine](text)
        for finding in look_at_log(found, check_log(found)).findings:
            assert finding.size.low >= 0
            assert finding.sentence


SHARED = "srv load_model: initializing, n_slots = 4, n_ctx_slot = 131072, kv_unified = '{0}'\n"
ENDED = "srv    send_error: task id = {0}, error: Context size has been exceeded.\n"


def test_slots_that_share_cells_and_end_each_other_are_told():
    """Four slots may reach 131,072 tokens each: 393,216 more than the 131,072 they share."""
    text = SHARED.format("true") + ENDED.format(1) + ENDED.format(2)
    found = find(text)["KV017"]
    assert "requests were ended 2 times because no cell was free" in found.sentence
    assert (found.size.low, found.size.unit) == (393_216, "tokens")
    assert [remedy.setting.split(" (")[0] for remedy in found.remedies] == ["--parallel 4", "--ctx-size 524288"]
    assert "each slot owns 32,768" in found.remedies[0].proof
    assert "KV017" not in find(SHARED.format("true"))
    assert "KV017" not in find(SHARED.format("false") + ENDED.format(1))


REFUSED = (
    "llama_new_context_with_model: n_ctx      = 1048576\n"
    "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953504\n"
    "llama_kv_cache_init: failed to allocate buffer for kv cache\n"
)


def test_a_context_whose_cache_is_refused_is_told_with_its_bytes():
    """128 KiB a token: half of the context takes half of the bytes, q8_0 34/64 of them."""
    found = find(REFUSED)["KV018"]
    assert "refused 128.00 GiB of cache for a context of 1,048,576 tokens, 128.00 MiB for each 1,024" in found.sentence
    assert [remedy.setting for remedy in found.remedies] == [
        "--ctx-size 524288",
        "--cache-type-k q8_0 --cache-type-v q8_0",
    ]
    assert found.remedies[1].returned.low == pytest.approx(137_438_953_504 * 30 / 64)
    assert "KV018" not in find(REFUSED.partition("llama_kv_cache_init")[0])
    quantised = "llama_kv_cache_init: kv_size = 1048576, offload = 0, type_k = 'q8_0', type_v = 'q8_0', n_layer = 32\n"
    first, second, third = REFUSED.splitlines(keepends=True)
    assert len(find(first + quantised + second + third)["KV018"].remedies) == 1


FORGOTTEN = (
    "slot update_slots: id  0 | task 2014 | n_past = 10423, cache_tokens.size() = 10922, seq_id = 0, pos_min = 9716, "
    "n_swa = {0}\nslot update_slots: id  0 | task 2014 | forcing full prompt re-processing due to lack of cache data "
    "(likely due to SWA, see https://example.org)\n"
)


def test_prompts_that_a_window_makes_computed_again_are_told():
    found = find(FORGOTTEN.format(1024) * 3)["KV034"]
    assert "3 prompts, of which 31,269 tokens were in the cache, were computed whole again" in found.sentence
    assert (found.size.low, found.size.unit) == (31_269, "tokens")
    assert [remedy.setting for remedy in found.remedies] == ["--swa-full"]
    assert find(FORGOTTEN.format(1))["KV034"].remedies == ()
    assert "KV034" not in find(SHARED.format("true") + FORGOTTEN.format(1024).splitlines(keepends=True)[0])
