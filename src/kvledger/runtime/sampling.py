"""Choosing the next token from logits: the likeliest, or one drawn as a request asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvledger.runtime.options import Generation

if TYPE_CHECKING:
    import torch

__all__ = ["Drawer", "draw_token"]


class Drawer:
    """The random numbers of one answer: the same seed gives the same answer, whatever else is in a batch."""

    def __init__(self, seed: int | None, sample: int) -> None:
        self._source = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(sample,))))

    def draw(self) -> float:
        """Return the next number from 0 to below 1 (mutates)."""
        return float(self._source.random())


def draw_token(logits: torch.Tensor, generation: Generation, drawer: Drawer) -> int:
    """Return a token drawn from ``logits``, (vocabulary,): temperature first, then top-k, then top-p.

    The likeliest token is always kept. The order is that of vLLM 0.32 (``v1/sample/ops/topk_topp_sampler.py``).
    """
    import torch

    scaled = logits.double() / generation.temperature
    if generation.top_k and generation.top_k < len(scaled):
        kept = torch.topk(scaled, generation.top_k)
        chances, order = torch.softmax(kept.values, 0), kept.indices
    else:
        chances, order = torch.sort(torch.softmax(scaled, 0), descending=True)
    sums = torch.cumsum(chances, 0)
    if generation.top_p < 1:
        last = int(torch.searchsorted(sums, generation.top_p)) + 1
        sums = sums[:last]
    at = int(torch.searchsorted(sums, drawer.draw() * float(sums[-1]), right=True))
    return int(order[min(at, len(sums) - 1)])
