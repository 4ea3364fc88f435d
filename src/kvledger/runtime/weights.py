"""The weights of a model's linear layers, watched: what was made of one is made anew when it changes."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Weights", "find_linears"]

_LOOKS = 4
"""Numbers of each weight that are compared before a step: not every way of writing to a weight leaves another trace."""


class Weights:
    """What is made of the weights of a model, by the layers they belong to; engines of one model may share it."""

    def __init__(self, model: Any) -> None:
        self.model = model  # its number is not given to another while this lives
        self.layers = find_linears(model)
        self.changes = 0
        self.unfit: set[Any] = set()
        self._kept = {layer: _keep(layer) for layer in self.layers}
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}
        self._refreshing = Lock()

    def refresh(self) -> int:
        """Forget what was made of weights that are not what they were (mutates); return how often that happened."""
        with self._refreshing:
            stale = {layer for layer, kept in self._kept.items() if not kept.is_of(layer._parameters)}
            changed = stale | {layer for layer in self.unfit if _is_plain(layer)}
            if changed:
                self.changes += 1
                plain = {layer for layer in changed if _is_plain(layer)}
                self.unfit.difference_update(plain)
                self.unfit.update(changed - plain)
                self._kept = {layer: kept for layer, kept in self._kept.items() if layer not in changed}
                self._kept.update((layer, _keep(layer)) for layer in plain)
                self._made = {key: made for key, made in list(self._made.items()) if changed.isdisjoint(key)}
            return self.changes


@dataclass(slots=True, eq=False)
class _Kept:
    """What a weight was when it was looked at: the weight, its bias, where it lay, its version, a few numbers."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    state: tuple[int, ...]
    seen: torch.Tensor
    numbers: list[float]

    def is_of(self, parameters: dict[str, Any]) -> bool:
        """Whether a layer still has this weight, and the weight still is what it was."""
        return (
            parameters.get("weight") is self.weight
            and parameters.get("bias", self) is self.bias
            and self.state == _state_of(self.weight, self.bias)
            and self.seen.tolist() == self.numbers
        )


def _keep(layer: Any) -> _Kept:
    weight = layer.weight
    seen = weight.detach().view(-1)[:: max(1, weight.numel() // _LOOKS)]
    return _Kept(weight, layer.bias, _state_of(weight, layer.bias), seen, seen.tolist())


def _state_of(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[int, ...]:
    version = -1 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, 0 if bias is None else bias.data_ptr()


def find_linears(model: Any) -> list[Any]:
    """Return the plain linear layers of a model in float32: none of another class, or that was given another way."""
    return [layer for layer in model.modules() if _is_plain(layer) and "forward" not in layer.__dict__]


def _is_plain(layer: Any) -> bool:
    import torch

    if type(layer) is not torch.nn.Linear or not {"weight", "bias"} <= layer._parameters.keys():
        return False
    numbers = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
    return all(type(x) is torch.nn.Parameter and x.dtype is torch.float32 and x.is_contiguous() for x in numbers)
