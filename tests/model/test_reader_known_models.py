"""The reader against models whose bytes engines have printed, or that were worked out by hand.

Each row: the config fields that decide, the growth a token (bf16 or fp16, whole model), and the bytes a long sequence
keeps beside it. The arithmetic is written out: 2 sides x layers x KV heads x head size x 2 bytes, and so on.
"""

import pytest

from kvledger.model import Dtype, Storage, Windows, find_kv_format
from kvledger.model.reader import read_config


def llama(layers, hidden, heads, kv, model_type="llama", **more):
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "torch_dtype": "bfloat16",
        **more,
    }


MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
DELTA = {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "head_dim": 256,
}
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
GRANITE = ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)]
NEMOTRON_3 = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
MIMO = [0, 1, 1, 1, 1, 0] + [1, 1, 1, 1, 1, 0] * 7

PLAIN = {
    "Llama-2-7B": (llama(32, 4096, 32, 32), 2 * 32 * 32 * 128 * 2),
    "Llama-3.1-8B": (llama(32, 4096, 32, 8), 2 * 32 * 8 * 128 * 2),
    "Llama-3.2-1B": (llama(16, 2048, 32, 8, head_dim=64), 2 * 16 * 8 * 64 * 2),
    "Llama-3.2-3B": (llama(28, 3072, 24, 8), 2 * 28 * 8 * 128 * 2),
    "Llama-3.1-70B": (llama(80, 8192, 64, 8), 2 * 80 * 8 * 128 * 2),
    "Llama-3.1-405B": (llama(126, 16384, 128, 8), 2 * 126 * 8 * 128 * 2),
    "TinyLlama-1.1B": (llama(22, 2048, 32, 4), 2 * 22 * 4 * 64 * 2),
    "Mistral-Nemo-12B": (
        llama(40, 5120, 32, 8, "mistral", head_dim=128, sliding_window=None),
        2 * 40 * 8 * 128 * 2,  # not hidden / heads = 160
    ),
    "Mixtral-8x7B": (llama(32, 4096, 32, 8, "mixtral"), 2 * 32 * 8 * 128 * 2),
    "Qwen2.5-0.5B": (
        llama(24, 896, 14, 2, "qwen2", use_sliding_window=False, sliding_window=32768),
        2 * 24 * 2 * 64 * 2,
    ),
    "Qwen2.5-1.5B": (llama(28, 1536, 12, 2, "qwen2"), 2 * 28 * 2 * 128 * 2),
    "Qwen2.5-7B": (llama(28, 3584, 28, 4, "qwen2"), 2 * 28 * 4 * 128 * 2),
    "Qwen3-32B": (llama(64, 5120, 64, 8, "qwen3", head_dim=128), 2 * 64 * 8 * 128 * 2),
    "Qwen3-0.6B": (llama(28, 1024, 16, 8, "qwen3", head_dim=128), 2 * 28 * 8 * 128 * 2),
    "Qwen3-30B-A3B": (llama(48, 2048, 32, 4, "qwen3_moe", head_dim=128), 2 * 48 * 4 * 128 * 2),
    "Qwen3-235B-A22B": (llama(94, 4096, 64, 4, "qwen3_moe", head_dim=128), 2 * 94 * 4 * 128 * 2),
    "Phi-4": (llama(40, 5120, 40, 10, "phi3", sliding_window=None), 2 * 40 * 10 * 128 * 2),
    "Phi-3-mini-128k": (
        # the window is no shorter than the longest sequence, so it never closes
        llama(32, 3072, 32, 32, "phi3", sliding_window=262144, max_position_embeddings=131072),
        2 * 32 * 32 * 96 * 2,
    ),
    "Falcon-7B": (
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71},
        2 * 32 * 1 * 64 * 2,  # multi_query is the class default
    ),
    "Falcon-40B": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 60,
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
        },
        2 * 60 * 8 * 64 * 2,
    ),
    "Command-R": (llama(40, 8192, 64, 64, "cohere"), 2 * 40 * 64 * 128 * 2),
    "GLM-4.5": (llama(92, 5120, 96, 8, "glm4_moe", head_dim=128), 2 * 92 * 8 * 128 * 2),
    "MiniMax-M2": (llama(62, 3072, 48, 8, "minimax_m2", head_dim=128), 2 * 62 * 8 * 128 * 2),
    "OPT-13B": (
        {"model_type": "opt", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40},
        2 * 40 * 5120 * 2,
    ),
    "DeepSeek-V2-Lite": (llama(27, 2048, 16, 16, "deepseek_v2", **MLA), 27 * (512 + 64) * 2),
    "DeepSeek-V3": (llama(61, 7168, 128, 128, "deepseek_v3", **MLA), 61 * (512 + 64) * 2),
    "Mistral-Small-4-119B": (
        llama(36, 4096, 32, 32, "mistral4", kv_lora_rank=256, qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=128),
        36 * (256 + 64) * 2,
    ),
    "DeepSeek-V3.2": (
        llama(61, 7168, 128, 128, "deepseek_v32", index_head_dim=128, index_n_heads=64, **MLA),
        61 * ((512 + 64) * 2 + 132),
    ),
}

CAPPED = {
    "Mistral-7B-v0.1": (llama(32, 4096, 32, 8, "mistral"), 0, 4096 * 131_072),  # the window is the class default
    "starcoder2-3b": (
        llama(30, 3072, 24, 2, "starcoder2", sliding_window=4096, max_position_embeddings=16384),
        0,
        4096 * 30_720,
    ),
    "Gemma-2-9B": (
        llama(42, 3584, 16, 8, "gemma2", head_dim=256, sliding_window=4096),
        21 * 2 * 8 * 256 * 2,
        21 * 4096 * 8192,
    ),
    "Gemma-2-27B": (
        llama(46, 4608, 32, 16, "gemma2", head_dim=128, sliding_window=4096),
        23 * 2 * 16 * 128 * 2,
        23 * 4096 * 8192,
    ),
    "Gemma-3-27B": (
        llama(62, 5376, 32, 16, "gemma3_text", head_dim=128, sliding_window=1024),
        10 * 2 * 16 * 128 * 2,
        52 * 1024 * 8192,
    ),
    "Gemma-3-4B": (
        llama(34, 2560, 8, 4, "gemma3_text", head_dim=256, sliding_window=1024),
        5 * 2 * 4 * 256 * 2,
        29 * 1024 * 4096,
    ),
    "Gemma-3-1B": (
        llama(26, 1152, 4, 1, "gemma3_text", head_dim=256, sliding_window=512),
        4 * 2 * 1 * 256 * 2,
        22 * 512 * 1024,
    ),
    "Gemma-3n-E4B": (
        # the last 15 of 35 layers read earlier ones: 20 cached, 4 of them full
        llama(35, 2048, 8, 2, "gemma3n_text", head_dim=256, sliding_window=512, num_kv_shared_layers=15),
        4 * 2 * 2 * 256 * 2,
        16 * 512 * 2048,
    ),
    "Gemma-4-31B": (
        llama(
            60,
            5376,
            32,
            16,
            "gemma4_text",
            head_dim=256,
            sliding_window=1024,
            global_head_dim=512,
            num_global_key_value_heads=4,
            attention_k_eq_v=True,
        ),
        10 * 2 * 4 * 512 * 2,
        50 * 1024 * 2 * 16 * 256 * 2,
    ),
    "Gemma-4-E4B": (
        # 42 layers, the last 18 shared: 24 cached, 4 of them full with heads of 512
        llama(42, 2560, 8, 2, "gemma4_text", head_dim=256, sliding_window=512, num_kv_shared_layers=18),
        4 * 2 * 2 * 512 * 2,
        20 * 512 * 2 * 2 * 256 * 2,
    ),
    "gpt-oss-120b": (
        llama(36, 2880, 64, 8, "gpt_oss", head_dim=64, sliding_window=128),
        18 * 2 * 8 * 64 * 2,
        18 * 128 * 2048,
    ),
    "Command-R7B": (
        llama(32, 4096, 32, 8, "cohere2", head_dim=128, sliding_window=4096, sliding_window_pattern=4),
        8 * 2 * 8 * 128 * 2,
        24 * 4096 * 4096,
    ),
    "Llama-4-Scout": (
        llama(48, 5120, 40, 8, "llama4_text", head_dim=128, attention_chunk_size=8192),
        12 * 2 * 8 * 128 * 2,
        36 * 8192 * 4096,
    ),
    "MiMo-V2-Flash": (
        llama(
            48,
            4096,
            64,
            4,
            "mimo_v2_flash",
            head_dim=192,
            v_head_dim=128,
            swa_head_dim=192,
            swa_v_head_dim=128,
            swa_num_key_value_heads=8,
            sliding_window=128,
            hybrid_layer_pattern=MIMO,
        ),
        9 * 4 * (192 + 128) * 2,
        39 * 128 * 8 * (192 + 128) * 2,
    ),
    "Qwen3-Next-80B": (
        llama(48, 2048, 16, 2, "qwen3_next", linear_num_value_heads=32, **DELTA),
        12 * 2 * 2 * 256 * 2,
        36 * (3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 2),
    ),
    "Qwen3.5-27B": (
        llama(64, 5120, 24, 4, "qwen3_5_text", linear_num_value_heads=48, mamba_ssm_dtype="float32", **DELTA),
        16 * 2 * 4 * 256 * 2,
        48 * (3 * (2 * 16 * 128 + 48 * 128) * 2 + 48 * 128 * 128 * 4),
    ),
    "Qwen3.5-9B": (
        llama(32, 4096, 16, 4, "qwen3_5_text", linear_num_value_heads=32, mamba_ssm_dtype="float32", **DELTA),
        8 * 2 * 4 * 256 * 2,
        24 * 2_146_304,
    ),
    "Nemotron-3-Nano-30B": (
        llama(
            52,
            2688,
            32,
            2,
            "nemotron_h",
            head_dim=128,
            hybrid_override_pattern=NEMOTRON_3,
            mamba_num_heads=64,
            mamba_head_dim=64,
            ssm_state_size=128,
            n_groups=8,
            conv_kernel=4,
            mamba_ssm_cache_dtype="float32",
        ),
        6 * 2 * 2 * 128 * 2,
        23 * (3 * (64 * 64 + 2 * 8 * 128) * 2 + 64 * 64 * 128 * 4),
    ),
    "Granite-4.0-H-Small": (
        llama(
            40,
            4096,
            32,
            8,
            "granitemoehybrid",
            layer_types=GRANITE,
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
        ),
        4 * 2 * 8 * 128 * 2,
        36 * (3 * (128 * 64 + 2 * 128) * 2 + 128 * 64 * 128 * 2),
    ),
    "Jamba-v0.1": (
        llama(32, 4096, 32, 8, "jamba", attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4),
        4 * 2 * 8 * 128 * 2,
        28 * 311_296,
    ),
    "Kimi-Linear-48B": (
        llama(
            27,
            2304,
            32,
            32,
            "kimi_linear",
            linear_attn_config={
                "full_attn_layers": KIMI_FULL,
                "kda_layers": [i for i in range(1, 28) if i not in KIMI_FULL],
                "num_heads": 32,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            },
            **MLA,
        ),
        7 * (512 + 64) * 2,
        20 * (3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4),
    ),
    "Whisper-large-v3": (
        {
            "model_type": "whisper",
            "d_model": 1280,
            "decoder_layers": 32,
            "decoder_attention_heads": 20,
            "torch_dtype": "float16",
        },
        2 * 32 * 20 * 64 * 2,
        1500 * 163_840,
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_token_costs_what_the_arithmetic_says(name):
    config, expected = PLAIN[name]
    spec = read_config(config)
    assert spec.bytes_per_token() == expected
    assert spec.fixed_bytes_per_sequence() == 0


@pytest.mark.parametrize("name", CAPPED)
def test_growth_and_fixed_part_follow_from_the_fields(name):
    config, growth, fixed = CAPPED[name]
    spec = read_config(config)
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence()) == (growth, fixed)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Gemma-2-9B", 344_064),
        ("Gemma-2-27B", 376_832),
        ("Gemma-3-27B", 507_904),
        ("Gemma-3-4B", 139_264),
        ("Gemma-3-1B", 26_624),
        ("gpt-oss-120b", 73_728),
        ("Command-R7B", 131_072),
        ("Llama-4-Scout", 196_608),
        ("starcoder2-3b", 30_720),
        ("Mistral-7B-v0.1", 131_072),
    ],
)
def test_an_engine_without_windows_pays_for_every_layer(name, expected):
    config = (CAPPED | PLAIN)[name][0]
    assert read_config(config).bytes_per_token(windows=Windows.FULL) == expected


def test_fp8_halves_the_cache_of_llama_3():
    assert read_config(PLAIN["Llama-3.1-8B"][0]).bytes_per_token("fp8_e4m3") == 65_536


def test_deepseek_v3_in_fp8_costs_what_tensorrt_llm_prints():
    assert read_config(PLAIN["DeepSeek-V3"][0]).bytes_per_token("fp8") == 35_136


def test_deepseek_v3_2_in_packed_records_costs_what_sglang_allocates():
    """61 x (656 + 132), SGLang PR 11309."""
    assert read_config(PLAIN["DeepSeek-V3.2"][0]).bytes_per_token("fp8_ds_mla") == 48_068


def test_an_engine_that_expands_mla_keeps_full_heads():
    """DeepSeek-V2-Lite in llama.cpp with an old file: 27 x 16 x (128 + 64 + 128) x 2 = 276,480."""
    spec = read_config(PLAIN["DeepSeek-V2-Lite"][0])
    storage = spec.storage()
    assert sum(layer.cache.expanded.token_bytes(storage) for layer in spec.layers) == 276_480


def test_a_tensor_parallel_rank_of_qwen3_235b_keeps_a_quarter():
    """94 x 1 head x 2 x 128 x 2, vLLM issue 21348."""
    spec = read_config(PLAIN["Qwen3-235B-A22B"][0])
    assert spec.bytes_per_token(Storage(kv=find_kv_format("bfloat16"), tp=4)) == 48_128


def test_a_state_may_be_stored_in_16_bits():
    """Nemotron-3-Nano: 23 x (36,864 + 1,048,576) instead of 2,097,152 for each state."""
    spec = read_config(CAPPED["Nemotron-3-Nano-30B"][0])
    storage = Storage(kv=find_kv_format("bfloat16"), state=Dtype.BFLOAT16)
    assert spec.fixed_bytes_per_sequence(storage) == 23 * (36_864 + 1_048_576)
