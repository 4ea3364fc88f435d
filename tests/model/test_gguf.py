"""GGUF: headers made by hand, and the rules of llama.cpp checked against its own log lines."""

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import ModelError
from kvledger.model import Dtype, LatentCache, NoCache, SharedCache, StateCache, StateKind
from kvledger.model.gguf_header import read_gguf_header
from kvledger.model.gguf_reader import read_gguf
from tests.model.gguf_file import ARRAY, gguf_bytes, text

MIB = 2**20


def arch(name, **keys):
    metadata = {"general.architecture": name}
    for key, value in keys.items():
        metadata[f"{name}.{key.replace('__', '.')}"] = value
    return metadata


def llama(name="llama", **keys):
    defaults = {
        "block_count": 32,
        "embedding_length": 4096,
        "attention__head_count": 32,
        "attention__head_count_kv": 8,
        "context_length": 8192,
    }
    return arch(name, **(defaults | keys))


def read(metadata):
    return read_gguf(read_gguf_header(io.BytesIO(gguf_bytes(metadata))))


def test_a_header_is_read_key_by_key():
    metadata = {"a": 1, "b": 2.5, "c": True, "d": "x", "e": [1, 2], "f": ["long", "list"], "g": []}
    found = read_gguf_header(io.BytesIO(gguf_bytes(metadata)))
    assert found == {"a": 1, "b": 2.5, "c": True, "d": "x", "e": (1, 2), "g": ()}


def test_a_long_array_is_walked_over_and_not_kept():
    found = read_gguf_header(io.BytesIO(gguf_bytes({"tokens": [0] * 5000, "after": 1})))
    assert found == {"after": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not GGUF"),
        (b"GGML" + b"\0" * 40, "is not GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (b"GGUF" + struct.pack("<I", 3), "ends inside its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 10**9), "has 1000000000 keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**60), "a text of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 4, 2**60), "items, more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 9, 1), "items of the unknown"),
    ],
)
def test_a_damaged_header_is_refused(data, message):
    with pytest.raises(ModelError, match=message):
        read_gguf_header(io.BytesIO(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_keys_or_a_model_error(tail):
    try:
        found = read_gguf_header(io.BytesIO(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + tail))
    except ModelError:
        return
    assert len(found) <= 2


def test_llama_3_costs_what_llama_cpp_prints():
    """Mistral-7B shape at 4,096 cells: 512 MiB, K 256 and V 256."""
    spec = read(llama())
    assert spec.sequence_bytes(4096) == 512 * MIB
    assert (spec.dtype, spec.max_model_len.tokens, spec.query_heads) == (Dtype.FLOAT16, 8192, 32)


@pytest.mark.parametrize(("kv", "mib"), [("q8_0", 119), ("q4_0", 63), ("q4_1", 70), ("q5_0", 77), ("q5_1", 84)])
def test_quantised_keys_cost_what_llama_cpp_prints(kv, mib):
    """Llama-3.2-3B, 4,096 cells: one side of 28 layers of 8 x 128."""
    spec = read(llama(block_count=28, embedding_length=3072, attention__head_count=24))
    assert spec.sequence_bytes(4096, kv) == 2 * mib * MIB


def test_heads_that_the_file_does_not_split_are_those_of_the_queries():
    metadata = llama()
    del metadata["llama.attention.head_count_kv"]
    assert read(metadata).bytes_per_token() == 524_288


def test_key_and_value_lengths_may_be_explicit():
    """DeepSeek-V2-Lite without MLA tensors: 27 x 16 x (192 + 128) x 2 = 276,480 B; 4320 MiB at 16,384 cells."""
    spec = read(
        llama(
            "deepseek2",
            block_count=27,
            attention__head_count=16,
            attention__head_count_kv=16,
            attention__key_length=192,
            attention__value_length=128,
            attention__kv_lora_rank=512,
        )
    )
    assert spec.sequence_bytes(16_384) == 4320 * MIB


def test_mla_tensors_are_cached_as_one_latent_vector():
    """Ling-3.0-tiny shape: 6 layers of 576, 4,096 cells, two streams, 54 MiB; V is 0."""
    spec = read(
        llama(
            "deepseek2",
            block_count=6,
            attention__head_count=16,
            attention__head_count_kv=1,
            attention__key_length=576,
            attention__value_length=512,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
            attention__kv_lora_rank=512,
            rope__dimension_count=64,
        )
    )
    assert spec.layers[0].cache == LatentCache(latent_size=512, rope_size=64)
    assert 2 * spec.sequence_bytes(4096) == 54 * MIB


def test_gpt_oss_slides_in_every_other_layer():
    """20b at 8,192 cells in q8_0: 102 MiB full, and 3.1875 MiB for 256 sliding cells of 12 layers."""
    spec = read(
        llama(
            "gpt-oss",
            block_count=24,
            attention__head_count=64,
            attention__key_length=64,
            attention__value_length=64,
            attention__sliding_window=256,
        )
    )
    full = [layer for layer in spec.layers if layer.cache.window_tokens is None]
    storage = spec.storage("q8_0")
    assert sum(layer.bytes_at(8192, storage) for layer in full) == 102 * MIB
    assert spec.fixed_bytes_per_sequence("q8_0") == 3.1875 * MIB


def test_gemma_4_shares_layers_and_has_two_head_sizes():
    """E4B at 16,384: 4 own full layers of 2 x 512, 512 MiB at 32,768 cells; 20 sliding ones, 40 MiB at 1,024 cells."""
    pattern = [True, True, True, True, True, False] * 7
    spec = read(
        llama(
            "gemma4",
            block_count=42,
            attention__head_count=8,
            attention__head_count_kv=2,
            attention__key_length=512,
            attention__value_length=512,
            attention__key_length_swa=256,
            attention__value_length_swa=256,
            attention__sliding_window=1024,
            attention__sliding_window_pattern=pattern,
            attention__shared_kv_layers=18,
        )
    )
    assert spec.bytes_per_token() * 32_768 == 512 * MIB
    assert spec.fixed_bytes_per_sequence() == 40 * MIB
    assert spec.layers[35].cache.shares_with == 23
    assert sum(isinstance(layer.cache, SharedCache) for layer in spec.layers) == 18


def qwen35(**keys):
    defaults = {
        "block_count": 64,
        "embedding_length": 5120,
        "attention__head_count": 24,
        "attention__head_count_kv": 4,
        "attention__key_length": 256,
        "attention__value_length": 256,
        "full_attention_interval": 4,
        "ssm__conv_kernel": 4,
        "ssm__state_size": 128,
        "ssm__group_count": 16,
        "ssm__inner_size": 6144,
        "ssm__time_step_rank": 48,
    }
    return arch("qwen35", **(defaults | keys))


def test_qwen3_5_keeps_states_in_f32():
    """27B: 1,536 MiB at 24,576 cells, S 144 MiB and R 5.625 MiB for one sequence."""
    spec = read(qwen35())
    assert spec.bytes_per_token() * 24_576 == 1536 * MIB
    assert spec.fixed_bytes_per_sequence() == 149.625 * MIB
    assert spec.layers[0].cache.kind is StateKind.GDN


def test_next_token_blocks_get_no_row_in_the_main_context():
    """16 attention layers of 64, not 17."""
    spec = read(qwen35(block_count=65, nextn_predict_layers=1))
    assert spec.bytes_per_token() * 32_768 == 2048 * MIB
    assert [layer.index for layer in spec.draft_layers] == [64]


def test_nemotron_blocks_without_heads_and_feed_forward_are_recurrent():
    spec = read(
        llama(
            "nemotron_h",
            block_count=3,
            attention__head_count=[0, 0, 32],
            attention__head_count_kv=[0, 0, 8],
            feed_forward_length=[0, 100, 0],
            attention__key_length=128,
            ssm__conv_kernel=4,
            ssm__state_size=128,
            ssm__group_count=8,
            ssm__inner_size=1024,
        )
    )
    assert [type(layer.cache) for layer in spec.layers[:2]] == [StateCache, NoCache]
    assert spec.bytes_per_token() == 4096


@pytest.mark.parametrize(("name", "kind"), [("jamba", StateKind.MAMBA1), ("granitehybrid", StateKind.MAMBA2)])
def test_blocks_without_kv_heads_are_recurrent(name, kind):
    metadata = llama(name, block_count=2, attention__head_count_kv=[0, 8])
    state = arch(name, ssm__conv_kernel=4, ssm__state_size=16, ssm__inner_size=64)
    assert read(metadata | state).layers[0].cache.kind is kind


def test_lfm2_blocks_without_kv_heads_are_convolutions():
    """(3 - 1) x 4096 x 4 bytes."""
    spec = read(llama("lfm2", block_count=2, attention__head_count_kv=[0, 8], shortconv__l_cache=3))
    assert spec.layer_bytes(1) == (32_768, 4096)


def test_kimi_linear_blocks_keep_delta_states():
    """3 x 3 x 32 x 128 x 4 and 32 x 128 x 128 x 4 bytes."""
    keys = {"kda__head_dim": 128, "ssm__conv_kernel": 4}
    spec = read(llama("kimi-linear", block_count=2, attention__head_count_kv=[0, 8], **keys))
    assert spec.layer_bytes(1)[0] == 3 * 3 * 32 * 128 * 4 + 32 * 128 * 128 * 4


def test_mamba_keeps_only_states():
    spec = read(arch("mamba", block_count=2, ssm__conv_kernel=4, ssm__state_size=16, ssm__inner_size=64))
    assert (spec.bytes_per_token(), spec.layer_bytes(9)) == (0, (3 * 64 * 4 + 16 * 64 * 4,) * 2)


def test_falcon_h1_keeps_both_in_each_block():
    keys = {"ssm__conv_kernel": 4, "ssm__state_size": 16, "ssm__inner_size": 64}
    assert [layer.index for layer in read(llama("falcon-h1", block_count=2, **keys)).layers] == [0, 0, 1, 1]


def test_llama_cpp_ignores_the_window_of_mistral():
    assert read(llama(attention__sliding_window=4096)).bytes_per_token() == 131_072


def test_a_window_pattern_may_be_a_period():
    spec = read(llama("cohere2", block_count=4, attention__sliding_window=8, attention__sliding_window_pattern=2))
    assert [layer.cache.window_tokens for layer in spec.layers] == [8, None, 8, None]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "general.architecture"),
        (llama("odd", attention__sliding_window=8), "has no known pattern"),
        (llama(block_count=2, attention__head_count_kv=[1]), "does not describe 2 blocks"),
        (
            llama("gemma3", attention__sliding_window=8, attention__sliding_window_pattern=[True]),
            "does not describe 32",
        ),
        (llama(block_count=2, attention__head_count_kv=[0, 8]), "ssm.state_size"),
        (llama(wkv__head_size=64), "`llama.wkv.head_size`"),
        (llama("deepseek32", attention__indexer__key_length=128), "attention.indexer.key_length"),
        (llama(block_count=10**6), "is outside 1 to 4096"),
        (arch("llama", block_count=2), "attention.head_count"),
        (
            llama(
                "gemma4",
                block_count=2,
                attention__sliding_window=4,
                attention__sliding_window_pattern=[True, False],
                attention__shared_kv_layers=1,
            ),
            "no earlier block of its kind",
        ),
        (
            llama(
                "deepseek2", attention__kv_lora_rank=512, attention__key_length_mla=192, attention__shared_kv_layers=1
            ),
            "rope.dimension_count",
        ),
        (qwen35(attention__shared_kv_layers=2), "which is not attention"),
    ],
)
def test_what_is_not_understood_is_refused(metadata, message):
    with pytest.raises(ModelError, match=message):
        read(metadata)


def test_a_model_is_called_by_its_name_or_architecture():
    assert read(llama() | {"general.name": "My model"}).name == "My model"
    assert read(llama()).name == "llama"
