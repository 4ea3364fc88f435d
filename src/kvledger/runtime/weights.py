"""The weights of a model's linear layers, watched: what was made of one is made anew when it changes."""

from __future__ import annotations

from dataclasses import dataclass
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
        self._kept = {layer: _keep(layer) for layer in self.layers}
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}

    def refresh(self) -> int:
        """Forget what was made of weights that are not what they were (mutates); return how often that happened."""
        stale = {layer for layer, kept in self._kept.items() if not kept.is_of(layer._parameters)}
        if stale:
            self.changes += 1
            self._kept.update((layer, _keep(layer)) for layer in stale)
            self._made = {key: made for key, made in self._made.items() if stale.isdisjoint(key)}
        return self.changes


@dataclass(slots=True, eq=False)
class _Kept:
    """What a weight was when it was looked at: the weight, its bias, where it lay, its version, a few numbers."""

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


def _keep(layer: Any) -> _Kept:
    weight = layer.weight
    seen = weight.detach().view(-1)[:: max(1, weight.numel() // _LOOKS)]
    return _Kept(weight, layer.bias, _state_of(weight), seen, seen.tolist())


def _state_of(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), -1 if weight.is_inference() else weight._version


def find_linears(model: Any) -> list[Any]:
    """Return the plain linear layers of a model in float32: none of another class, or that was given another way."""
    import torch

    return [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear
        and "forward" not in layer.__dict__
        and layer.weight.dtype == torch.float32
        and layer.weight.is_contiguous()
    ]
