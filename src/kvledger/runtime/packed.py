"""Products with a copy of the weights, laid out for the compiled kernel.

For a few rows, as in decoding, a product takes as long as its matrix takes to be read. Measured on an EPYC with
AVX-512 and two cores, the products of SmolLM2-135M take 15.6 ms for 16 rows, 21 ms through oneDNN with packed weights,
and 8 against 15 ms for one row; for hundreds of rows both are as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kvledger.runtime.team import Team
from kvledger.runtime.weights import Weights

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.linear import Product

__all__ = ["Packed", "share_packed"]

_PANELS_AT_A_TIME = 8
_ROWS_AT_A_TIME = 512
"""More rows than these leave the caches between one panel and the next."""

_SHARED: WeakValueDictionary[int, Packed] = WeakValueDictionary()


def share_packed(model: Any) -> Packed:
    """Return the packed weights of a model, which all its engines share."""
    weights = _SHARED.get(id(model)) or Packed(model)
    return _SHARED.setdefault(id(model), weights)


class Packed(Weights):
    """Copies of a model's weights in panels, made when they are first asked for."""

    def __init__(self, model: Any) -> None:
        import torch

        from kvledger.runtime import _products

        super().__init__(model)
        self._kernel = _products
        self._team = Team(torch.get_num_threads())

    def multiply(self, *layers: Any) -> Product:
        """Return the product of rows with a layer, or with several, their answers one after the other."""
        import torch

        if layers not in self._made:
            self._made[layers] = self._lay_out(torch.cat([layer.weight.detach() for layer in layers]))
        panels, outputs = self._made[layers], sum(layer.out_features for layer in layers)
        biases = [layer.bias for layer in layers if layer.bias is not None]

        def multiply(x: torch.Tensor) -> torch.Tensor:
            bias = None if not biases else biases[0] if len(biases) == 1 else torch.cat(biases)
            return self._run(x, panels, outputs, bias, self._kernel.PLAIN)

        return multiply

    def gate(self, gate: Any, content: Any, activation: str) -> Product:
        """Return the product with ``content``, gated by that with ``gate``, neither of which has a bias.

        ``activation``: ``silu``, or ``gelu``, which is the one by hyperbolic tangent.
        """
        import torch

        lanes, key = self._kernel.LANES, (gate, content, activation)
        outputs = gate.out_features
        if key not in self._made:
            padded = -(-outputs // lanes) * lanes
            both = [gate.weight.new_zeros(padded, gate.in_features) for _ in range(2)]
            for rows, layer in zip(both, (gate, content), strict=True):
                rows[:outputs] = layer.weight.detach()
            together = torch.stack([rows.view(-1, lanes, gate.in_features) for rows in both], 1)
            self._made[key] = self._lay_out(together.reshape(2 * padded, gate.in_features))
        panels = self._made[key]
        kind = self._kernel.SILU if activation == "silu" else self._kernel.GELU
        return lambda x: self._run(x, panels, outputs, None, kind)

    def _lay_out(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight (outputs, inputs) in panels (panels, inputs, outputs of a panel), the last filled up."""
        outputs, inputs = weight.shape
        wide = self._kernel.WIDE
        count = -(-outputs // wide)
        padded = weight.new_zeros(count * wide, inputs)
        padded[:outputs] = weight
        return padded.view(count, wide, inputs).transpose(1, 2).contiguous()

    def _run(
        self, x: torch.Tensor, panels: torch.Tensor, outputs: int, bias: torch.Tensor | None, kind: int
    ) -> torch.Tensor:
        count, inputs, _ = panels.shape
        x = x.contiguous()
        rows = x.numel() // inputs
        out = x.new_empty(*x.shape[:-1], outputs)
        scratch = x.new_empty(self._team.threads * self._kernel.count_scratch())
        step = max(1, min(_PANELS_AT_A_TIME, count // (4 * self._team.threads)))
        for first in range(0, rows, _ROWS_AT_A_TIME):
            self._team.run(
                self._kernel.multiply, min(_ROWS_AT_A_TIME, rows - first), inputs, outputs, count, step, kind,
                bias is not None, x.data_ptr() + 4 * first * inputs, panels.data_ptr(),
                0 if bias is None else bias.data_ptr(), scratch.data_ptr(), out.data_ptr() + 4 * first * outputs,
                numbers=panels.numel(),
            )  # fmt: skip
        return out
