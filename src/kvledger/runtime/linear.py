"""Matrix products on a CPU: through oneDNN where PyTorch's own choice is slow.

PyTorch's wheels multiply float32 matrices with Intel's MKL, which takes code for older processors on those of other
makers: half as fast as oneDNN, which is in the same wheels. PyTorch offers no switch for it, so its ``torch.nn.Linear``
layers call the operator that PyTorch's own compiler uses (``mkldnn::_linear_pointwise``, checked on 2.13). A few rows
at a time, as in decoding, are faster by another third to half when the weights lie as oneDNN reads them, which takes a
copy of them. The model's own weights stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from kvledger.errors import UsageError
from kvledger.runtime.options import Linear

if TYPE_CHECKING:
    import torch

__all__ = ["OneDnn", "Products", "choose_products"]

Product = Callable[["torch.Tensor"], "torch.Tensor"]

_MEMORY_SHARE = 8
"""Weights are copied without being asked for where they take less than one part in this many of the memory."""
_LOOKS = 4
"""Numbers of each weight that are compared before a step: not every way of writing to a weight leaves another trace."""
_ROWS = 16
"""Rows for which the copy is laid out; oneDNN reads the same layout for more of them, and for fewer."""


class Products(Protocol):
    """How the linear layers of a model multiply."""

    layers: list[Any]
    """Its plain linear layers: none that has another class, or was given another way."""

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
    usable = (
        parameter.device.type == "cpu"
        and parameter.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
    match linear:
        case Linear.TORCH:
            return _Plain(model)
        case Linear.ONEDNN | Linear.PACKED if not usable:
            raise UsageError(
                f"oneDNN serves float32 on a CPU, where PyTorch was built with it; the model is {parameter.dtype} on "
                f"{parameter.device.type}",
                hint="use linear=Linear.TORCH",
            )
        case Linear.AUTO if not (usable and torch.backends.mkl.is_available() and _is_by_amd()):
            return _Plain(model)
        case Linear.ONEDNN:
            return OneDnn(model, packed=False)
        case Linear.AUTO if _count_bytes(model) * _MEMORY_SHARE > _memory_bytes():
            return OneDnn(model, packed=False)
        case _:
            return _pack(model)


class _Plain:
    """PyTorch's own products."""

    def __init__(self, model: Any) -> None:
        self.layers = _find_layers(model)

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


@dataclass(slots=True, eq=False)
class _Kept:
    """What a weight was when it was taken: the weight, its bias, where it lay, its version, a few numbers."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    state: tuple[int, int]
    seen: torch.Tensor
    numbers: list[float]

    def is_of(self, parameters: dict[str, Any]) -> bool:
        """Whether a layer still has this weight, and the weight still is what it was."""
        return (
            parameters["weight"] is self.weight
            and parameters["bias"] is self.bias
            and self.state == _state_of(self.weight)
            and self.seen.tolist() == self.numbers
        )


class OneDnn:
    """The weights of a model as oneDNN reads them: as they are, or copies that all engines of the model share."""

    def __init__(self, model: Any, *, packed: bool) -> None:
        self.model = model  # its number is not given to another while this lives
        self.packed = packed
        self.layers = _find_layers(model)
        self.changes = 0
        self._kept = {layer: _keep(layer) for layer in self.layers}
        self._taken: dict[tuple[Any, ...], torch.Tensor] = {}

    def refresh(self) -> int:
        """Forget what was made of weights that are not what they were (mutates); return how often that happened."""
        stale = {layer for layer, kept in self._kept.items() if not kept.is_of(layer._parameters)}
        if stale:
            self.changes += 1
            self._kept.update((layer, _keep(layer)) for layer in stale)
            self._taken = {layers: weight for layers, weight in self._taken.items() if stale.isdisjoint(layers)}
        return self.changes

    def multiply(self, *layers: Any) -> Product:
        """Return the product with a layer, or with several: in one go where their weights are copied anyway."""
        import torch

        if len(layers) > 1 and not self.packed:
            return _in_turn(tuple(self.multiply(layer) for layer in layers))
        operator, weight = torch.ops.mkldnn._linear_pointwise.default, self.take(*layers)
        bias = layers[0].bias if len(layers) == 1 else None
        own = () if len(layers) == 1 or layers[0].bias is None else tuple(layer.bias for layer in layers)

        def multiply(x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = operator(x, weight, torch.cat(own) if own else bias, "none", [], "")
            return answer

        return multiply

    def take(self, *layers: Any) -> torch.Tensor:
        """Return the weight of a layer, or of several one after the other, as oneDNN reads it (mutates)."""
        import torch

        if layers not in self._taken:
            plain = [self._kept[layer].weight.detach() for layer in layers]
            weight = plain[0] if len(plain) == 1 else torch.cat(plain)
            self._taken[layers] = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS) if self.packed else weight
        return self._taken[layers]


_PACKED: WeakValueDictionary[int, OneDnn] = WeakValueDictionary()


def _pack(model: Any) -> OneDnn:
    """Return the packed weights of a model, which all its engines share."""
    weights = _PACKED.get(id(model)) or OneDnn(model, packed=True)
    return _PACKED.setdefault(id(model), weights)


def _keep(layer: Any) -> _Kept:
    weight = layer.weight
    seen = weight.detach().view(-1)[:: max(1, weight.numel() // _LOOKS)]
    return _Kept(weight, layer.bias, _state_of(weight), seen, seen.tolist())


def _state_of(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version


def _find_layers(model: Any) -> list[Any]:
    """Return the plain linear layers of a model: none that has another class, or was given another way."""
    import torch

    return [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear
        and "forward" not in layer.__dict__
        and layer.weight.dtype == torch.float32
        and layer.weight.is_contiguous()
    ]


def _count_bytes(model: Any) -> int:
    return sum(layer.weight.nbytes for layer in _find_layers(model))


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
