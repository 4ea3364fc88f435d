"""Formats: bytes of one side of one head, and of latent records."""

import pytest

from kvledger.errors import ModelError, UsageError
from kvledger.model import KV_FORMATS, Dtype, find_dtype, find_kv_format
from kvledger.model.formats import FP8_INDEX


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("bfloat16", 128, 256),
        ("float32", 128, 512),
        ("fp8", 128, 128),
        ("int8_per_token_head", 128, 132),  # 128 + a scale of 4 bytes
        ("int4_per_token_head", 128, 68),  # 64 + 4
        ("nvfp4", 128, 72),  # 64 + 128 / 16
        ("q8_0", 128, 136),  # 128 x 34 / 32
        ("q5_1", 128, 96),  # 128 x 24 / 32
        ("q5_0", 128, 88),
        ("q4_1", 128, 80),
        ("q4_0", 128, 72),
        ("iq4_nl", 128, 72),
        ("fp8_index", 128, 132),  # 128 + one fp32 scale for 128 elements
    ],
)
def test_a_side_of_a_head_takes_elements_and_scales(name, size, expected):
    assert find_kv_format(name).side_bytes(size) == expected


def test_no_elements_take_no_bytes_even_with_a_scale_a_head():
    assert KV_FORMATS["int8_per_token_head"].side_bytes(0) == 0


@pytest.mark.parametrize(
    ("name", "latent", "rope", "expected"),
    [
        ("bfloat16", 512, 64, 1152),
        ("fp8", 512, 64, 576),
        ("fp8_ds_mla", 512, 64, 656),  # 512 fp8 + 16 scales + 128 rope in bf16
        ("fp8_ds_mla", 448, 64, 584),  # 448 fp8 + 8 scales + 128 rope in bf16
        ("nvfp4_ds_mla", 512, 64, 352),
    ],
)
def test_latent_records_have_the_bytes_of_their_layout(name, latent, rope, expected):
    assert find_kv_format(name).latent_bytes(latent, rope) == expected


def test_a_packed_record_of_another_shape_is_refused():
    with pytest.raises(ModelError, match=r"no known record for a latent of 256\+64"):
        KV_FORMATS["fp8_ds_mla"].latent_bytes(256, 64)


def test_a_latent_format_has_no_keys_and_values():
    with pytest.raises(ModelError, match="stores latent records only"):
        KV_FORMATS["fp8_ds_mla"].side_bytes(128)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("fp8_e4m3", "fp8"),
        (" BF16 ", "bfloat16"),
        ("torch.float16", "float16"),
        ("f16", "float16"),
        ("half", "float16"),
    ],
)
def test_usual_names_find_their_format(alias, name):
    assert find_kv_format(alias).name == name


def test_a_format_finds_itself():
    assert find_kv_format(FP8_INDEX) is FP8_INDEX


def test_an_unknown_kv_dtype_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean `nvfp4`"):
        find_kv_format("nvfp44")


def test_an_unknown_dtype_far_from_all_names_gets_no_suggestion():
    with pytest.raises(UsageError) as caught:
        find_dtype("zzzzzz")
    assert "did you mean" not in caught.value.message
    assert "bfloat16" in (caught.value.hint or "")


def test_float32_checkpoints_are_served_in_16_bits():
    assert find_dtype("float32").served is Dtype.FLOAT16
    assert find_dtype("bf16").served is Dtype.BFLOAT16


@pytest.mark.parametrize(("name", "expected"), [("float32", 4), ("float16", 2), ("fp8", 1), ("int8", 1)])
def test_a_dtype_knows_its_bytes(name, expected):
    assert find_dtype(name).bytes == expected
