"""Giving layers of a model another way to compute the same, from entering a context to leaving it.

A layer that somebody else has given another way in the meantime keeps it; what is hooked is not gone around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Forward", "Swap", "Way", "is_alike", "try_once"]

Forward = Callable[..., Any]

_TOLERANCE = 1e-4


class Way:
    """Another way for a layer; ``make`` returns it, which takes the place of the ways of the layer's parts."""

    __slots__ = ("_parts", "forward", "layer", "make")

    def __init__(self, layer: Any, make: Callable[[], Forward]) -> None:
        self.layer = layer
        self.make = make
        self.forward: Forward | None = None
        self._parts = [part for part in layer.modules() if part is not layer]

    @property
    def is_free(self) -> bool:
        """Whether nobody has hooked a part or given the layer or a part another way."""
        if "forward" in self.layer.__dict__:
            return False
        for part in self._parts:
            if part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__:
                return False
        return True


class Swap(AbstractContextManager[None]):
    """Lets layers go their other ways while it is entered.

    ``refresh`` is called on entering; when it returns another number than the last time, ways are made anew. Ways of
    outer layers come before those of their parts.
    """

    def __init__(self, ways: Sequence[Way], refresh: Callable[[], int]) -> None:
        self._ways = ways
        self._refresh = refresh
        self._inner = {way: [w for w in ways if any(w.layer is part for part in way._parts)] for way in ways}
        self._changes = -1
        self._swapped: list[Any] = []

    def __enter__(self) -> None:
        """Give every layer its other way (mutates the model)."""
        changes = self._refresh()
        if changes != self._changes:
            self._changes = changes
            for way in self._ways:
                way.forward = None
        covered: set[Way] = set()
        for way in self._ways:
            if way not in covered and way.is_free:
                way.forward = way.forward or way.make()
                way.layer.__dict__["forward"] = way.forward
                self._swapped.append(way.layer)
                covered.update(self._inner[way])

    def __exit__(self, *_: object) -> None:
        """Give every layer its own way back (mutates the model)."""
        for layer in self._swapped:
            layer.__dict__.pop("forward", None)
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
