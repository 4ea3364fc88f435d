"""Normalisation by the root of the mean square, through one compiled kernel where the model takes seven operators.

A layer is recognised by what it keeps, one weight and a small number, and taken only when it answers random rows alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kvledger.runtime.swap import Forward, Way, is_alike, try_once

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.team import Team

__all__ = ["find_norms"]

_EPSILONS = ("variance_epsilon", "eps")
_OFFSETS = (0.0, 1.0)
"""What is added to the weight: nothing, or one, as Gemma does."""
_ROWS_AT_A_TIME = 16


def find_norms(model: Any, team: Team) -> list[Way]:
    """Return the layers that can go this way; one of each kind is tried."""
    offsets: dict[Any, float | None] = {}
    ways = []
    for layer in filter(_may_be, model.modules()):
        kind = type(layer), layer.weight.shape, _epsilon_of(layer)
        if kind not in offsets:
            offsets[kind] = next((offset for offset in _OFFSETS if _answers_alike(layer, offset, team)), None)
        offset = offsets[kind]
        if offset is not None:
            ways.append(Way(layer, partial(_make_forward, layer, offset, team)))
    return ways


def _may_be(layer: Any) -> bool:
    import torch

    return (
        list(layer._parameters) == ["weight"]
        and not layer._modules
        and "forward" not in layer.__dict__
        and layer.weight.dtype is torch.float32
        and layer.weight.dim() == 1
        and layer.weight.is_contiguous()
        and isinstance(_epsilon_of(layer), float)
    )


def _epsilon_of(layer: Any) -> Any:
    return next((layer.__dict__[name] for name in _EPSILONS if name in layer.__dict__), None)


def _make_forward(layer: Any, offset: float, team: Team) -> Forward:
    import torch

    from kvledger.runtime._rows import normalise

    plain, size = type(layer).forward, len(layer.weight)
    epsilon = _epsilon_of(layer)
    manner = torch.tensor([epsilon, offset], dtype=torch.float32, device="cpu")

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight = layer.weight
        is_like_it = weight.dtype is torch.float32 and weight.is_contiguous() and _epsilon_of(layer) == epsilon
        if not is_like_it or x.dtype is not torch.float32 or not x.is_contiguous() or torch.is_grad_enabled():
            answer: torch.Tensor = plain(layer, x)
            return answer
        out = torch.empty_like(x)
        rows = x.numel() // size
        lie = x.data_ptr(), weight.data_ptr(), out.data_ptr(), manner.data_ptr()
        team.run(normalise, rows, size, _ROWS_AT_A_TIME, *lie, numbers=x.numel())
        return out

    return forward


def _answers_alike(layer: Any, offset: float, team: Team) -> bool:
    import torch

    drawn = torch.Generator().manual_seed(0)
    rows = torch.randn(3, len(layer.weight), generator=drawn, dtype=torch.float32, device="cpu") * 3
    return is_alike(try_once(layer, rows), try_once(_make_forward(layer, offset, team), rows))
