"""Giving layers of a model another way to compute the same, from entering a context to leaving it.

A layer that somebody else has given another way in the meantime keeps it; what is hooked is not gone around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Forward", "Swap", "Way", "is_alike", "try_once"]

Forward = Callable[..., Any]

_TOLERANCE = 1e-4


class Way:
    """Another way for a layer; ``make`` returns it, which takes the place of the ways of the layer's parts."""

    __slots__ = ("_made_of", "forward", "layer", "make", "parts")

    def __init__(self, layer: Any, make: Callable[[], Forward]) -> None:
        self.layer = layer
        self.make = make
        self.forward: Forward | None = None
        self.parts = [part for part in layer.modules() if part is not layer]
        self._made_of = [(part, type(part), tuple(part._modules.values())) for part in (layer, *self.parts)]

    @property
    def is_free(self) -> bool:
        """Whether the layer is made of what it was, and nobody has hooked a part or given one another way."""
        for part, kind, children in self._made_of:
            if type(part) is not kind or tuple(part._modules.values()) != children or "forward" in part.__dict__:
                return False
        return not any(part._forward_hooks or part._forward_pre_hooks for part in self.parts)


class Swap(AbstractContextManager[None]):
    """Lets layers go their other ways while it is entered.

    ``refresh`` is called on entering; when it returns another number than the last time, ways are made anew, but for
    those of what is ``unfit`` by then. Ways of outer layers come before those of their parts.
    """

    def __init__(self, ways: Sequence[Way], refresh: Callable[[], int], unfit: AbstractSet[Any]) -> None:
        self._ways = ways
        self._fit = list(ways)
        self._refresh = refresh
        self._unfit = unfit
        self._inner = {way: [w for w in ways if any(w.layer is part for part in way.parts)] for way in ways}
        self._changes = -1
        self._swapped: list[tuple[Any, Forward]] = []

    def __enter__(self) -> None:
        """Give every layer its other way (mutates the model)."""
        changes = self._refresh()
        if changes != self._changes:
            self._changes = changes
            for way in self._ways:
                way.forward = None
            self._fit = [way for way in self._ways if self._unfit.isdisjoint((way.layer, *way.parts))]
        covered: set[Way] = set()
        for way in self._fit:
            if way not in covered and way.is_free:
                forward = way.forward = way.forward or way.make()
                way.layer.__dict__["forward"] = forward
                self._swapped.append((way.layer, forward))
                covered.update(self._inner[way])

    def __exit__(self, *_: object) -> None:
        """Give every layer its own way back (mutates the model), but for one that has got yet another."""
        for layer, forward in self._swapped:
            if layer.__dict__.get("forward") is forward:
                del layer.__dict__["forward"]
        self._swapped.clear()


def try_once(forward: Forward, *arguments: Any, **keywords: Any) -> torch.Tensor | None:
    """Return what a layer or its other way answers; None where it cannot take what it is given."""
    import torch

    with torch.inference_mode():
        try:
            answer = forward(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return None
    return answer if isinstance(answer, torch.Tensor) else None


def is_alike(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether two answers are one but for rounding."""
    import torch

    if one is None or other is None or one.shape != other.shape:
        return False
    most = float(one.abs().max())
    return bool(torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * most))
