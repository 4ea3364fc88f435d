"""Configs from outside: wrong types, absurd sizes and deep nesting end in a clear error, quickly."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import ModelError
from kvledger.model import reader
from kvledger.model.reader import parse_config, read_config
from tests.model.test_reader_known_models import CAPPED, PLAIN, llama


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers` = 1000000000 is outside 1 to 4096"),
        ({"num_hidden_layers": -1}, "is outside 1 to 4096"),
        ({"num_hidden_layers": "32"}, "is not an integer"),
        ({"num_hidden_layers": 32.5}, "is not an integer"),
        ({"num_hidden_layers": True}, "is not an integer"),
        ({"num_hidden_layers": float("nan")}, "is not an integer"),
        ({"num_hidden_layers": float("inf")}, "is not an integer"),
        ({"num_hidden_layers": [32]}, "is not an integer"),
        ({"num_key_value_heads": -8}, "is outside 1 to 65536"),
        ({"num_key_value_heads": 10**5000}, "a number of 16610 bits"),
        ({"head_dim": 10**12}, "is outside 0 to 65536"),
        ({"num_attention_heads": 0}, "is outside 1 to 65536"),
        ({"layer_types": "full"}, "is not a list of texts"),
        ({"layer_types": [1, 2]}, "is not a list of texts"),
        ({"layer_types": ["full_attention"] * 5000}, "lists 5,000 layers"),
        ({"per_layer_config": 3}, "is not an object"),
        ({"torch_dtype": "float7"}, "is not a dtype kvledger knows"),
    ],
)
def test_an_unusable_value_is_refused_with_its_field(changes, message):
    with pytest.raises(ModelError) as caught:
        read_config(llama(32, 4096, 32, 8, **changes))
    assert message in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("qwen2", {"use_sliding_window": "yes"}, "is neither true nor false"),
        ("jamba", {"mamba_expand": float("nan"), "layers_block_type": ["mamba"] * 32}, "is not a finite number"),
        ("nemotron-nas", {"block_configs": [1] * 32}, "is not a list of objects"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": ["a"]}, "is not a list of integers"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [-1]}, "is not a list of integers"),
    ],
)
def test_an_unusable_value_of_one_family_is_refused_with_its_field(model_type, changes, message):
    with pytest.raises(ModelError) as caught:
        read_config(llama(32, 4096, 32, 8, model_type, **changes))
    assert message in caught.value.message


def test_whole_floats_are_integers():
    assert read_config(llama(32.0, 4096, 32, 8)).block_count == 32


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"", "is not JSON"),
    ],
)
def test_data_that_is_no_config_is_refused(data, message):
    with pytest.raises(ModelError, match=message):
        parse_config(data)


def test_a_config_that_is_too_large_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(reader, "MAX_CONFIG_BYTES", 10)
    with pytest.raises(ModelError, match="more than the 10 that are read"):
        parse_config(b"{" * 11)


def test_infinity_in_a_field_that_does_not_matter_is_read():
    config = llama(2, 64, 2, 2, time_step_limit=[0.0, float("inf")])
    assert read_config(parse_config(json.dumps(config))).block_count == 2


def test_a_deeply_nested_field_is_searched_to_a_bounded_depth():
    nested: dict = {"window": 3}
    for _ in range(500):
        nested = {"inner": nested}
    assert read_config(llama(2, 64, 2, 2, extra=nested)).block_count == 2


@pytest.mark.parametrize("where", ["decoder", "section"])
def test_a_config_of_endless_fields_is_refused(where):
    fields = {f"note_{i}": i for i in range(10_001)}
    config = llama(2, 64, 2, 2, **(fields if where == "decoder" else {"notes": fields}))
    with pytest.raises(ModelError, match="fields, more than 10000"):
        read_config(config)


@pytest.mark.parametrize(
    "name", ["Gemma-3-27B", "Qwen3.5-27B", "Nemotron-3-Nano-30B", "Llama-3.1-405B", "DeepSeek-V3.2"]
)
def test_a_config_is_read_in_a_tenth_of_a_second(name):
    config = (CAPPED | PLAIN)[name][0]
    spent = []
    for _ in range(5):
        start = time.perf_counter()
        read_config(config)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FAMILIES = st.sampled_from([config for config, *_ in (PLAIN | CAPPED).values()])


@settings(max_examples=300, deadline=None)
@given(FAMILIES, st.data())
def test_any_value_in_any_field_gives_an_answer_or_a_model_error(config, data):
    field = data.draw(st.sampled_from(sorted(set(config) | {"layer_types", "text_config", "quantization_config"})))
    changed = config | {field: data.draw(JSON)}
    try:
        spec = read_config(changed)
    except ModelError:
        return
    assert spec.sequence_bytes(1000) >= 0
