"""Facts of a checkpoint: dtype, quantisation, declared KV dtype, longest sequence."""

import pytest

from kvledger.errors import ModelError
from kvledger.model import Dtype
from kvledger.model.reader import read_config
from tests.model.test_reader_known_models import llama


def read(**changes):
    quant_config = changes.pop("quant_config", None)
    config = llama(1, 64, 2, 2, **changes)
    return read_config({k: v for k, v in config.items() if v is not None}, quant_config=quant_config)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"torch_dtype": "float16"}, Dtype.FLOAT16),
        ({"torch_dtype": "float32"}, Dtype.FLOAT16),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, Dtype.BFLOAT16),
        ({"torch_dtype": "auto"}, Dtype.BFLOAT16),
        ({"torch_dtype": "float8_e4m3fn"}, Dtype.BFLOAT16),
        ({"torch_dtype": None}, Dtype.BFLOAT16),
    ],
)
def test_the_model_is_served_in_its_dtype_lowered_to_16_bits(changes, expected):
    assert read(**changes).dtype is expected


def test_an_assumed_dtype_says_so():
    assert "dtype = `bfloat16` from assumed: the config names no dtype" in read(torch_dtype=None).origins()


@pytest.mark.parametrize(
    ("quantization", "kv"),
    [
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "quant_method": "modelopt"}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "x", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8"),
        ({"quant_method": "x", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "fp8", "kv_cache_quant_algo": None, "kv_cache_scheme": None}, None),
    ],
)
def test_a_declared_kv_dtype_is_used_unless_another_is_asked_for(quantization, kv):
    spec = read(quantization_config=quantization)
    assert (spec.declared_kv_format.name if spec.declared_kv_format else None) == kv
    assert spec.storage().kv.name == (kv or "bfloat16")
    assert spec.storage("float16").kv.name == "float16"


def test_the_file_beside_the_config_may_declare_the_kv_dtype():
    spec = read(quant_config={"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})
    assert (spec.storage().kv.name, spec.quantisation.method) == ("fp8", "FP8")
    assert any("hf_quant_config.json" in line for line in spec.origins())


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "x", "kv_cache_quant_algo": "Q7"},
        {"quant_method": "x", "kv_cache_scheme": {"num_bits": 3, "type": "float"}},
        {"quant_method": "x", "kv_cache_scheme": {"num_bits": [], "type": {}}},
    ],
)
def test_a_kv_dtype_that_is_not_known_is_refused(quantization):
    with pytest.raises(ModelError, match="is not a KV dtype kvledger knows"):
        read(quantization_config=quantization)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "awq", "bits": 4}, 4.0),
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "unheard"}, None),
        ({"quant_method": "odd", "bits": 99}, None),
    ],
)
def test_weight_bits_are_known_where_the_config_says_them(quantization, bits):
    assert read(quantization_config=quantization).quantisation.weight_bits == bits


@pytest.mark.parametrize("changes", [{}, {"quantization_config": 3}, {"quant_config": {"quantization": 3}}])
def test_no_quantisation_is_none(changes):
    assert read(**changes).quantisation is None


@pytest.mark.parametrize(
    ("changes", "tokens", "source"),
    [
        ({"max_position_embeddings": 4096}, 4096, "max_position_embeddings"),
        ({"max_position_embeddings": 4096, "model_max_length": 2048}, 2048, "model_max_length"),
        ({"max_position_embeddings": None}, 2048, "class default of llama"),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}},
            16384,
            "max_position_embeddings = 4096, times rope_scaling.factor 4.0",
        ),
        (
            {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            131072,
            "max_position_embeddings",
        ),
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768},
            },
            131072,
            "rope_scaling.original_max_position_embeddings 32768, times factor 4.0 (yarn)",
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096},
            },
            131072,
            "rope_scaling.original_max_position_embeddings 4096, times factor 32.0 (yarn)",
        ),
        ({"max_position_embeddings": 64, "rope_scaling": {"factor": float("nan")}}, 64, "max_position_embeddings"),
        ({"max_position_embeddings": -5, "n_positions": 7}, 7, "n_positions"),
    ],
)
def test_the_longest_sequence_follows_the_position_fields(changes, tokens, source):
    length = read(**changes).max_model_len
    assert (length.tokens, length.source) == (tokens, source)


def test_a_config_without_positions_has_no_longest_sequence():
    config = {"model_type": "internlm", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
    assert read_config(config).max_model_len is None


def test_the_positions_of_gemma_3_are_scaled_already():
    config = llama(6, 64, 2, 2, "gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window=8)
    assert read_config(config).max_model_len.tokens == 131_072
