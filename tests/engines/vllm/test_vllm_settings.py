"""Settings, defaults and rules by version."""

import pytest

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.vllm import make_plan, model_memory
from kvledger.engines.vllm.demand import StateMode
from kvledger.engines.vllm.rules import _CHANGES, find_rules
from kvledger.engines.vllm.settings import resolve_settings
from kvledger.engines.vllm.version import Version, parse_version
from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

GIB = 2**30


def resolved(model="llama-3.1-8b", version="0.32", **values):
    return resolve_settings(find_model(model), Deployment(engine="vllm", version=version, **values))


def plan(model, version="0.32", kv_bytes=20 * GIB, **values):
    spec = read_layers(model, max_model_len=8192) if "(" in model else find_model(model)
    return make_plan(spec, Deployment(engine="vllm", version=version, **values), KvMemory.given(kv_bytes))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32", Version(0, 32)),
        ("v0.20.2+cu129", Version(0, 20, 2)),
        ("0.9.1.dev705", Version(0, 9, 1)),
        (" 0.11.0rc2 ", Version(0, 11, 0)),
    ],
)
def test_versions_are_read_as_people_and_logs_write_them(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "latest", "0", "0.34", "1.0", "0.1.9", "0.32; rm", "0." + "9" * 50])
def test_versions_without_rules_are_refused(text):
    with pytest.raises(UsageError):
        parse_version(text)


def test_every_row_of_the_table_changes_something():
    versions = [row[0] for row in _CHANGES]
    assert versions == sorted(set(versions))
    for version in versions:
        before = Version(version.major, version.minor - 1, 99)
        assert find_rules(version) != find_rules(before)


@pytest.mark.parametrize(
    ("values", "batched", "seqs"),
    [
        ({}, 8192, 1024),
        ({"options": {"device_memory_bytes": str(180 * GIB)}}, 16_384, 1024),
        ({"options": {"device_memory_bytes": str(24 * GIB)}}, 2048, 256),
        ({"options": {"usage": "llm"}}, 16_384, 1024),
        ({"device": "cpu", "tp": 2}, 4096, 256),
        ({"max_num_batched_tokens": 512}, 512, 512),
    ],
)
def test_batch_defaults_follow_the_device(values, batched, seqs):
    deployment = resolved(**values).deployment
    assert (deployment.max_num_batched_tokens, deployment.max_num_seqs) == (batched, seqs)


@pytest.mark.parametrize(
    ("version", "values", "batches"),
    [
        ("0.25", {}, 1),
        ("0.26", {}, 2),
        ("0.26", {"options": {"async_scheduling": "off"}}, 1),
        ("0.32", {"pp": 4}, 5),
        ("0.32", {"pp": 4, "options": {"model_runner": "v1"}}, 4),
        ("0.32", {"device": "cpu"}, 1),
        ("0.32", {"speculative_tokens": 2, "options": {"speculative_method": "ngram"}}, 1),
    ],
)
def test_batches_in_flight(version, values, batches):
    assert resolved(version=version, **values).in_flight_tokens % 8192 in (0, 2048)
    settings = resolved(version=version, max_num_batched_tokens=1000, **values)
    assert settings.in_flight_tokens == batches * 1000


@pytest.mark.parametrize(
    ("model", "version", "options", "hybrid"),
    [
        ("gemma-3-27b", "0.19", {"kv_events": "on"}, False),
        ("gemma-3-27b", "0.20", {"kv_events": "on"}, True),
        ("gemma-3-27b", "0.21", {"kv_connector": "on"}, False),
        ("gemma-3-27b", "0.22", {"kv_connector": "on"}, True),
        ("gemma-3-27b", "0.32", {"kv_connector": "on", "kv_connector_supports_hybrid": "off"}, False),
        ("llama-4-scout-17b-16e", "0.13", {}, False),
        ("llama-4-scout-17b-16e", "0.13", {"allow_chunked_local": "1"}, True),
        ("llama-4-scout-17b-16e", "0.14", {}, True),
        ("gemma-3-27b", "0.32", {"disable_hybrid_kv_cache_manager": "true"}, False),
    ],
)
def test_what_switches_the_hybrid_manager_off(model, version, options, hybrid):
    assert resolved(model, version, options=options).hybrid is hybrid


@pytest.mark.parametrize(
    ("model", "version", "caching", "mode"),
    [
        ("qwen3.5-27b", "0.27", None, StateMode.NONE),
        ("qwen3.5-27b", "0.28", None, StateMode.ALIGN),
        ("qwen3.5-27b", "0.28", False, StateMode.NONE),
        ("nemotron-nano-9b-v2", "0.20", True, StateMode.ALL),
        ("nemotron-nano-9b-v2", "0.28", True, StateMode.ALIGN),
        ("nemotron-nano-9b-v2", "0.10", None, StateMode.ONE),
        ("nemotron-nano-9b-v2", "0.13", None, StateMode.ALL),
    ],
)
def test_the_mode_of_states_follows_version_and_prefix_caching(model, version, caching, mode):
    assert resolved(model, version, prefix_caching=caching).state_mode is mode


def test_a_state_of_0_13_takes_one_block_without_prefix_caching():
    """Its block is max_model_len, so ceil(max_len / block) is 1: 7 groups of states and one of attention."""
    out = plan("nemotron-nano-9b-v2", "0.13", max_model_len=8192)
    assert out.count_units(8192)["blocks"] == 7 + -(-8192 // out.deployment.block_tokens)


def test_mode_all_keeps_a_state_for_every_block():
    """The block is a multiple of lcm(256, 16): 2,048 tokens hold 5,316,608 B of state at 4,096 B a token."""
    out = plan("nemotron-nano-9b-v2", "0.20", max_model_len=8192, prefix_caching=True)
    assert out.deployment.block_tokens == 1536
    assert out.count_units(8192)["blocks"] == 8 * 6


def test_layers_left_over_go_to_the_stages_before_the_last():
    out = plan("11x(kv=8,head=64)", pp=4)
    assert [rank.unit_bytes["blocks"] // (16 * 2048) for rank in out.ranks] == [3, 3, 3, 2]


def test_a_stated_partition_is_followed():
    out = plan("10x(kv=8,head=64)", pp=2, options={"layer_partition": "7,3"})
    assert [rank.unit_bytes["blocks"] // (16 * 2048) for rank in out.ranks] == [7, 3]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dcp": 2, "tp": 8}, "needs as many copies of each of the 8 KV heads, but `tp` 8 makes 1 copy"),
        ({"dcp": 4, "tp": 16}, "makes 2 copies"),
        ({"tp": 4, "dcp": 3}, "`dcp` 3 does not divide `tp` 4"),
        ({"options": {"layer_partition": "1,2"}, "pp": 2}, r"does not give 32 layers to 2 stages"),
        ({"options": {"layer_partion": "1,2"}}, "did you mean `layer_partition`"),
        ({"options": {"core": "v2"}}, "no value of the option `core`"),
        ({"options": {"core": "v0"}}, "has no V0 core"),
        ({"options": {"auto_max_model_len": "on"}, "version": "0.13"}, "cannot fit the length itself"),
        ({"speculative_tokens": 2}, "has no draft layers of its own"),
        ({"kv_dtype": "turboquant_4bit_nc"}, "the bytes of the KV dtype"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_reason(values, message):
    with pytest.raises(UsageError, match=message):
        plan("llama-3.1-8b", **values)


def test_context_parallel_ranks_share_the_query_heads_of_a_copied_head():
    plan("llama-3.1-8b", tp=16, dcp=2)
    plan("llama-3.1-8b", tp=32, dcp=4)
    with pytest.raises(UsageError, match="`dcp` 4 does not divide the 7 query heads of each KV head"):
        plan("qwen2.5-7b", tp=28, dcp=4)


@pytest.mark.parametrize(
    ("model", "values", "word"),
    [
        ("gemma-3-27b", {}, "max_num_batched_tokens is taken as 8192"),
        ("deepseek-v3", {}, "blocks of 64 tokens"),
        ("qwen3.5-27b", {"version": "0.33"}, "FlashInfer prefill kernel"),
        ("gemma-3-27b", {"version": "0.19", "options": {"kv_events": "on"}}, "hybrid KV cache manager is off"),
        ("llama-3.1-8b", {}, None),
        ("gemma-3-27b", {"max_num_batched_tokens": 2048}, None),
        ("deepseek-v3", {"block_tokens": 128}, None),
    ],
)
def test_what_was_taken_without_being_known_is_noted(model, values, word):
    notes = resolved(model, **values).notes
    assert any(word in note for note in notes) if word else not notes


def test_windows_are_not_split_over_context_parallel_ranks():
    with pytest.raises(UsageError, match="does not support layers with a window"):
        plan("gpt-oss-20b", tp=16, dcp=2)


def test_compressed_attention_is_refused_not_guessed():
    with pytest.raises(ModelError, match="DeepSeek-V4"):
        plan("deepseek-v4-flash", kv_dtype="fp8_ds_mla")


def test_memory_for_every_rank_or_stage_must_match():
    with pytest.raises(UsageError, match="3 memory figures do not match 2 stages of 2 ranks"):
        make_plan(
            find_model("llama-3.1-8b"),
            Deployment(engine="vllm", version="0.32", tp=2, pp=2),
            KvMemory.given(GIB, GIB, GIB),
        )


def test_a_fitted_length_is_said_and_used():
    out = plan("llama-3.1-8b", kv_bytes=5 * GIB, options={"auto_max_model_len": "on"})
    assert out.deployment.max_model_len == 40_944
    assert "Auto-fit max_model_len: reduced from 131072 to 40944 to fit in available KV cache memory (5.0 GiB GPU)" in [
        line.text for line in out.lines
    ]


def test_forced_blocks_are_said_and_used():
    out = plan("llama-3.1-8b", kv_bytes=GIB, max_model_len=1024, options={"num_gpu_blocks_override": "100"})
    assert out.pools[0].units == 100
    assert "Overriding num_gpu_blocks=512 with num_gpu_blocks_override=100" in [line.text for line in out.lines]


def test_context_parallelism_multiplies_the_printed_tokens_until_0_19():
    """Latents of 61 layers: 64-token blocks, 8 ranks: blocks x 64 x 8, and the line that says so."""
    out = plan("deepseek-v3", "0.19", tp=8, dcp=8, max_model_len=8192)
    assert out.printed_tokens == out.pools[0].units * 64 * 8
    assert "Multiplying the GPU KV cache size by the cp_world_size 8 (pcp_world_size 1 * dcp_world_size 8)." in [
        line.text for line in out.lines
    ]


@pytest.mark.parametrize(
    ("dtype", "token_bytes"),
    [("auto", 4096), ("fp8", 2048), ("int8_per_token_head", 2176), ("int4_per_token_head", 1152), ("nvfp4", 1152)],
)
def test_packed_dtypes(dtype, token_bytes):
    """8 heads of 128: 2 x 128 x 2; x 1; 2 x (128 + 4); 2 x (64 + 4) + ... = 1,088; 2 x (64 + 8) bytes a head."""
    expected = {"int8_per_token_head": 8 * 2 * 132, "int4_per_token_head": 8 * 2 * 68}.get(dtype, token_bytes)
    assert plan("1x(kv=8,head=128)", kv_dtype=dtype).ranks[0].unit_bytes["blocks"] == 16 * expected


def test_sparse_latents_in_fp8_take_the_packed_record():
    """DeepSeek-V3.2: 61 x (656 + 132) = 48,068 B a token, blocks of 64."""
    assert plan("deepseek-v3.2", kv_dtype="fp8", tp=8).ranks[0].unit_bytes["blocks"] == 64 * 48_068


def test_memory_is_estimated_with_terms_and_an_interval():
    budget = GpuBudget(total_bytes=80 * GIB, weights_bytes=15 * GIB)
    memory = model_memory(find_model("llama-3.1-8b"), Deployment(engine="vllm", version="0.32"), budget)
    assert memory.accuracy is Accuracy.MODELLED
    assert [term.name for term in memory.terms] == ["requested", "weights", "activations", "non-torch", "CUDA graphs"]
    assert memory.low_bytes < memory.smallest_bytes < memory.high_bytes
    assert sum(term.value_bytes for term in memory.terms) == memory.smallest_bytes


def test_the_estimate_encloses_what_a_real_server_had():
    """#57047: a 48 GB card (47.37 GiB) at 0.85 with Qwen3-8B in 4 bits, 2.81 GiB of weights and runtime: 36.88 GiB were
    left for the cache (0.57 GiB of activations, 0.42 GiB estimated for CUDA graphs)."""
    budget = GpuBudget(
        total_bytes=round(47.37 * GIB),
        weights_bytes=round(2.81 * GIB),
        utilisation_ratio=0.85,
        non_torch_bytes=0,
    )
    deployment = Deployment(
        engine="vllm", version="0.32", options={"device_memory_bytes": str(round(47.37 * GIB))}, max_model_len=2048
    )
    memory = model_memory(find_model("qwen3-8b"), deployment, budget)
    assert memory.low_bytes < 36.88 * GIB < memory.high_bytes
    assert abs(memory.smallest_bytes - 36.88 * GIB) < 0.6 * GIB


def test_weights_that_fill_the_device_leave_nothing():
    budget = GpuBudget(total_bytes=80 * GIB, weights_bytes=140 * GIB)
    with pytest.raises(CapacityError, match="nothing is left for the KV cache"):
        model_memory(find_model("llama-3.1-70b"), Deployment(engine="vllm", version="0.32"), budget)


@pytest.mark.parametrize(
    ("version", "name", "batched", "seqs"),
    [
        ("0.8", "NVIDIA A100-SXM4-80GB", 8192, 1024),  # vllm 0.8.5: the memory alone decides
        ("0.9", "NVIDIA A100-SXM4-80GB", 2048, 256),  # vllm 0.9.2 and every later release read
        ("0.32", "a100-80gb-pcie", 2048, 256),
        ("0.33", "NVIDIA A100-SXM4-80GB", 2048, 256),
        ("0.32", "NVIDIA GB10", 8192, 1024),
        ("0.33", "NVIDIA GB10", 2048, 256),  # vllm 0.33.0: is_gb10
        ("0.33", "NVIDIA H100 80GB HBM3", 8192, 1024),
    ],
)
def test_a_device_may_keep_the_smaller_defaults_by_its_name(version, name, batched, seqs):
    options = {"device_memory_bytes": str(80 * GIB), "device_name": name}
    out = resolved(version=version, options=options).deployment
    assert (out.max_num_batched_tokens, out.max_num_seqs) == (batched, seqs)
    offline = resolved(version=version, options={**options, "usage": "llm"}).deployment
    assert offline.max_num_batched_tokens == (8192 if seqs == 256 else 16_384)


@pytest.mark.parametrize(
    ("version", "block", "near"),
    [("0.8", 8, 16), ("0.10", 17, 16), ("0.17", 17, 16), ("0.21", 8, 16), ("0.33", 17, 16), ("0.33", 100, 96)],
)
def test_a_block_that_no_attention_kernel_takes_is_refused(version, block, near):
    with pytest.raises(UsageError, match=f"blocks of {block} tokens.*multiple of 16") as caught:
        resolved(version=version, block_tokens=block)
    assert caught.value.hint == f"use `--block-size {near}`"


@pytest.mark.parametrize(("version", "block"), [("0.11", 8), ("0.17", 1), ("0.18", 17), ("0.20", 17)])
def test_flex_attention_took_any_block_from_0_11_to_0_20(version, block):
    """vllm 0.11.2 to 0.20.2 select it when ``block_size not supported`` rules out others; up to 0.17 from a list."""
    out = resolved(version=version, block_tokens=block)
    assert out.block_tokens == block
    assert any("only FlexAttention takes them" in note for note in out.notes)


@pytest.mark.parametrize("block", [16, 48, 784, 1536])
def test_a_block_of_a_multiple_of_16_is_taken(block):
    out = resolved(block_tokens=block)
    assert out.block_tokens == block
    assert not any("multiple of 16" in note for note in out.notes)


def test_small_blocks_of_latent_caches_were_taken_until_triton_wanted_16():
    assert resolved("deepseek-v3", "0.17", block_tokens=8).block_tokens == 8
    for version, block in (("0.17", 17), ("0.18", 8)):
        with pytest.raises(UsageError, match="multiple of 16"):
            resolved("deepseek-v3", version, block_tokens=block)


def test_the_rule_for_blocks_is_that_of_kernels_on_cuda():
    assert resolved(block_tokens=8, device="rocm").block_tokens == 8
    assert resolved(block_tokens=8, options={"core": "v0"}, version="0.8").block_tokens == 8
