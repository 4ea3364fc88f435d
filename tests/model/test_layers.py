"""Layers: growth, fixed bytes and bytes at a length, for each kind of cache."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.model import (
    KV_FORMATS,
    AttentionCache,
    CompressedCache,
    CrossAttentionCache,
    Indexer,
    LatentCache,
    Layer,
    NoCache,
    SharedCache,
    Storage,
    Windows,
    heads_per_rank,
)
from kvledger.model.formats import FP8_INDEX
from kvledger.model.states import given as state_of

BF16 = Storage(kv=KV_FORMATS["bfloat16"])
FULL = Storage(kv=KV_FORMATS["bfloat16"], windows=Windows.FULL)


@pytest.mark.parametrize(("heads", "tp", "expected"), [(8, 1, 8), (8, 4, 2), (8, 16, 1), (1, 8, 1), (0, 4, 0)])
def test_kv_heads_are_split_while_they_last_then_replicated(heads, tp, expected):
    assert heads_per_rank(heads, tp) == expected


def test_full_attention_grows_by_keys_and_values():
    """8 heads x (128 + 128) x 2 bytes."""
    cache = AttentionCache(kv_heads=8, key_size=128, value_size=128)
    assert cache.growth(BF16) == cache.bytes_at(1, BF16) == 4096
    assert cache.fixed_bytes(BF16) == 0


def test_keys_and_values_may_differ_in_size():
    """4 heads x (192 + 128) x 2 bytes."""
    assert AttentionCache(kv_heads=4, key_size=192, value_size=128).token_bytes(BF16) == 2560


def test_a_rank_keeps_its_share_of_the_heads():
    cache = AttentionCache(kv_heads=8, key_size=128, value_size=128)
    assert cache.token_bytes(Storage(kv=KV_FORMATS["bfloat16"], tp=4)) == 1024


@pytest.mark.parametrize("limit", ["window_tokens", "chunk_tokens"])
def test_a_limited_layer_stops_growing_at_its_limit(limit):
    cache = AttentionCache(kv_heads=1, key_size=64, value_size=64, **{limit: 100})
    assert cache.growth(BF16) == 0
    assert cache.bytes_at(50, BF16) == 50 * 256
    assert cache.bytes_at(5000, BF16) == cache.fixed_bytes(BF16) == 100 * 256


def test_a_limited_layer_grows_for_ever_where_the_engine_ignores_the_limit():
    cache = AttentionCache(kv_heads=1, key_size=64, value_size=64, window_tokens=100)
    assert (cache.growth(FULL), cache.fixed_bytes(FULL), cache.bytes_at(5000, FULL)) == (256, 0, 5000 * 256)


def test_index_keys_are_added_once_whatever_the_tensor_parallelism():
    cache = AttentionCache(kv_heads=4, key_size=128, value_size=128, indexer=Indexer(key_size=128))
    assert cache.token_bytes(Storage(kv=KV_FORMATS["bfloat16"], tp=4)) == 512 + 132


def test_the_index_format_of_a_deployment_replaces_the_models_own():
    indexer = Indexer(key_size=128)
    assert indexer.key_format is FP8_INDEX
    assert indexer.token_bytes(Storage(kv=KV_FORMATS["fp8"], index=KV_FORMATS["bfloat16"])) == 256


def test_a_shared_indexer_keeps_nothing():
    assert Indexer(key_size=128, shares_with=2).token_bytes(BF16) == 0


def test_latent_attention_is_the_same_on_every_rank():
    """(512 + 64) x 2 bytes, replicated."""
    cache = LatentCache(latent_size=512, rope_size=64)
    assert cache.growth(BF16) == cache.growth(Storage(kv=KV_FORMATS["bfloat16"], tp=8)) == 1152
    assert (cache.bytes_at(10, BF16), cache.fixed_bytes(BF16)) == (11520, 0)


def test_a_sparse_latent_layer_adds_its_index_keys():
    """656 + 132, DeepSeek-V3.2 in fp8."""
    cache = LatentCache(latent_size=512, rope_size=64, indexer=Indexer(key_size=128))
    assert cache.token_bytes(Storage(kv=KV_FORMATS["fp8_ds_mla"])) == 788


def test_a_compressed_layer_grows_by_one_entry_in_ratio_tokens():
    """(584 + 132) / 4 and 584 / 128 bytes a token in fp8_ds_mla."""
    storage = Storage(kv=KV_FORMATS["fp8_ds_mla"])
    four = CompressedCache(ratio=4, head_size=512, rope_size=64, window_tokens=128, indexer=Indexer(key_size=128))
    many = CompressedCache(ratio=128, head_size=512, rope_size=64, window_tokens=128)
    assert four.growth(storage) == Fraction(716, 4)
    assert many.growth(storage) == Fraction(584, 128)


def test_a_compressed_layer_keeps_window_entries_and_compressor_inputs():
    """At 1,000 tokens: 128 window entries of 1,024 B, 7 entries, 128 inputs of 2 x 512 x 4 B."""
    cache = CompressedCache(ratio=128, head_size=512, rope_size=64, window_tokens=128)
    assert cache.bytes_at(1000, BF16) == 128 * 1024 + 7 * 1024 + 128 * 4096
    assert cache.fixed_bytes(BF16) == 128 * 1024 + 128 * 4096


def test_a_compressor_at_ratio_four_keeps_two_windows_of_double_width():
    """8 tokens of 2 x 2 x (512 + 128) x 4 B, the indexer's own compressor included."""
    cache = CompressedCache(ratio=4, head_size=512, rope_size=64, window_tokens=128, indexer=Indexer(key_size=128))
    assert cache.compressor_tokens * cache.compressor_token_bytes() == 8 * 10240


def test_a_compressed_layer_of_ratio_zero_is_a_window():
    cache = CompressedCache(ratio=0, head_size=512, rope_size=64, window_tokens=128)
    assert (cache.growth(BF16), cache.bytes_at(10**6, BF16), cache.fixed_bytes(BF16)) == (0, 131072, 131072)
    assert (cache.growth(FULL), cache.fixed_bytes(FULL)) == (1024, 0)


def test_cross_attention_is_computed_once():
    """20 heads x 128 elements x 2 bytes x 1,500 encoder tokens."""
    cache = CrossAttentionCache(kv_heads=20, key_size=64, value_size=64, encoder_tokens=1500)
    assert cache.growth(BF16) == 0
    assert cache.bytes_at(1, BF16) == cache.fixed_bytes(BF16) == 1500 * 5120


@pytest.mark.parametrize(
    "cache",
    [NoCache(reason="MLP"), SharedCache(shares_with=3, cache=AttentionCache(kv_heads=1, key_size=1, value_size=1))],
)
def test_shared_and_empty_layers_keep_nothing(cache):
    layer = Layer(index=0, cache=cache)
    assert (layer.growth(BF16), layer.bytes_at(9, BF16), layer.fixed_bytes(BF16)) == (0, 0, 0)


CACHES = st.one_of(
    st.builds(
        AttentionCache,
        kv_heads=st.integers(1, 64),
        key_size=st.integers(1, 512),
        value_size=st.integers(1, 512),
        window_tokens=st.none() | st.integers(1, 10_000),
    ),
    st.builds(LatentCache, latent_size=st.integers(1, 1024), rope_size=st.integers(0, 128)),
    st.builds(
        CompressedCache,
        ratio=st.sampled_from((0, 4, 128)),
        head_size=st.just(512),
        rope_size=st.just(64),
        window_tokens=st.integers(1, 1000),
    ),
    st.builds(state_of, st.integers(1, 10**9)),
)


@settings(deadline=None)
@given(CACHES, st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(Windows))
def test_a_longer_sequence_never_keeps_less(cache, one, two, windows):
    storage = Storage(kv=KV_FORMATS["bfloat16"], windows=windows)
    short, long = sorted((one, two))
    assert cache.bytes_at(short, storage) <= cache.bytes_at(long, storage)


@settings(deadline=None)
@given(CACHES, st.integers(0, 10**6), st.sampled_from(Windows))
def test_no_sequence_keeps_more_than_growth_and_fixed_bytes(cache, length, windows):
    storage = Storage(kv=KV_FORMATS["bfloat16"], windows=windows)
    assert cache.bytes_at(length, storage) <= cache.growth(storage) * length + cache.fixed_bytes(storage)


@settings(deadline=None)
@given(CACHES, st.integers(0, 10**6))
def test_dropping_what_is_outside_a_window_never_costs_more(cache, length):
    assert cache.bytes_at(length, BF16) <= cache.bytes_at(length, FULL)
