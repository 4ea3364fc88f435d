"""Matrix products on a CPU: through oneDNN where PyTorch's own choice is slow.

PyTorch's wheels multiply float32 matrices with Intel's MKL, which takes code for older processors on those of other
makers: half as fast as oneDNN, which is in the same wheels. PyTorch offers no switch for it, so while a step goes
through the model, its ``torch.nn.Linear`` layers call the operator that PyTorch's own compiler uses
(``mkldnn::_linear_pointwise``, checked on 2.13). A few rows at a time, as in decoding, are faster by another third to
half when the weights lie as oneDNN reads them, which takes a copy of them. The model's own weights stay as they are,
and between steps the model is untouched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kvledger.errors import UsageError
from kvledger.runtime import gated
from kvledger.runtime.options import Linear

if TYPE_CHECKING:
    import torch

__all__ = ["choose_linear"]

Forward = Callable[["torch.Tensor"], "torch.Tensor"]

_MEMORY_SHARE = 8
"""Weights are copied without being asked for where they take less than one part in this many of the memory."""
_LOOKS = 4
"""Numbers of each weight that are compared before a step: not every way of writing to a weight leaves another trace."""
_ROWS = 16
"""Rows for which the copy is laid out; oneDNN reads the same layout for more of them, and for fewer."""


def choose_linear(linear: Linear, model: Any) -> AbstractContextManager[Any]:
    """Return the context in which a model multiplies matrices.

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
            return nullcontext()
        case Linear.ONEDNN | Linear.PACKED if not usable:
            raise UsageError(
                f"oneDNN serves float32 on a CPU, where PyTorch was built with it; the model is {parameter.dtype} on "
                f"{parameter.device.type}",
                hint="use linear=Linear.TORCH",
            )
        case Linear.AUTO if not (usable and torch.backends.mkl.is_available() and _is_by_amd()):
            return nullcontext()
        case Linear.ONEDNN:
            return _Swap(_Weights(model, packed=False))
        case Linear.AUTO if _count_bytes(model) * _MEMORY_SHARE > _memory_bytes():
            return _Swap(_Weights(model, packed=False))
        case _:
            return _Swap(_pack(model))


@dataclass(slots=True, eq=False)
class _Kept:
    """A weight as it is multiplied, and what it was made from: the weight, where it lay, its version, a few numbers."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    state: tuple[int, int]
    seen: torch.Tensor
    numbers: list[float]
    multiplied: torch.Tensor

    def is_of(self, parameters: dict[str, Any]) -> bool:
        """Whether a layer still has this weight, and the weight still is what it was."""
        return (
            parameters["weight"] is self.weight
            and parameters["bias"] is self.bias
            and self.state == _state_of(self.weight)
            and self.seen.tolist() == self.numbers
        )


class _Weights:
    """The weights of a model as oneDNN reads them: as they are, or copies that all engines of the model share."""

    def __init__(self, model: Any, *, packed: bool) -> None:
        self.model = model  # its number is not given to another while this lives
        self.packed = packed
        self.layers = _find_layers(model)
        self.changes = 0
        self._kept = {layer: self._keep(layer) for layer in self.layers}

    def refresh(self) -> int:
        """Keep anew what is not what it was (mutates); return how often that has happened."""
        stale = [layer for layer, kept in self._kept.items() if not kept.is_of(layer._parameters)]
        for layer in stale:
            self._kept[layer] = self._keep(layer)
        self.changes += bool(stale)
        return self.changes

    def take(self, layer: Any) -> torch.Tensor:
        """Return the weight of a layer."""
        return self._kept[layer].multiplied

    def _keep(self, layer: Any) -> _Kept:
        import torch

        weight = layer.weight
        plain = weight.detach()
        seen = plain.view(-1)[:: max(1, weight.numel() // _LOOKS)]
        multiplied = torch.ops.mkldnn._reorder_linear_weight(plain, _ROWS) if self.packed else plain
        return _Kept(weight, layer.bias, _state_of(weight), seen, seen.tolist(), multiplied)


_PACKED: WeakValueDictionary[int, _Weights] = WeakValueDictionary()


def _pack(model: Any) -> _Weights:
    """Return the packed weights of a model, which all its engines share."""
    weights = _PACKED.get(id(model)) or _Weights(model, packed=True)
    return _PACKED.setdefault(id(model), weights)


def _state_of(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version


class _Swap(AbstractContextManager[None]):
    """Lets the linear layers of a model go through oneDNN from entering to leaving.

    A layer that somebody else has given another way in the meantime keeps it; what is hooked is not gone around.
    """

    def __init__(self, weights: _Weights) -> None:
        self._weights = weights
        self._gated = gated.find_gated(weights.model, set(weights.layers))
        self._ways: list[tuple[Any, Forward]] = []
        self._changes = -1
        self._swapped: list[Any] = []

    def __enter__(self) -> None:
        """Give every layer its way through oneDNN (mutates the model)."""
        if self._changes != self._weights.refresh():
            self._changes, take = self._weights.changes, self._weights.take
            self._ways = [(layer, gated.make_forward(layer, take)) for layer in self._gated]
            self._ways += [(layer, _make_forward(layer, take(layer))) for layer in self._weights.layers]
        for layer, forward in self._ways:
            parts = layer._modules.values()
            if "forward" not in layer.__dict__ and not any(x._forward_hooks or x._forward_pre_hooks for x in parts):
                layer.__dict__["forward"] = forward
                self._swapped.append(layer)

    def __exit__(self, *_: object) -> None:
        """Give every layer its own way back (mutates the model)."""
        for layer in self._swapped:
            layer.__dict__.pop("forward", None)
        self._swapped.clear()


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


def _make_forward(layer: Any, weight: torch.Tensor) -> Forward:
    import torch

    multiply, plain = torch.ops.mkldnn._linear_pointwise.default, torch.nn.Linear.forward
    bias = layer.bias

    def forward(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            return plain(layer, x)
        answer: torch.Tensor = multiply(x, weight, bias, "none", [], "")
        return answer

    return forward


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
