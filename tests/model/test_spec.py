"""The model: sums over layers, windows, storage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.model import KV_FORMATS, AttentionCache, Dtype, Layer, Length, ModelSpec, NoCache, Storage, Windows
from kvledger.model.catalogue import catalogue, find_model


def model(*caches, **more):
    layers = tuple(Layer(index=i, cache=cache) for i, cache in enumerate(caches))
    return ModelSpec(name="m", model_type="m", layers=layers, dtype=Dtype.BFLOAT16, **more)


FULL = AttentionCache(kv_heads=1, key_size=64, value_size=64)
SLIDING = AttentionCache(kv_heads=1, key_size=64, value_size=64, window_tokens=100)


def test_layers_are_summed():
    spec = model(FULL, FULL, SLIDING, NoCache())
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence()) == (512, 25_600)
    assert spec.layer_bytes(1000) == (256_000, 256_000, 25_600, 0)
    assert spec.sequence_bytes(1000) == 537_600


def test_windows_may_be_ignored_as_old_engines_do():
    assert model(FULL, SLIDING).bytes_per_token(windows=Windows.FULL) == 512


def test_a_window_no_shorter_than_the_longest_sequence_never_closes():
    spec = model(SLIDING, max_model_len=Length(tokens=100, source="test"))
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence()) == (256, 0)


def test_only_layers_that_keep_something_are_caching():
    assert [layer.index for layer in model(NoCache(), FULL, NoCache()).caching_layers()] == [1]


@pytest.mark.parametrize("kv", [None, "auto", " AUTO "])
def test_the_models_own_dtype_is_the_default(kv):
    assert model(FULL).storage(kv).kv.name == "bfloat16"


def test_a_storage_or_a_format_is_taken_as_it_is():
    storage = Storage(kv=KV_FORMATS["fp8"], tp=2)
    assert model(FULL).storage(storage) is storage
    assert model(FULL).storage(KV_FORMATS["nvfp4"]).kv.name == "nvfp4"


def test_windows_of_a_storage_hold_unless_others_are_asked_for():
    storage = Storage(kv=KV_FORMATS["bfloat16"], windows=Windows.FULL)
    assert model(SLIDING).bytes_per_token(storage) == 256
    assert model(SLIDING).bytes_per_token(storage, windows=Windows.CAPPED) == 0


@pytest.mark.parametrize("length", [-1, 2**40 + 1])
def test_a_length_out_of_bounds_is_refused(length):
    with pytest.raises(UsageError, match="cannot be sized"):
        model(FULL).sequence_bytes(length)
    with pytest.raises(UsageError, match="cannot be sized"):
        model(FULL).draft_bytes(length)


@settings(deadline=None)
@given(st.sampled_from(sorted(catalogue())), st.integers(0, 2_000_000))
def test_no_model_of_the_catalogue_keeps_more_than_its_growth_and_fixed_part(name, length):
    spec = find_model(name)
    assert spec.sequence_bytes(length) <= spec.growth() * length + spec.fixed_bytes_per_sequence()


@settings(deadline=None)
@given(st.sampled_from(sorted(catalogue())), st.integers(1, 100_000), st.sampled_from(["fp8", "q8_0", "nvfp4"]))
def test_a_smaller_kv_dtype_never_costs_more(name, length, dtype):
    spec = find_model(name)
    assert spec.sequence_bytes(length, dtype) <= spec.sequence_bytes(length, "bfloat16")
