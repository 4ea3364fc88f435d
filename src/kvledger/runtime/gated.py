"""Gated feed-forward layers through oneDNN: gate and content are multiplied as they are computed.

Llama and its kin compute ``down(act(gate(x)) * up(x))``. Step by step, every number in between goes through memory
twice more than it needs to. A layer is recognised by the names of its parts, and taken only when it answers random rows
alike both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kvledger.runtime.swap import Forward, Way, is_alike, try_once

if TYPE_CHECKING:
    import torch

__all__ = ["find_gated"]

_PARTS = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})
_ACTIVATIONS = {"SiLU": ("swish", ""), "SiLUActivation": ("swish", ""), "GELUTanh": ("gelu", "tanh")}


def find_gated(model: Any, linears: set[Any], take: Callable[[Any], torch.Tensor]) -> list[Way]:
    """Return the layers that can go this way, whose parts are all among ``linears``; one of each kind is tried.

    ``take`` gives the weight of a part as oneDNN reads it.
    """
    ways, alike = [], dict[Any, bool]()
    for layer in filter(lambda layer: _is_gated(layer, linears), model.modules()):
        kind = type(layer), type(layer.act_fn), layer.gate_proj.weight.shape
        if kind not in alike:
            alike[kind] = _answers_alike(layer)
        if alike[kind]:
            ways.append(Way(layer, partial(_make_forward, layer, take)))
    return ways


def _make_forward(layer: Any, take: Callable[[Any], torch.Tensor]) -> Forward:
    import torch

    multiply, combine = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkldnn._linear_pointwise.binary
    gate, up, down = layer.gate_proj, layer.up_proj, layer.down_proj
    weights = take(gate), take(up), take(down)
    biases = gate.bias, up.bias, down.bias
    activation, manner = _ACTIVATIONS[type(layer.act_fn).__name__]
    plain = type(layer).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float32:
            gated = multiply(x, weights[0], biases[0], activation, [], manner)
            content = combine(x, gated, weights[1], biases[1], "mul")
            answer: torch.Tensor = multiply(content, weights[2], biases[2], "none", [], "")
        else:
            answer = plain(layer, x)
        return answer

    return forward


def _is_gated(layer: Any, linears: set[Any]) -> bool:
    parts = layer._modules
    return (
        parts.keys() == _PARTS
        and type(layer.act_fn).__name__ in _ACTIVATIONS
        and all(parts[name] in linears for name in _PARTS - {"act_fn"})
        and "forward" not in layer.__dict__
    )


def _answers_alike(layer: Any) -> bool:
    """Return whether random rows are answered alike both ways: the parts may be used otherwise than their names say."""
    import torch

    rows = torch.randn(3, layer.gate_proj.in_features, generator=torch.Generator().manual_seed(0))
    return is_alike(try_once(layer, rows), try_once(_make_forward(layer, lambda part: part.weight), rows))
