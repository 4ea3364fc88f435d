"""Which layers of a model keep keys and values, in which shape, and how they share the blocks of one pool.

The shapes are not read from a configuration: one token is sent through the model, and its attention layers are watched.
Layers that keep the same tokens form groups of equal size, as in vLLM's hybrid manager, so that a block serves any of
them::

    layers   0 s  1 s  2 s  3 s  4 s  5 f  |  6 s ... 11 f        s: window, f: all tokens
    groups   {5, 11} full   {0, 1} {2, 3} {4, 6} {7, 8} {9, 10} windows
    tensor 0 holds layers 5, 0, 2, 4, 7, 9    tensor 1 holds layers 11, 1, 3, 6, 8, 10
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.errors import ModelError
from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup
from kvledger.units import counted

__all__ = ["Layer", "Layout", "Shape", "arrange_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Keys and values of one token in one layer; ``dtype`` is a name such as ``bfloat16``."""

    kv_heads: int
    head_size: int
    dtype: str
    dtype_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return 2 * self.kv_heads * self.head_size * self.dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One attention layer: its number in the model, what it keeps, and how many query heads read it."""

    index: int
    shape: Shape
    query_heads: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each layer lies: its group, and which of the ``tensors`` of the pool its group uses for it.

    ``group_of`` and ``tensor_of`` are by layer number.
    """

    shape: Shape
    tensors: int
    groups: BlockGroups
    layers: dict[int, Layer]
    group_of: dict[int, int]
    tensor_of: dict[int, int]


def arrange_layers(layers: list[Layer], *, block_size: int) -> Layout:
    """Arrange layers in groups over one pool of blocks of ``block_size`` tokens.

    A group has as many layers as the rarest kind has, as in vLLM 0.32 (``_get_kv_cache_groups_uniform_page_size``); a
    group with fewer leaves a part of its blocks empty.

    Raises:
        ModelError: The layers differ in shape, or there are none.
    """
    if not layers:
        raise ModelError("no layer of the model keeps keys and values in a way that can be paged")
    shapes = {layer.shape for layer in layers}
    if len(shapes) > 1:
        listed = ", ".join(f"{counted(s.kv_heads, 'head')} of {s.head_size} {s.dtype}" for s in sorted(shapes, key=str))
        raise ModelError(f"the layers keep different shapes ({listed}), and blocks of one pool have one shape")
    by_window: dict[int | None, list[Layer]] = {}
    for layer in layers:
        by_window.setdefault(layer.window_tokens, []).append(layer)
    tensors = _layers_of_a_group([len(kind) for kind in by_window.values()])
    shape = next(iter(shapes))
    groups: list[LayerGroup] = []
    group_of: dict[int, int] = {}
    tensor_of: dict[int, int] = {}
    for window, kind in sorted(by_window.items(), key=lambda item: item[0] or 0):
        for at in range(0, len(kind), tensors):
            members = kind[at : at + tensors]
            for position, layer in enumerate(members):
                group_of[layer.index] = len(groups)
                tensor_of[layer.index] = position
            groups.append(
                LayerGroup(
                    kind=GroupKind.FULL if window is None else GroupKind.WINDOW,
                    block_tokens=block_size,
                    payload_bytes=block_size * len(members) * shape.token_bytes,
                    span_tokens=window or 0,
                )
            )
    return Layout(
        shape=shape,
        tensors=tensors,
        groups=BlockGroups(groups=tuple(groups), block_bytes=block_size * tensors * shape.token_bytes),
        layers={layer.index: layer for layer in layers},
        group_of=group_of,
        tensor_of=tensor_of,
    )


def _layers_of_a_group(counts: list[int]) -> int:
    """Return the layers of a group: the fewest of any kind, or the most when that wastes less than a quarter."""
    return max(counts) if max(counts) < 1.25 * min(counts) else min(counts)
