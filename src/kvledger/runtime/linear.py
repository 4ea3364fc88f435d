"""Matrix products on a CPU: through oneDNN, or the compiled kernel, where PyTorch's own choice is slow.

PyTorch's wheels multiply float32 matrices with Intel's MKL, which takes code for older processors on those of other
makers: half as fast as oneDNN, which is in the same wheels. PyTorch offers no switch for it, so its ``torch.nn.Linear``
layers call the operator that PyTorch's own compiler uses (``mkldnn::_linear_pointwise``, checked on 2.13). Where memory
allows a copy of the weights, a kernel of our own is faster still. The model's own weights stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvledger.errors import UsageError
from kvledger.runtime.options import Linear
from kvledger.runtime.packed import share_packed
from kvledger.runtime.weights import Weights, find_linears

if TYPE_CHECKING:
    import torch

__all__ = ["OneDnn", "Products", "choose_products"]

Product = Callable[["torch.Tensor"], "torch.Tensor"]

_MEMORY_SHARE = 8
"""Weights are copied without being asked for where they take less than one part in this many of the memory."""


class Products(Protocol):
    """How the linear layers of a model multiply."""

    layers: list[Any]
    """Its plain linear layers: none that has another class, or was given another way."""
    unfit: set[Any]
    """Those of them that are none any more, as `refresh` found."""

    def refresh(self) -> int:
        """Look for weights that have changed (mutates); return how often some had."""

    def multiply(self, *layers: Any) -> Product:
        """Return the product of rows with a layer, or with several, their answers one after the other.

        It holds until `refresh` returns another number.
        """


def choose_products(linear: Linear, model: Any) -> Products:
    """Return how a model multiplies matrices.

    Raises:
        UsageError: oneDNN was asked for, and cannot serve this model.
    """
    import torch

    parameter = next(model.parameters())
    usable = parameter.device.type == "cpu" and parameter.dtype == torch.float32
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    match linear:
        case Linear.TORCH:
            return _Plain(model)
        case Linear.ONEDNN if not (usable and has_onednn):
            raise UsageError(
                f"oneDNN serves float32 on a CPU, where PyTorch was built with it; the model is {parameter.dtype} on "
                f"{parameter.device.type}",
                hint="use linear=Linear.TORCH",
            )
        case Linear.PACKED if not usable:
            raise UsageError(
                f"packed weights serve float32 on a CPU; the model is {parameter.dtype} on {parameter.device.type}",
                hint="use linear=Linear.TORCH",
            )
        case Linear.AUTO if not (usable and has_onednn and torch.backends.mkl.is_available() and _is_by_amd()):
            return _Plain(model)
        case Linear.ONEDNN:
            return OneDnn(model)
        case Linear.AUTO if _count_bytes(model) * _MEMORY_SHARE > _memory_bytes():
            return OneDnn(model)
        case _:
            return share_packed(model)


class _Plain:
    """PyTorch's own products."""

    def __init__(self, model: Any) -> None:
        self.layers = find_linears(model)
        self.unfit: set[Any] = set()

    def refresh(self) -> int:
        """Nothing is kept that could change."""
        return 0

    def multiply(self, *layers: Any) -> Product:
        """Return the layers one after the other."""
        return _in_turn(layers)


def _in_turn(products: tuple[Product, ...]) -> Product:
    import torch

    if len(products) == 1:
        return products[0]

    def multiply(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([product(x) for product in products], -1)

    return multiply


class OneDnn(Weights):
    """Products through oneDNN, on the weights as they are."""

    def multiply(self, *layers: Any) -> Product:
        """Return the product of rows with a layer, or with several, their answers one after the other."""
        import torch

        if len(layers) > 1:
            return _in_turn(tuple(self.multiply(layer) for layer in layers))
        operator, weight, bias = torch.ops.mkldnn._linear_pointwise.default, layers[0].weight.detach(), layers[0].bias

        def multiply(x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = operator(x, weight, bias, "none", [], "")
            return answer

        return multiply


def _count_bytes(model: Any) -> int:
    return sum(layer.weight.nbytes for layer in find_linears(model))


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def _is_by_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")[:4096]
    except OSError:
        return False
