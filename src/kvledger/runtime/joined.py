"""Self-attention whose queries, keys and values are one product, turned and stored by one kernel.

Llama and its kin multiply a row by three weights, turn queries and keys by a rotary embedding, and hand them to
attention: some twenty operators, each too small for a few rows to be worth its call. A layer is recognised by the names
of its parts, and taken only when, on random rows, it hands the same to attention and makes the same of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kvledger.runtime.attention import BATCH, Manner
from kvledger.runtime.swap import Forward, Way, is_alike, try_once

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.linear import Products

__all__ = ["find_joined"]

_INNER = ("q_proj", "k_proj", "v_proj")
_PARTS = frozenset({*_INNER, "o_proj"})
_ROWS = 3


def find_joined(model: Any, linears: set[Any], products: Products) -> list[Way]:
    """Return the attention layers that can go this way, whose parts are all among ``linears``; each is tried.

    The model must attend over block tables when it is given a batch.
    """
    ways = []
    for layer in filter(lambda layer: _may_be(layer, linears), model.modules()):
        manner = _find_manner(layer)
        if manner is not None:
            ways.append(Way(layer, partial(_make_forward, layer, manner, products)))
    return ways


def _may_be(layer: Any, linears: set[Any]) -> bool:
    parts = layer._modules
    return (
        parts.keys() == _PARTS
        and not layer._parameters
        and all(part in linears for part in parts.values())
        and len({parts[name].bias is None for name in _INNER}) == 1
        and "forward" not in layer.__dict__
    )


def _make_forward(layer: Any, manner: Manner, products: Products) -> Forward:
    into, out_of = products.multiply(*(layer._modules[name] for name in _INNER)), products.multiply(layer.o_proj)
    plain, size = type(layer).forward, layer.head_dim

    def forward(hidden_states: torch.Tensor, position_embeddings: Any = None, **others: Any) -> Any:
        batch = others.get(BATCH)
        if batch is None or not batch.joins or not _fits(hidden_states, position_embeddings, size):
            return plain(layer, hidden_states, position_embeddings=position_embeddings, **others)
        return out_of(batch.attend_joined(layer, into(hidden_states), position_embeddings, manner)), None

    return forward


def _fits(hidden: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], size: int) -> bool:
    """Whether the kernel can turn these rows: some models turn only a part of each head, and say so by the width."""
    import torch

    due = 1, hidden.shape[1], size
    return hidden.dtype is torch.float32 and all(x.dtype is torch.float32 and x.shape == due for x in turns)


@dataclass(slots=True, eq=False)
class _Watch:
    """Stands in for a batch: notes what a layer hands to attention, and answers with random rows."""

    answer: torch.Tensor
    handed: list[torch.Tensor] = field(default_factory=list)
    manner: Manner | None = None

    def attend(
        self, _module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Note what is handed over, and answer."""
        self.handed = [x[0].transpose(0, 1).reshape(_ROWS, -1) for x in (query, key, value)]
        self.manner = manner
        return self.answer.view(1, _ROWS, -1, query.shape[3])


def _find_manner(layer: Any) -> Manner | None:
    """Return how a layer attends, where it is what this way would compute; else None."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, 1, _ROWS, generator=drawn, dtype=torch.float32, device="cpu")
    hidden = draw(layer.q_proj.in_features)
    watch = _Watch(draw(layer.o_proj.in_features))
    size = getattr(layer, "head_dim", None)
    if not isinstance(size, int) or size < 2 or size % 2:
        return None
    turns = draw(size), draw(size)

    def ask() -> Any:
        mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device="cpu")
        found = layer(hidden_states=hidden, position_embeddings=turns, attention_mask=mask, **{BATCH: watch})
        return found[0] if isinstance(found, tuple) and len(found) == 2 else None

    given = try_once(ask)
    expected = [layer._modules[name](hidden)[0] for name in _INNER]
    expected[:2] = [_turn(x, turns, size) for x in expected[:2]]
    pairs = zip(watch.handed, expected, strict=True) if len(watch.handed) == len(expected) else ()
    same = [is_alike(one, other) for one, other in pairs]
    is_same = len(same) == len(_INNER) and all(same) and is_alike(given, layer.o_proj(watch.answer))
    return watch.manner if is_same else None


def _turn(rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], size: int) -> torch.Tensor:
    import torch

    heads = rows.view(_ROWS, -1, size)
    one, other = heads.chunk(2, dim=2)
    cosines, sines = (x[0, :, None] for x in turns)
    return (heads * cosines + torch.cat([-other, one], dim=2) * sines).reshape(_ROWS, -1)
