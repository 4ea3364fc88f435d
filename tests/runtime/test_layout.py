"""Layers in groups over one pool."""

import pytest

from kvledger.errors import ModelError
from kvledger.pool.groups import GroupKind
from kvledger.runtime.layout import Layer, Shape, arrange_layers

SHAPE = Shape(kv_heads=2, head_size=8, dtype="float32", dtype_bytes=4)


def arrange(*windows, block_size=16, shape=SHAPE):
    layers = [Layer(index=i, shape=shape, query_heads=4, window_tokens=w) for i, w in enumerate(windows)]
    return arrange_layers(layers, block_size=block_size)


def test_layers_that_keep_the_same_tokens_share_one_table():
    layout = arrange(None, None, None)
    assert layout.tensors == 3
    assert len(layout.groups.groups) == 1
    # 2 heads of 8 numbers of 4 bytes, keys and values, in 3 layers: 384 bytes a token.
    assert layout.groups.token_bytes == 384
    assert layout.groups.block_bytes == 16 * 384
    assert layout.tensor_of == {0: 0, 1: 1, 2: 2}


def test_windows_and_full_layers_have_groups_of_one_size_over_the_same_tensors():
    layout = arrange(8, 8, 8, 8, 8, None, 8, 8, 8, 8, 8, None)
    assert layout.tensors == 2
    assert [group.kind for group in layout.groups.groups] == [GroupKind.FULL] + [GroupKind.WINDOW] * 5
    assert layout.groups.block_bytes == 16 * 2 * SHAPE.token_bytes
    for group in range(6):
        members = [i for i, g in layout.group_of.items() if g == group]
        assert sorted(layout.tensor_of[i] for i in members) == [0, 1]


def test_a_group_with_fewer_layers_leaves_a_part_of_its_blocks_empty():
    layout = arrange(8, 8, 8, None, None)
    assert layout.tensors == 2
    assert [group.token_bytes // SHAPE.token_bytes for group in layout.groups.groups] == [2, 2, 1]


def test_kinds_of_nearly_equal_number_get_one_group_each():
    layout = arrange(*[8] * 9, *[None] * 8)
    assert layout.tensors == 9
    assert [group.token_bytes // SHAPE.token_bytes for group in layout.groups.groups] == [8, 9]


def test_layers_of_different_shapes_are_refused():
    other = Shape(kv_heads=1, head_size=8, dtype="float32", dtype_bytes=4)
    layers = [Layer(index=0, shape=SHAPE, query_heads=4), Layer(index=1, shape=other, query_heads=4)]
    with pytest.raises(ModelError, match=r"different shapes \(1 head of 8 float32, 2 heads of 8 float32\)"):
        arrange_layers(layers, block_size=16)
    with pytest.raises(ModelError, match="no layer"):
        arrange_layers([], block_size=16)
