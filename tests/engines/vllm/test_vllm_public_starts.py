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
    settings = {"version": found.version or "0.33", **asked}
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
