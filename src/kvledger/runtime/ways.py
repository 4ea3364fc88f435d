"""Which layers of a model go which faster way while a step is computed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kvledger.runtime.gated import find_gated
from kvledger.runtime.joined import find_joined
from kvledger.runtime.linear import OneDnn, choose_products
from kvledger.runtime.norms import find_norms
from kvledger.runtime.options import Linear
from kvledger.runtime.packed import Packed
from kvledger.runtime.swap import Forward, Swap, Way

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.team import Team

__all__ = ["choose_ways"]


def choose_ways(linear: Linear, model: Any, team: Team | None = None) -> Swap:
    """Return the context in which a model computes a step; between steps the model is untouched.

    ``team``: the threads of the compiled kernels; None where attention is computed otherwise.

    Raises:
        UsageError: oneDNN was asked for, and cannot serve this model.
    """
    products = choose_products(linear, model)
    linears = set(products.layers)
    ways = find_joined(model, linears, products) + find_norms(model, team) if team else []
    if isinstance(products, Packed | OneDnn):
        ways += find_gated(model, linears, products)
        ways += [Way(layer, partial(_make_forward, layer, products)) for layer in products.layers]
    return Swap(ways, products.refresh, products.unfit)


def _make_forward(layer: Any, products: Packed | OneDnn) -> Forward:
    import torch

    multiply, plain = products.multiply(layer), torch.nn.Linear.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        return plain(layer, x) if x.dtype is not torch.float32 or torch.is_grad_enabled() else multiply(x)

    return forward
