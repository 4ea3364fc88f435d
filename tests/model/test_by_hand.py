"""Layers stated by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.model import CrossAttentionCache, Role
from kvledger.model.by_hand import parse_layers, read_layers
from kvledger.model.catalogue import find_model


@pytest.mark.parametrize(
    ("text", "growth", "fixed"),
    [
        ("32x(kv=8,head=128)", 131_072, 0),
        ("10x(kv=16,head=128)+52x(kv=16,head=128,window=1024)", 81_920, 52 * 1024 * 8192),
        ("12x(kv=8,head=128)+36x(kv=8,head=128,chunk=8192)", 49_152, 36 * 8192 * 4096),
        ("9x(kv=4,key=192,value=128)", 23_040, 0),
        ("61x(latent=512,rope=64)", 70_272, 0),
        ("61x(latent=512,rope=64,index=128)", 78_324, 0),
        ("(latent=512)", 1024, 0),
        ("57 * (kv=4, head=128, index=128)", 57 * (2048 + 132), 0),
        ("36x(state=2147840) + 4x(kv=8,head=128) + 3x(none)", 16_384, 77_322_240),
        ("(kv=20,head=64) + (kv=20,head=64,cross=1500)", 5120, 7_680_000),
        ("(kv=2,key=64,value=32,cross=10)", 0, 2 * 96 * 2 * 10),
    ],
)
def test_groups_of_layers_are_read(text, growth, fixed):
    spec = read_layers(text)
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence()) == (growth, fixed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a group of layers"),
        ("32x", "is not a group of layers"),
        ("x(kv=1,head=2)", "is not a group of layers"),
        ("(kv=1,head=2)(kv=1,head=2)", "is not a group of layers"),
        ("0x(none)", "makes 0 layers"),
        ("5000x(none)", "makes 5,000 layers"),
        ("4096x(none)+(none)", "makes 4,097 layers"),
        ("()", "is not understood"),
        ("(kv=8,kv=8)", "is not understood"),
        ("(kv)", "is not understood"),
        ("(none=3)", "is not understood"),
        ("(kv=8,head=-1)", "is not understood"),
        ("(heads=8)", "`heads` in `(heads=8)` is not a word of layers"),
        ("(kv=0,head=1)", "is outside 1 to 65536"),
        ("(kv=8,head=99999)", "is outside 1 to 65536"),
        ("(kv=8)", "is not a cache kvledger knows"),
        ("(kv=8,key=3)", "is not a cache kvledger knows"),
        ("(kv=8,head=2,window=3,chunk=4)", "is not a cache kvledger knows"),
        ("(kv=8,head=2,latent=4)", "is not a cache kvledger knows"),
        ("(none,kv=8)", "is not a cache kvledger knows"),
        ("(state=8,kv=8)", "is not a cache kvledger knows"),
        ("(kv=8,head=2,rope=4)", "is not a cache kvledger knows"),
        ("(kv=8,head=2)" * 2000, "more than 10000"),
    ],
)
def test_what_is_not_understood_is_refused_with_examples(text, message):
    with pytest.raises(UsageError) as caught:
        parse_layers(text)
    assert message in caught.value.message
    assert "32x(kv=8,head=128)" in (caught.value.hint or "")


def test_cross_attention_has_its_own_role():
    (layer,) = parse_layers("(kv=1,head=1,cross=3)")
    assert isinstance(layer.cache, CrossAttentionCache)
    assert layer.role is Role.CROSS


def test_dtype_and_longest_sequence_may_be_stated():
    spec = read_layers("(kv=1,head=64)", dtype="float32", max_model_len=4096)
    assert (spec.dtype.value, spec.max_model_len.tokens) == ("float16", 4096)
    assert read_layers("(kv=1,head=64)").max_model_len is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama-3-8b", "32x(kv=8,head=128)"),
        ("gemma-3-27b", "10x(kv=16,head=128)+52x(kv=16,head=128,window=1024)"),
        ("deepseek-v3", "61x(latent=512,rope=64)"),
        ("granite-4.0-h-small", "4x(kv=8,head=128)+36x(state=2147840)"),
    ],
)
def test_a_model_stated_by_hand_costs_what_its_config_costs(name, text):
    known, stated = find_model(name), read_layers(text)
    assert stated.sequence_bytes(50_000) == known.sequence_bytes(50_000)


@settings(deadline=None)
@given(st.text(alphabet="0123456789x*()+=, kvheadnoestrcilpuwm", max_size=60))
def test_any_text_gives_layers_or_a_usage_error(text):
    try:
        layers = parse_layers(text)
    except UsageError:
        return
    assert layers


def test_layers_are_numbered_in_a_row_across_groups():
    assert [layer.index for layer in parse_layers("4x(kv=1,head=64)+2x(none)+(state=8)")] == [0, 1, 2, 3, 4, 5, 6]
