"""SGLang's planner against lines that users published, and against its rules by hand."""

import pytest

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory, Plan
from kvledger.engines.sglang import make_plan, model_memory
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import (
    AttentionCache,
    Dtype,
    Indexer,
    LatentCache,
    Layer,
    Length,
    ModelSpec,
    SharedCache,
    StateCache,
)
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model
from kvledger.model.states import StateDtypes, kimi_delta_attention, mamba2
from kvledger.units import GIB

LARGE = KvMemory.given(1024 * GIB)
FIELDS = ("tp", "pp", "kv_dtype", "device", "block_tokens", "max_model_len", "max_num_seqs", "prefix_caching",
          "speculative_tokens", "max_num_batched_tokens")  # fmt: skip


def plan(model, version="0.5.9", memory=LARGE, **settings) -> Plan:
    fields = {name: settings.pop(name) for name in FIELDS if name in settings}
    options = {name: str(value) for name, value in settings.items()}
    return make_plan(model, Deployment(engine="sglang", version=version, options=options, **fields), memory)


def model(layers, *, train=131072, architectures=(), dtype="bfloat16"):
    read = read_layers(layers, max_model_len=train, dtype=dtype)
    return ModelSpec(
        name="m",
        model_type="m",
        architectures=architectures,
        layers=read.layers,
        dtype=read.dtype,
        max_model_len=read.max_model_len,
    )


def texts(result):
    return [line.text for line in result.lines]


def build(caches, *, architectures=(), train=131072):
    return ModelSpec(
        name="m",
        model_type="m",
        architectures=architectures,
        layers=tuple(Layer(index=i, cache=cache) for i, cache in enumerate(caches)),
        dtype=Dtype.BFLOAT16,
        max_model_len=Length(tokens=train, source="test"),
    )


@pytest.mark.parametrize(
    ("layers", "settings", "tokens", "sizes"),
    [
        # G14, Qwen3-235B: 367,405 rows x 94 x 1 head x 128 x 2 B = 24,064 B = 8.23 GiB a side
        ("94x(kv=4,head=128)", {"tp": 4}, 367404, "K size: 8.23 GB, V size: 8.23 GB"),
        # K1-058, 64 layers, TP 4: 2 heads x 128 x 2 B x 64 = 32,768 B a side
        ("64x(kv=8,head=128)", {"tp": 4, "version": "0.4.6"}, 46611, "K size: 1.42 GB, V size: 1.42 GB"),
        # K1-059, Llama-3.2-1B: 16 x 8 x 64 x 2 B = 16,384 B a side
        ("16x(kv=8,head=64)", {"version": "0.5.6"}, 2405039, "K size: 36.70 GB, V size: 36.70 GB"),
        # G16, K1-061, Kimi-K2.5: 61 x 576 x 2 B = 70,272 B, whatever the tensor parallelism
        ("61x(latent=512,rope=64)", {"tp": 8}, 2454421, "KV size: 160.63 GB"),
        # K1-062: the same in fp8, 35,136 B
        ("61x(latent=512,rope=64)", {"tp": 8, "kv_dtype": "fp8"}, 2659072, "KV size: 87.01 GB"),
        # K1-068, gpt2: 12 x 12 x 64 x 2 B = 18,432 B a side is memory; the "Virtual" line of 7.99 GB is address space
        ("12x(kv=12,head=64)", {"version": "0.5.6"}, 248479, "K size: 4.27 GB, V size: 4.27 GB"),
        # G15, DeepSeek-V3.2 fp8: 61 x (656 + 132) B = 48,068 B
        ("61x(latent=512,rope=64,index=128)", {"kv_dtype": "fp8", "version": "0.5.6"}, 975424, "KV size: 43.67 GB"),
        # before PR #11309 the indexer was allocated but not printed: 61 x 656 B
        ("61x(latent=512,rope=64,index=128)", {"kv_dtype": "fp8", "version": "0.5.3"}, 1462784, "KV size: 54.52 GB"),
        # K1-064, GLM-5 on AMD (pages of one token): 78 x 788 B = 61,464 B
        (
            "78x(latent=512,rope=64,index=128)",
            {"kv_dtype": "fp8", "tp": 8, "device": "rocm"},
            3262823,
            "KV size: 186.77 GB",
        ),
    ],
)
def test_size_lines_of_users_come_out(layers, settings, tokens, sizes):
    result = plan(model(layers), max_total_tokens=tokens, **settings)
    assert f"KV Cache is allocated. #tokens: {tokens}, {sizes}" in texts(result)
    assert result.printed_tokens == tokens


def test_newer_releases_name_the_dtype_in_the_line():
    """K1-060, Qwen3-30B-A3B: 1,669,817 rows x 48 x 4 x 128 x 2 B = 76.44 GiB a side."""
    result = plan(model("48x(kv=4,head=128)"), "0.5.23", max_total_tokens=1669816)
    assert texts(result)[0] == (
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1669816, K size: 76.44 GB, V size: 76.44 GB"
    )


@pytest.mark.parametrize(
    ("asked", "named"), [("fp8_e5m2", "float8_e5m2"), ("fp8", "float8_e4m3fn"), ("float16", "float16")]
)
def test_the_line_names_the_dtype_as_torch_does(asked, named):
    line = texts(plan(model("1x(kv=1,head=64)"), "0.5.13", max_total_tokens=10, kv_dtype=asked))[0]
    assert line.startswith(f"KV Cache is allocated. dtype: torch.{named}, #tokens: 10,")


def test_an_indexer_that_was_not_printed_is_in_the_plan():
    """1,462,848 rows x 61 x (656 + 132) B = 65.49 GiB used, while the line said 54.52 (PR #11309)."""
    result = plan(model("61x(latent=512,rope=64,index=128)"), "0.5.3", kv_dtype="fp8", max_total_tokens=1462784)
    allocated = result.pool("full").units * result.ranks[0].unit_bytes["full"]
    assert f"{allocated / GIB:.2f}" == "65.49"
    assert any("48068 are allocated" in note for note in result.notes)


@pytest.mark.parametrize(
    ("version", "cell"),
    [("0.5.3", 61 * 576), ("0.5.6", 61 * (576 + 132)), ("0.5.9", 61 * (576 + 132)), ("0.5.23", 61 * (656 + 132))],
)
def test_what_the_budget_pays_for_a_sparse_token_depends_on_the_release(version, cell):
    """64 GiB in pages of 64 tokens: 2**36 // cell // 64 * 64."""
    result = plan(model("61x(latent=512,rope=64,index=128)"), version, KvMemory.given(64 * GIB), kv_dtype="fp8")
    assert result.printed_tokens == 64 * GIB // cell // 64 * 64


def test_a_budget_becomes_whole_pages_and_one_dummy_page():
    """10 GiB / 131,072 B = 81,920 tokens; one byte less leaves 81,919, in pages of 64: 81,856."""
    exact = plan(model("32x(kv=8,head=128)"), memory=KvMemory.given(10 * GIB))
    paged = plan(model("32x(kv=8,head=128)"), memory=KvMemory.given(10 * GIB - 1), block_tokens=64)
    assert (exact.printed_tokens, paged.printed_tokens) == (81920, 81856)
    pool = paged.pool("full")
    assert (pool.units, pool.null_units, pool.unit_name) == (81856 // 64 + 1, 1, "page")
    assert exact.find_longest_tokens() == 81920
    assert paged.count_requests(65) == 81856 // 128


def gemma4_e4b():
    full = AttentionCache(kv_heads=2, key_size=512, value_size=512)
    window = AttentionCache(kv_heads=2, key_size=256, value_size=256, window_tokens=512)
    caches = []
    for index in range(42):
        cache = full if index % 6 == 5 else window
        caches.append(cache if index < 24 else SharedCache(shares_with=23, cache=cache))
    return build(caches, architectures=("Gemma4ForConditionalGeneration",))


def test_two_pools_of_a_user_come_out():
    """K1-069: swa = int(997,846 x 0.8) = 798,276; 798,277 x 35 x 2,048 + 997,847 x 7 x 4,096 B = 79.94 GiB.

    All 42 layers are allocated although 18 share the cache of an earlier one.
    """
    result = plan(gemma4_e4b(), "0.5.13", max_total_tokens=997846)
    assert "SWAKVPool mem usage: 79.94 GB, swa size: 798276, full size: 997846" in texts(result)
    assert "Use sliding window memory pool. full_layer_tokens=997846, swa_layer_tokens=798276" in texts(result)
    assert [claim.layers for claim in result.claims] == [7, 35]
    assert any("share the cache of an earlier one" in note for note in result.notes)


def gpt_oss(architecture="GptOssForCausalLM"):
    return model("12x(kv=8,head=64)+12x(kv=8,head=64,window=128)", architectures=(architecture,))


@pytest.mark.parametrize(
    ("version", "pools"), [("0.4.6", ["full"]), ("0.4.10", ["full", "swa"]), ("0.5.9", ["full", "swa"])]
)
def test_windows_have_their_own_pool_from_0_4_10(version, pools):
    assert [pool.name for pool in plan(gpt_oss(), version).pools] == pools


@pytest.mark.parametrize(("version", "pools"), [("0.5.6", ["full", "swa"]), ("0.5.9", ["full"])])
def test_from_0_5_9_only_listed_architectures_have_two_pools(version, pools):
    result = plan(gpt_oss("Cohere2ForCausalLM"), version)
    assert [pool.name for pool in result.pools] == pools
    forced = plan(gpt_oss("Cohere2ForCausalLM"), version, hybrid_swa="on")
    assert [pool.name for pool in forced.pools] == ["full", "swa"]


@pytest.mark.parametrize("version", ["0.4.10", "0.5.9", "0.5.13"])
def test_the_two_pools_spend_the_budget(version):
    """12 + 12 equal layers of 2,048 B, ratio 0.8: full = budget / (12 x 2,048 x 1.8)."""
    result = plan(gpt_oss(), version, KvMemory.given(GIB))
    full = result.printed_tokens
    assert full == pytest.approx(GIB / (12 * 2048 * 1.8), abs=2)
    assert result.pool("swa").usable_units == int(full * 0.8)


def test_a_request_keeps_only_its_window_in_the_second_pool():
    result = plan(gpt_oss(), memory=KvMemory.given(GIB))
    assert result.count_units(10_000) == {"full": 10_000, "swa": 129}


def test_without_radix_cache_the_window_pool_follows_the_request_limit():
    """16 requests x (128 + 128 + 1 + 1) + 2 x 4,096 + 1 = 12,321 tokens; the rest of the budget is full attention."""
    result = plan(
        gpt_oss(), "0.5.23", KvMemory.given(GIB),
        max_num_seqs=16, disable_radix_cache="on", chunked_prefill_size=4096,
    )  # fmt: skip
    assert result.pool("swa").usable_units == 12321
    assert result.printed_tokens == (GIB - 12321 * 12 * 2048) // (12 * 2048)


def bailing(states=18):
    dtypes = StateDtypes(conv=Dtype.BFLOAT16, state=Dtype.FLOAT32)
    kda = kimi_delta_attention(heads=16, head_size=128, kernel=4, dtypes=dtypes)
    return build([LatentCache(latent_size=512, rope_size=64)] * 6 + [kda] * states)


def test_state_lines_of_a_user_come_out():
    """K1-066: 615 slots (one for padding) x 18 x 16 x 128 x 128 x 4 B = 10.81 GiB; conv 18 x 3 x 6,144 x 2 B.

    6 x 576 x 2 B x 1,933,683 rows = 12.45 GiB. The layers' shape is inferred from these figures.
    """
    result = plan(bailing(), "0.5.23", max_total_tokens=1933682, max_mamba_cache_size=614)
    assert texts(result)[:2] == [
        "Mamba Cache is allocated. max_mamba_cache_size: 614, conv_state size: 0.38GB, ssm_state size: 10.81GB ",
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1933682, KV size: 12.45 GB",
    ]
    assert result.request_limit == 614 // 3
    assert result.count_requests(100) == 204


@pytest.mark.parametrize(("version", "padding"), [("0.5.6", 0), ("0.5.9", 0), ("0.5.23", 1)])
def test_states_take_their_share_of_the_budget(version, padding):
    """20 GiB x 0.9 / 1.9 for states of 18 x (1,048,576 + 36,864) B; newer releases pay the slot for padding from it."""
    slot = 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)
    result = plan(bailing(), version, KvMemory.given(20 * GIB))
    slots = int(20 * GIB * 0.9 / 1.9 // slot) - padding
    assert result.pool("mamba").usable_units == slots
    assert result.printed_tokens == pytest.approx((20 * GIB - (slots + padding) * slot) / 6912, abs=1)


def test_in_0_5_6_the_radix_cache_keeps_states_of_delta_rules_only():
    """Mamba-2 models run without it there, with 512 slots; Kimi delta attention shares the memory."""
    dtypes = StateDtypes(conv=Dtype.BFLOAT16, state=Dtype.FLOAT32)
    state = mamba2(heads=16, head_size=64, state_size=128, groups=1, kernel=4, dtypes=dtypes)
    mamba = build([AttentionCache(kv_heads=8, key_size=128, value_size=128), state])
    assert plan(mamba, "0.5.6").pool("mamba").usable_units == 512
    assert plan(bailing(), "0.5.6", max_mamba_cache_size=10).pool("mamba").usable_units > 512


def test_the_tensorrt_backend_keeps_sparse_records_without_scales():
    sparse = model("1x(latent=512,rope=64,index=128)")
    result = plan(sparse, "0.5.23", kv_dtype="fp8", attention_backend="trtllm_mla")
    assert result.ranks[0].unit_bytes["full"] == 64 * (576 + 132)


def test_before_0_5_6_states_are_counted_by_requests():
    assert plan(bailing(), "0.5.3").pool("mamba").usable_units == 512
    assert plan(bailing(), "0.5.3", max_num_seqs=32).pool("mamba").usable_units == 32


def test_a_draft_is_paid_for_from_0_5_18():
    """61 layers of 1,152 B and one more: int(70,272 x 1 / 61) = 1,152."""
    before = plan(model("61x(latent=512,rope=64)"), "0.5.13", KvMemory.given(GIB), speculative_tokens=1, draft_layers=1)
    after = plan(model("61x(latent=512,rope=64)"), "0.5.18", KvMemory.given(GIB), speculative_tokens=1, draft_layers=1)
    assert (before.printed_tokens, after.printed_tokens) == (GIB // 70272, GIB // 71424)
    assert before.pool("draft").units == before.pool("full").units
    assert any("on top of the budget" in note for note in before.notes)


def test_the_widest_stage_decides_and_left_over_layers_go_to_the_last_ones():
    """94 layers over 4 stages: 23, 23, 24, 24 from 0.5.6 and 23, 23, 23, 25 before."""
    memory = KvMemory.given(10 * GIB)
    newer = plan(model("94x(kv=4,head=128)"), "0.5.9", memory, pp=4)
    older = plan(model("94x(kv=4,head=128)"), "0.5.3", memory, pp=4)
    assert newer.printed_tokens == 10 * GIB // (24 * 2048)
    assert older.printed_tokens == 10 * GIB // (25 * 2048)
    assert [rank.unit_bytes["full"] for rank in newer.ranks] == [23 * 2048, 23 * 2048, 24 * 2048, 24 * 2048]


def test_a_latent_is_copied_on_every_rank():
    content = plan(model("61x(latent=512,rope=64)"), tp=8).ranks[0].contents[0]
    assert (content.payload_bytes, content.distinct_bytes) == (70272, 70272)
    grouped = plan(model("1x(kv=4,head=128)"), tp=8).ranks[0].contents[0]
    assert (grouped.payload_bytes, grouped.distinct_bytes) == (512, 2048)


@pytest.mark.parametrize(
    ("version", "total_gib", "tp", "fraction"),
    [
        # constants by parallelism: 81,920 MiB or less
        ("0.4.6", 80, 1, 0.88),
        ("0.4.6", 80, 8, 0.81),
        # 81,920 - (9.5 + 8/2) x 1,024 = 68,096 -> 0.831
        ("0.4.10", 80, 8, 0.831),
        # 512 + 8,192 x 1.5 + 512 x 2 + 1,024 = 14,848 -> 0.819
        ("0.5.9", 80, 8, 0.819),
        # 512 + 12,288 + 512 + 128 = 13,440 -> 0.836
        ("0.5.9", 80, 1, 0.836),
        # and 58 prefill graphs x 8 = 464: 13,904 -> 0.830
        ("0.5.13", 80, 1, 0.83),
        # 24 GiB: 512 + 2,048 x 1.5 + 24 x 2 + 128 = 3,760 -> 0.847
        ("0.5.9", 24, 1, 0.847),
    ],
)
def test_the_default_fraction_follows_the_release(version, total_gib, tp, fraction):
    deployment = Deployment(engine="sglang", version=version, tp=tp)
    budget = GpuBudget(total_bytes=total_gib * GIB, weights_bytes=10 * GIB, non_torch_bytes=0)
    memory = model_memory(model("32x(kv=8,head=128)"), deployment, budget)
    assert f"mem_fraction_static {fraction} (" in memory.source
    assert memory.smallest_bytes == pytest.approx(total_gib * GIB * fraction - 10 * GIB, abs=2)


def test_a_budget_of_a_device_is_an_interval():
    memory = model_memory(
        model("32x(kv=8,head=128)"),
        Deployment(engine="sglang", version="0.5.9"),
        GpuBudget(total_bytes=80 * GIB, weights_bytes=16 * GIB),
    )
    assert memory.low_bytes < memory.smallest_bytes < memory.high_bytes
    assert memory.accuracy is Accuracy.MODELLED


def test_too_little_memory_is_the_engines_own_error():
    result = plan(model("32x(kv=8,head=128)"), memory=KvMemory.given(1000))
    assert result.failure is not None
    assert result.failure.text == "Not enough memory. Please try to increase --mem-fraction-static."


def test_a_window_pool_too_small_for_one_request_stops_the_start():
    big = model("1x(kv=8,head=64)+1x(kv=8,head=64,window=100000)", architectures=("GptOssForCausalLM",))
    result = plan(big, "0.5.23", max_total_tokens=1000)
    assert result.failure is not None
    assert result.failure.text.startswith("SWA pool (800 tokens) cannot hold even one request")


def test_a_user_reads_two_million_tokens_as_a_pool_not_a_limit():
    """K1-071: 2,086,558 / 256,000 = 8.15 full-length requests; 33 run at most."""
    result = plan(model("1x(kv=1,head=64)", train=256000), max_total_tokens=2086558, max_num_seqs=33, block_tokens=1)
    assert result.printed_tokens / result.deployment.max_model_len == pytest.approx(8.15, abs=0.005)
    assert (result.count_requests(256000), result.count_requests(100)) == (8, 33)


def test_releases_between_those_read_are_named():
    result = plan(model("1x(kv=1,head=64)"), "0.5.8")
    assert result.accuracy is Accuracy.MODELLED
    assert result.notes == ("SGLang 0.5.8 was not read; the rules of 0.5.6 are taken",)


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({}, 1),
        ({"attention_backend": "flashmla"}, 64),
        ({"attention_backend": "cutlass_mla"}, 128),
        ({"attention_backend": "trtllm_mha", "block_tokens": 32}, 32),
        ({"attention_backend": "trtllm_mla", "block_tokens": 16}, 64),
    ],
)
def test_backends_force_their_page_size(settings, pages):
    assert plan(model("1x(latent=512,rope=64)"), **settings).deployment.block_tokens == pages


@pytest.mark.parametrize(
    ("layers", "settings", "error", "words"),
    [
        ("1x(kv=1,head=64)", {"version": "0.3.0"}, UsageError, "known from 0.4.1 to 0.5.23"),
        ("1x(kv=1,head=64)", {"version": "0.6.0"}, UsageError, "known from 0.4.1 to 0.5.23"),
        ("1x(kv=1,head=64)", {"version": "newest"}, UsageError, "not a version of SGLang"),
        ("1x(kv=1,head=64)", {"mem_fraction": "0.9"}, UsageError, "did you mean `mem_fraction_static`"),
        ("1x(kv=1,head=64)", {"mem_fraction_static": "90"}, UsageError, "above 0 and at most 1"),
        ("1x(kv=1,head=64)", {"version": "0.4.1", "block_tokens": 16}, UsageError, "pages of one token"),
        ("1x(kv=1,head=64)", {"prefix_caching": True, "disable_radix_cache": "on"}, UsageError, "contradict"),
        ("1x(latent=512,rope=64,index=128)", {"version": "0.4.10"}, ModelError, "sparse-attention indexer"),
        ("1x(kv=1,head=64)+1x(state=100)", {"version": "0.4.10"}, ModelError, "recurrent states"),
        ("2x(state=100)", {}, ModelError, "no attention layers"),
        ("1x(kv=1,head=64)+1x(kv=1,head=64,cross=1500)", {}, ModelError, "encoder-decoder"),
    ],
)
def test_what_a_release_does_not_have_is_refused(layers, settings, error, words):
    with pytest.raises(error, match=words):
        plan(model(layers), **settings)


def test_layers_that_share_a_selection_have_no_index_keys_from_0_5_18():
    own = LatentCache(latent_size=512, rope_size=64, indexer=Indexer(key_size=128))
    reuse = LatentCache(latent_size=512, rope_size=64, indexer=Indexer(key_size=128, shares_with=0))
    older = plan(build([own, reuse]), "0.5.13", kv_dtype="fp8").ranks[0].unit_bytes["full"]
    newer = plan(build([own, reuse]), "0.5.18", kv_dtype="fp8").ranks[0].unit_bytes["full"]
    assert (older, newer) == (64 * 2 * 788, 64 * (788 + 656))


def test_states_are_caches():
    assert isinstance(bailing().layers[-1].cache, StateCache)


def test_states_may_get_more_memory_than_tokens():
    """The ratio is states over tokens: 3 gives them three quarters of the budget, 0.9 nine nineteenths."""
    states = find_model("qwen3.5-9b")

    def slots(ratio):
        return plan(states, version="0.5.23", mamba_full_memory_ratio=ratio).pool("mamba").units

    assert slots("3") == pytest.approx(slots("0.9") * (3 / 4) / (9 / 19), rel=0.02)
    for refused in ("0", "1001", "nan"):
        with pytest.raises(UsageError, match="mamba_full_memory_ratio"):
            slots(refused)
