"""Gated feed-forward layers: gate and content are multiplied as they are computed.

Llama and its kin compute ``down(act(gate(x)) * up(x))``. Step by step, every number in between goes through memory
twice more than it needs to. A layer is recognised by the names of its parts, and taken only when it answers random rows
alike both ways.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kvledger.runtime.packed import Packed
from kvledger.runtime.swap import Forward, Way, is_alike, try_once

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.linear import OneDnn, Product

__all__ = ["find_gated"]

_PARTS = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})
_ACTIVATIONS = {
    "SiLU": ("silu", "swish", ""),
    "SiLUActivation": ("silu", "swish", ""),
    "GELUTanh": ("gelu", "gelu", "tanh"),
}
"""What an activation is called: by the kernel, and by oneDNN with its manner."""
_ROWS_AT_A_TIME = 512
"""What lies between the products is wide: for more rows it would leave the caches, and the allocator's free memory."""


def find_gated(model: Any, linears: set[Any], products: Packed | OneDnn) -> list[Way]:
    """Return the layers that can go this way, whose parts are all among ``linears``; one of each kind is tried."""
    ways, alike = [], dict[Any, bool]()
    for layer in filter(lambda layer: _is_gated(layer, linears), model.modules()):
        kind = type(layer), type(layer.act_fn), layer.gate_proj.weight.shape
        if kind not in alike:
            alike[kind] = _answers_alike(layer, products)
        if alike[kind]:
            ways.append(Way(layer, partial(_make_forward, layer, products)))
    return ways


def _make_forward(layer: Any, products: Packed | OneDnn) -> Forward:
    import torch

    inner, outer, plain = _make_inner(layer, products), products.multiply(layer.down_proj), type(layer).forward

    def compute(x: torch.Tensor) -> torch.Tensor:
        return outer(inner(x))

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32 or torch.is_grad_enabled():
            answer: torch.Tensor = plain(layer, x)
            return answer
        if x.dim() != 3 or x.shape[1] <= _ROWS_AT_A_TIME:
            return compute(x)
        return torch.cat([compute(part) for part in x.split(_ROWS_AT_A_TIME, dim=1)], dim=1)

    return forward


def _make_inner(layer: Any, products: Packed | OneDnn) -> Product:
    """Return the gated content of a layer."""
    import torch

    gate, up = layer.gate_proj, layer.up_proj
    activation, name, manner = _ACTIVATIONS[type(layer.act_fn).__name__]
    if isinstance(products, Packed):
        if gate.bias is None and up.bias is None:
            return products.gate(gate, up, activation)
        of_gate, of_up, act = products.multiply(gate), products.multiply(up), layer.act_fn
        return lambda x: act(of_gate(x)) * of_up(x)
    operators = torch.ops.mkldnn._linear_pointwise
    weights, biases = (gate.weight.detach(), up.weight.detach()), (gate.bias, up.bias)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        gated = operators.default(x, weights[0], biases[0], name, [], manner)
        answer: torch.Tensor = operators.binary(x, gated, weights[1], biases[1], "mul")
        return answer

    return multiply


def _is_gated(layer: Any, linears: set[Any]) -> bool:
    parts = layer._modules
    return (
        parts.keys() == _PARTS
        and type(layer.act_fn).__name__ in _ACTIVATIONS
        and all(parts[name] in linears for name in _PARTS - {"act_fn"})
        and "forward" not in layer.__dict__
    )


def _answers_alike(layer: Any, products: Packed | OneDnn) -> bool:
    """Return whether random rows are answered alike both ways: the parts may be used otherwise than their names say."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 3, layer.gate_proj.in_features, generator=drawn, dtype=torch.float32, device="cpu")
    return is_alike(try_once(layer, rows), try_once(_make_forward(layer, products), rows))
