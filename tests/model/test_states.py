"""States: shapes and bytes by the formulas of the reference, and what tensor parallelism does."""

import pytest

from kvledger.errors import ModelError
from kvledger.model import KV_FORMATS, Dtype, Storage, TensorRole
from kvledger.model.states import (
    StateDtypes,
    gated_delta_net,
    given,
    kimi_delta_attention,
    lightning,
    mamba1,
    mamba2,
    short_conv,
)

BF16 = StateDtypes(conv=Dtype.BFLOAT16, state=Dtype.BFLOAT16)
FP32 = StateDtypes(conv=Dtype.BFLOAT16, state=Dtype.FLOAT32, declared=True)


def storage(**changes):
    return Storage(kv=KV_FORMATS["bfloat16"], **changes)


def test_mamba_1_keeps_conv_and_state():
    """Jamba: 3 x 8192 x 2 + 8192 x 16 x 2 bytes."""
    cache = mamba1(channels=8192, state_size=16, kernel=4, dtypes=BF16)
    assert cache.state_bytes(storage()) == 311_296


def test_mamba_2_keeps_conv_of_heads_and_groups_and_state():
    """Nemotron-Nano-9B-v2: 3 x (128 x 80 + 2 x 8 x 128) x 2 + 128 x 80 x 128 x 2 bytes."""
    cache = mamba2(heads=128, head_size=80, state_size=128, groups=8, kernel=4, dtypes=BF16)
    assert [tensor.shape() for tensor in cache.tensors] == [(3, 12288), (128, 80, 128)]
    assert cache.state_bytes(storage()) == 2_695_168


def test_gated_delta_net_keeps_keys_and_values_in_its_conv():
    """Qwen3.5-27B: 3 x (2 x 16 x 128 + 48 x 128) x 2 + 48 x 128 x 128 x 4 bytes."""
    cache = gated_delta_net(key_heads=16, value_heads=48, key_size=128, value_size=128, kernel=4, dtypes=FP32)
    assert cache.state_bytes(storage()) == 3_207_168


def test_kimi_delta_attention_keeps_three_projections_in_its_conv():
    """Kimi Linear: 3 x 3 x 32 x 128 x 2 + 32 x 128 x 128 x 4 bytes."""
    assert kimi_delta_attention(heads=32, head_size=128, kernel=4, dtypes=FP32).state_bytes(storage()) == 2_170_880


def test_lightning_attention_keeps_a_matrix_a_head():
    """64 x 128 x 128 x 4 bytes."""
    assert lightning(heads=64, key_size=128, value_size=128, dtypes=FP32).state_bytes(storage()) == 4_194_304


def test_a_short_convolution_keeps_its_last_inputs():
    """(3 - 1) x 2048 x 2 bytes."""
    assert short_conv(channels=2048, kernel=3, dtypes=BF16).state_bytes(storage()) == 8192


def test_ranks_divide_heads_and_channels():
    """Qwen3.5-9B at TP 2: 24,576 + 1,048,576 bytes (vLLM PR 37467)."""
    cache = gated_delta_net(key_heads=16, value_heads=32, key_size=128, value_size=128, kernel=4, dtypes=FP32)
    assert [tensor.tensor_bytes(storage(tp=2)) for tensor in cache.tensors] == [24_576, 1_048_576]


def test_groups_are_replicated_when_there_are_fewer_than_ranks():
    cache = mamba2(heads=128, head_size=64, state_size=128, groups=1, kernel=4, dtypes=BF16)
    assert cache.tensors[0].shape(tp=8) == (3, 1024 + 256)


def test_groups_are_divided_while_they_last():
    cache = mamba2(heads=128, head_size=64, state_size=128, groups=8, kernel=4, dtypes=BF16)
    assert cache.tensors[0].shape(tp=8) == (3, 1024 + 256)
    assert cache.tensors[0].shape(tp=4) == (3, 2048 + 512)


def test_heads_that_cannot_be_divided_are_refused():
    cache = lightning(heads=10, key_size=8, value_size=8, dtypes=BF16)
    with pytest.raises(ModelError, match="10 heads or channels of a state cannot be divided among 4"):
        cache.state_bytes(storage(tp=4))


def test_speculative_tokens_lengthen_the_convolution_only():
    cache = gated_delta_net(key_heads=16, value_heads=32, key_size=128, value_size=128, kernel=4, dtypes=FP32)
    assert [tensor.shape(1, 2) for tensor in cache.tensors] == [(5, 8192), (32, 128, 128)]


def test_a_deployment_may_replace_the_dtypes():
    cache = mamba1(channels=8, state_size=16, kernel=4, dtypes=BF16)
    conv, state = cache.tensors
    changed = storage(conv=Dtype.FLOAT32, state=Dtype.FLOAT16)
    assert (conv.stored_dtype(changed), state.stored_dtype(changed)) == (Dtype.FLOAT32, Dtype.FLOAT16)
    assert (conv.role, state.role) == (TensorRole.CONV, TensorRole.STATE)


def test_bytes_stated_by_hand_do_not_change_with_dtype_or_ranks():
    cache = given(1000)
    assert cache.state_bytes(storage(state=Dtype.FLOAT32, conv=Dtype.FLOAT32, tp=7)) == 1000


def test_a_state_neither_grows_nor_depends_on_length():
    cache = given(7)
    assert (cache.growth(storage()), cache.bytes_at(0, storage()), cache.bytes_at(10**9, storage())) == (0, 7, 7)
