"""The reader against the sizes other tools get wrong: GiB of one sequence of 32,768 tokens, sums by hand."""

import pytest

from kvledger.model import KV_FORMATS, Dtype, NoCache, SharedCache, Storage, Windows
from kvledger.model.reader import read_config
from tests.model.test_reader_known_models import CAPPED, MLA, PLAIN, llama

GIB = 2**30
TOKENS = 32_768
V4_RATIOS = [0, 0, *([4, 128] * 20), 4]


def test_gpt_oss_20b_is_capped_by_its_windows():
    """12 x 2,048 B x 32,768 + 12 x 2,048 B x 128 = 0.7529 GiB."""
    spec = read_config(llama(24, 2880, 64, 8, "gpt_oss", head_dim=64, sliding_window=128))
    assert spec.sequence_bytes(TOKENS) == 12 * 2048 * (TOKENS + 128)


def test_gemma_3_27b_needs_2_906_gib():
    """10 x 8,192 B x 32,768 + 52 x 8,192 B x 1,024."""
    assert read_config(CAPPED["Gemma-3-27B"][0]).sequence_bytes(TOKENS) / GIB == pytest.approx(2.906, abs=5e-4)


def test_qwen3_5_27b_needs_2_gib_and_its_states():
    """16 x 4,096 B x 32,768 = 2 GiB, and 48 x 3,207,168 B = 0.1434 GiB."""
    spec = read_config(CAPPED["Qwen3.5-27B"][0])
    assert spec.sequence_bytes(TOKENS) == 2 * GIB + 48 * 3_207_168


def test_nemotron_h_56b_keeps_fp32_states_by_class_default():
    """10 x 4,096 B x 32,768 = 1.25 GiB, and 54 x (3 x (16,384 + 4,096) x 2 + 256 x 64 x 256 x 4) B = 0.85 GiB."""
    pattern = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"
    assert (len(pattern), pattern.count("M"), pattern.count("*")) == (118, 54, 10)
    spec = read_config(
        llama(
            118,
            8192,
            64,
            8,
            "nemotron_h",
            attention_head_dim=128,
            hybrid_override_pattern=pattern,
            mamba_num_heads=256,
            mamba_head_dim=64,
            ssm_state_size=256,
            n_groups=8,
        )
    )
    assert spec.sequence_bytes(TOKENS) == 10 * 4096 * TOKENS + 54 * (3 * 20_480 * 2 + 256 * 64 * 256 * 4)
    assert any("class default of nemotron_h" in line and "float32" in line for line in spec.origins())


def test_nemotron_super_49b_counts_only_the_layers_that_attend():
    """49 of 80 layers, 64 / 8 = 8 KV heads: 49 x 4,096 B x 32,768 = 6.125 GiB."""
    blocks = [
        {"attention": {"n_heads_in_group": None if i % 80 < 31 else 8, "no_op": i < 31}, "ffn": {"ffn_mult": 2.6}}
        for i in range(80)
    ]
    spec = read_config(llama(80, 8192, 64, None, "nemotron-nas", block_configs=blocks))
    assert spec.sequence_bytes(TOKENS) / GIB == 6.125
    assert sum(isinstance(layer.cache, NoCache) for layer in spec.layers) == 31


def test_mimo_v2_flash_has_two_kinds_of_heads():
    """9 x 4 x 320 x 2 B x 32,768 + 39 x 8 x 320 x 2 B x 128 = 0.727 GiB."""
    assert read_config(CAPPED["MiMo-V2-Flash"][0]).sequence_bytes(TOKENS) / GIB == pytest.approx(0.727, abs=5e-4)


def test_llama_4_scout_is_capped_by_its_chunks():
    """12 x 4,096 B x 32,768 + 36 x 4,096 B x 8,192 = 2.625 GiB; 6.0 where chunks are ignored."""
    spec = read_config(CAPPED["Llama-4-Scout"][0])
    assert spec.sequence_bytes(TOKENS) / GIB == 2.625
    assert spec.sequence_bytes(TOKENS, windows=Windows.FULL) / GIB == 6.0


def test_gemma_4_26b_keeps_equal_keys_and_values_twice():
    """5 x 2 x 512 x 2 x 2 B x 32,768 + 25 x 8 x 256 x 2 x 2 B x 1,024 = 0.8203 GiB."""
    spec = read_config(
        llama(
            30,
            2816,
            16,
            8,
            "gemma4_text",
            head_dim=256,
            sliding_window=1024,
            global_head_dim=512,
            num_global_key_value_heads=2,
            attention_k_eq_v=True,
        )
    )
    assert spec.sequence_bytes(TOKENS) / GIB == pytest.approx(0.8203, abs=5e-5)


def test_glm_5_2_has_21_indexers_for_78_layers():
    """78 x 1,152 B and 21 x 256 B in bf16: 2.906 GiB; with the engines' records of 132 B: 2.827 GiB."""
    spec = read_config(
        llama(
            78,
            6144,
            64,
            64,
            "glm_moe_dsa",
            index_head_dim=128,
            index_topk=2048,
            index_topk_freq=4,
            index_skip_topk_offset=3,
            **MLA,
        )
    )
    bf16 = Storage(kv=KV_FORMATS["bfloat16"], index=KV_FORMATS["bfloat16"])
    assert spec.sequence_bytes(TOKENS, bf16) == (78 * 1152 + 21 * 256) * TOKENS
    assert spec.sequence_bytes(TOKENS) == (78 * 1152 + 21 * 132) * TOKENS


def test_deepseek_v3_2_depends_on_how_index_keys_are_stored():
    """61 x (1,152 + 256) B = 2.621 GiB in bf16; 61 x (1,152 + 132) B = 2.390 GiB in the engines' records."""
    spec = read_config(PLAIN["DeepSeek-V3.2"][0])
    bf16 = Storage(kv=KV_FORMATS["bfloat16"], index=KV_FORMATS["bfloat16"])
    assert spec.sequence_bytes(TOKENS, bf16) / GIB == pytest.approx(2.621, abs=5e-4)
    assert spec.sequence_bytes(TOKENS) / GIB == pytest.approx(2.390, abs=5e-4)


def deepseek_v4():
    return read_config(
        llama(
            43,
            4096,
            64,
            1,
            "deepseek_v4",
            head_dim=512,
            qk_rope_head_dim=64,
            sliding_window=128,
            index_head_dim=128,
            compress_ratios=[*V4_RATIOS, 0],
            num_nextn_predict_layers=1,
        )
    )


def test_deepseek_v4_flash_keeps_windows_entries_index_keys_and_compressor_inputs():
    """In bf16: 43 x 128 x 1,024 B, 21 x 8,192 x (1,024 + 256) B, 20 x 256 x 1,024 B: 0.2152 GiB; compressors beside.

    Compressors: 21 x 8 x 10,240 B and 20 x 128 x 4,096 B, fp32.
    """
    spec = deepseek_v4()
    bf16 = Storage(kv=KV_FORMATS["bfloat16"], index=KV_FORMATS["bfloat16"])
    compressors = 21 * 8 * 10_240 + 20 * 128 * 4096
    assert (spec.sequence_bytes(TOKENS, bf16) - compressors) / GIB == pytest.approx(0.2152, abs=5e-5)


def test_deepseek_v4_flash_grows_by_a_fraction_of_a_byte():
    """In records of 584 and 132 B: 21 x 716 / 4 + 20 x 584 / 128 = 3,850.25 B a token."""
    spec = deepseek_v4()
    assert float(spec.growth("fp8_ds_mla")) == 3850.25
    assert spec.bytes_per_token("fp8_ds_mla") == 3851


def test_the_draft_layer_of_deepseek_v4_is_a_window_and_stays_apart():
    spec = deepseek_v4()
    assert len(spec.layers) == 43
    assert [layer.cache.ratio for layer in spec.draft_layers] == [0]
    assert spec.draft_bytes(TOKENS) == 128 * 1024


def test_nemotron_nano_9b_v2_in_bf16_states_is_what_vllm_computed():
    """27 x 2,695,168 B beside 4 x 4,096 B a token; block 672 in vLLM issue 24280 follows from it."""
    pattern = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
    spec = read_config(
        llama(
            56,
            4480,
            40,
            8,
            "nemotron_h",
            head_dim=128,
            hybrid_override_pattern=pattern,
            mamba_num_heads=128,
            mamba_head_dim=80,
            ssm_state_size=128,
            n_groups=8,
        )
    )
    storage = Storage(kv=KV_FORMATS["bfloat16"], state=Dtype.BFLOAT16)
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence(storage)) == (16_384, 27 * 2_695_168)


def test_layers_that_share_a_cache_name_the_layer_they_read():
    """Gemma-3n-E4B: of 35 layers the last full own layer is 19, the last sliding one 18."""
    spec = read_config(CAPPED["Gemma-3n-E4B"][0])
    shared = [layer.cache.shares_with for layer in spec.layers if isinstance(layer.cache, SharedCache)]
    assert (len(shared), set(shared)) == (15, {18, 19})
    assert len(spec.caching_layers()) == 20
