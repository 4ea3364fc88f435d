"""Start-up logs that users made public, checked as a user does: the log, the model, nothing else.

Each start is the lines an engine printed, with the flags that were set; the figures must follow to the digit.
"""

import pytest

from kvledger.engines.plan import Deployment
from kvledger.engines.vllm.logcheck import check_start_up, deployment_of
from kvledger.engines.vllm.startup import read_start_up
from kvledger.errors import UsageError
from kvledger.model.catalogue import find_model


def printed(gib, tokens, length, times):
    return (
        f"Available KV cache memory: {gib} GiB\nGPU KV cache size: {tokens:,} tokens\n"
        f"Maximum concurrency for {length:,} tokens per request: {times:.2f}x\n"
    )


def args(**flags):
    return f"non-default args: {flags}\n"


def check(model, text, **asked):
    found = read_start_up(text)
    settings = {"version": found.version or found.newest_version or "0.33", **asked}
    deployment = deployment_of(found, Deployment(engine="vllm", **settings))
    return check_start_up(find_model(model), deployment, found), deployment


STATES = {"enable_prefix_caching": True, "max_num_batched_tokens": 8192}
PUBLIC = {
    # one rank, states beside attention, fp8: blocks of 2,096 tokens and 20.47 MiB
    "35B-A3B on a 32 GB card": (
        "qwen3.5-35b-a3b", {"version": "0.24.0"}, 299,
        printed("5.98", 567_978, 131_072, 4.33) + args(max_model_len=131_072, kv_cache_dtype="fp8", **STATES),
    ),
    "the same, three days later": (
        "qwen3.5-35b-a3b", {"version": "0.24.0"}, 300,
        printed("6.01", 569_878, 131_072, 4.35) + args(max_model_len=131_072, kv_cache_dtype="fp8", **STATES),
    ),
    "27B on two ranks, fp8": (
        "qwen3.5-27b", {"version": "0.26.0"}, None,
        printed("4.99", 302_921, 131_072, 2.31)
        + args(max_model_len=131_072, tensor_parallel_size=2, kv_cache_dtype="fp8_e4m3", **STATES),
    ),
    # the draft of the model itself: one more layer, and states of three more tokens: blocks of 1,600 tokens
    "27B on two ranks, fp8, three proposed tokens": (
        "qwen3.5-27b", {"version": "0.24.0"}, None,
        printed("11.05", 623_873, 262_144, 2.38)
        + args(max_model_len=262_144, tensor_parallel_size=2, kv_cache_dtype="fp8_e5m2", **STATES,
               speculative_config={"method": "mtp", "num_speculative_tokens": 3}),
    ),
    "1.7B with 18.78 GiB": ("qwen3-1.7b", {"version": "0.14.0"}, 10_991,
                            "Available KV cache memory: 18.78 GiB\nGPU KV cache size: 175,856 tokens\n"),
    # 0.20.0 still divides the blocks by the groups: 36 x 2,096 tokens of 147 blocks
    "35B-A3B in 0.20.0": (
        "qwen3.5-35b-a3b", {"version": "0.20.0"}, 147,
        printed("2.95", 75_456, 8192, 14.70)
        + args(max_model_len=8192, kv_cache_dtype="fp8_e4m3", max_num_seqs=4, enable_prefix_caching=True,
               max_num_batched_tokens=4096),
    ),
    "27B on two ranks, two proposed tokens, blocks of 800": (
        "qwen3.5-27b",
        {"tp": 2, "speculative_tokens": 2, "max_num_batched_tokens": 1024, "prefix_caching": True,
         "options": {"speculative_method": "mtp"}}, 473,
        "Available KV cache memory: 12.29 GiB\nGPU KV cache size: 364,688 tokens, "
        "Maximum concurrency for 262,144 tokens per request: 1.39x\n",
    ),
    "windows of Gemma 3 1B, two padding layers": (
        "gemma-3-1b", {"version": "0.13.0", "max_num_batched_tokens": 8192}, 416_007,
        printed("25.39", 950_864, 2048, 461.21),
    ),
    "states on two ranks": (
        "qwen3-next-80b-a3b", {"version": "0.11.0", "tp": 2}, 7162, printed("44.59", 973_760, 262_144, 14.77),
    ),
    "a sparse indexer on eight ranks": (
        "glm-5", {"version": "0.19", "tp": 8}, 5371, printed("32.06", 343_744, 202_752, 1.70),
    ),
    "latents over eight context-parallel ranks": (
        "deepseek-v3", {"version": "0.12.0", "tp": 8, "dcp": 8}, 11_174,
        "Available KV cache memory: 46.80 GiB\nGPU KV cache size: 5,721,088 tokens\n",
    ),
    "two stages": ("qwen3-32b", {"version": "0.27.0", "pp": 2}, 3540, printed("6.92", 56_640, 32_768, 1.73)),
    # 24 latent layers and 69 of states on sixteen ranks: 82 blocks of 384 tokens
    "Kimi K3 on two nodes": (
        "kimi-k3", {"version": "0.27.0", "tp": 16}, 82,
        "Setting attention block size to 384 tokens to ensure that attention page size is >= mamba page size.\n"
        + printed("0.82", 30_062, 29_696, 1.01),
    ),
    # V0 prints blocks; 4 GiB of host memory beside them
    "Llama 3.1 8B on a 24 GB card": (
        "llama-3.1-8b", {"version": "0.6.4"}, 1952,
        "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB "
        "memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB "
        "gpu_memory_utilization=0.90\n# GPU blocks: 1952, # CPU blocks: 2048\n"
        "Maximum concurrency for 20000 tokens per request: 1.56x\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_public_starts_follow_to_the_digit(name):
    model, asked, blocks, text = PUBLIC[name]
    found, _ = check(model, text, **asked)
    assert found.follows, found.explanation
    assert blocks is None or found.blocks == blocks


def test_a_printed_block_count_decides_among_bytes_that_round_alike():
    """3.805 to 3.815 GiB hold 1,948 to 1,953 blocks of 2 MiB; 1.56 x 20,000 tokens allow all of them."""
    model, asked, _, text = PUBLIC["Llama 3.1 8B on a 24 GB card"]
    assert check(model, text.replace("1952", "1950"), **asked)[0].blocks == 1950
    wrong, _ = check(model, text.replace("1952", "1900"), **asked)
    assert not wrong.follows
    assert "1,900 blocks were printed" in wrong.explanation


def test_the_bytes_of_an_error_are_checked_where_nothing_else_is_printed():
    """Two stages of 24 layers: 0.14 to 0.16 ask for the bytes of all 48, later releases for those of a stage."""
    text = (
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the "
        "estimated maximum model length is 34736.\n"
    )
    assert check("qwen3-30b-a3b", text, version="0.15.2rc1.dev93+g11a4c9d30.cu128", pp=2)[0].follows
    later, _ = check("qwen3-30b-a3b", text, version="0.17.0", pp=2)
    assert not later.follows
    assert "takes 12.00 GiB by this model's layers, but the error asks for 24.00 GiB" in later.explanation


def test_how_tokens_are_proposed_is_read_from_the_arguments_and_the_configuration():
    for text in (
        args(speculative_config={"method": "mtp", "model": "m-mtp", "num_speculative_tokens": 3}, max_model_len=8192),
        "Initializing a V1 LLM engine (v0.20.1) with config: model='m', "
        "speculative_config=SpeculativeConfig(method='mtp', model='m-mtp', num_spec_tokens=3), max_seq_len=8192\n",
    ):
        _, deployment = check("qwen3.5-27b", printed("11.05", 1, 8192, 1.0) + text, version="0.20.1")
        assert deployment.speculative_tokens == 3
        assert deployment.options["speculative_method"] == "mtp"
        assert deployment.max_model_len == 8192


def test_a_draft_with_a_model_of_its_own_asks_for_its_layers():
    text = printed("10.16", 200_769, 200_000, 1.0) + args(
        speculative_config={"method": "dflash", "model": "m-dflash", "num_speculative_tokens": 5}
    )
    with pytest.raises(UsageError, match="drafted for by another model") as caught:
        check("qwen3.5-27b", text, version="0.20.2rc1.dev9+g01d4d1ad3")
    assert "draft_layers" in (caught.value.hint or "")
    found, _ = check("qwen3.5-27b", text.replace("dflash", "suffix"), version="0.20.2rc1.dev9+g01d4d1ad3")
    assert not found.follows


def test_what_seldom_stands_in_an_excerpt_is_found_together():
    """Blocks of 1,056 tokens: the cache is in fp8, prefixes are kept, and groups share the blocks out."""
    found, _ = check("qwen3.5-9b", printed("4.24", 68_640, 16_384, 11.91))
    assert not found.follows
    assert found.explanation == (
        "the printed figures follow if the KV dtype is fp8 and prefix caching is on and the version is 0.14 to 0.16 or "
        "0.17 to 0.20.0"
    )
    found, _ = check("qwen3.5-122b-a10b", printed("24.05", 482_080, 262_144, 6.42))
    assert "prefix caching is on and the model's own draft proposes 1 token and the version is" in found.explanation
    told, _ = check("qwen3.5-9b", "vLLM API server version 0.19.0\n" + printed("4.24", 68_640, 16_384, 11.91))
    assert told.explanation == "the printed figures follow if the KV dtype is fp8 and prefix caching is on"


def test_a_concurrency_that_was_shortened_by_hand_is_compared_to_its_digits():
    text = "Available KV cache memory: 38.46 GiB\nGPU KV cache size: 315,072 tokens\n"
    times = "Maximum concurrency for 10,000 tokens per request: {}x\n"
    assert check("qwen3-32b", text + times.format("31.5"), tp=2)[0].follows
    wrong, _ = check("qwen3-32b", text + times.format("31.50"), tp=2)
    assert "no number of blocks gives them and the printed concurrency" in wrong.explanation


def test_one_rank_alone_is_not_explained_by_another():
    found, _ = check("qwen3.5-27b", printed("22.72", 586_374, 262_144, 2.24), kv_dtype="fp8", version="0.27.0")
    assert "a token costs more than this model's layers say" in found.explanation
    assert "another rank" not in found.explanation


def test_a_dry_run_of_graphs_forces_no_blocks():
    """From 0.17 on a pool of a few blocks is made and dropped before the memory is known."""
    dry = "Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512\n"
    found, deployment = check("qwen3-1.7b", dry + printed("26.87", 251_584, 8192, 30.71))
    assert (found.follows, found.blocks) == (True, 15_724)
    assert "num_gpu_blocks_override" not in deployment.options
    forced = printed("26.87", 251_584, 8192, 30.71) + dry
    assert check("qwen3-1.7b", forced)[1].options["num_gpu_blocks_override"] == "512"


@pytest.mark.parametrize(
    ("model", "line", "figures", "asked", "blocks"),
    [
        (
            "llama-3.1-8b",
            "Current kv cache memory in use is 59212694937 bytes.\n",
            printed("55.15", 451_744, 4096, 110.29),
            {},
            28_234,
        ),
        (
            "qwen2.5-0.5b",
            "",
            "Available memory: 40178937036, total memory: 49602220032\nGPU KV cache size: 3,269,760 tokens\n",
            {"block_tokens": 128},
            25_545,
        ),
    ],
)
def test_whole_bytes_are_read_as_they_are(model, line, figures, asked, blocks):
    log = read_start_up(figures + line)
    low, high = log.available[0]
    assert low == high
    found, _ = check(model, figures + line, **asked)
    assert (found.follows, found.blocks) == (True, blocks)


def test_a_batch_is_tried_together_with_other_settings_where_windows_are_charged_for_it():
    found, _ = check("gemma-4-26b-a4b", printed("8.29", 72_400, 98_304, 6.73))
    assert found.explanation == (
        "the printed figures follow if the KV dtype is fp8 and max_num_batched_tokens is 2048 and the version is 0.11 "
        "to 0.13, 0.14 to 0.16 or 0.17 to 0.20.0"
    )


def test_a_widened_block_is_a_figure_as_well():
    """Two ranks halve the states as they do the heads: 784 tokens, with any number of bytes."""
    text = "Setting attention block size to {} tokens to ensure that attention page size is >= mamba page size.\n"
    figures = printed("12.93", 415_125, 262_144, 1.58)
    asked = {"version": "0.28.0", "tp": 2, "max_num_batched_tokens": 1024, "prefix_caching": True}
    assert check("qwen3.5-27b", text.format(784) + figures, **asked)[0].follows
    wrong, _ = check("qwen3.5-27b", text.format(1088) + figures, **asked)
    assert "the log widens the block to 1,088 tokens, this model's states need 784" in wrong.explanation
