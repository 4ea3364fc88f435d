"""Choosing the next token from logits: the likeliest, or one drawn as a request asks; and how likely it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvledger.runtime.answers import Likelihood
from kvledger.runtime.options import Generation

if TYPE_CHECKING:
    import torch

__all__ = ["Drawer", "draw_token", "find_likelihood", "forbid_tokens"]


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

    chances = torch.softmax((logits.double() - float(logits.max())) / generation.temperature, 0)
    order = None
    if generation.top_k and generation.top_k < len(chances):
        chances, order = torch.topk(chances, generation.top_k)
        chances = chances / chances.sum()
    elif generation.top_p < 1:
        chances, order = _sort_as_far_as(chances, generation.top_p)
    sums = torch.cumsum(chances, 0)
    if generation.top_p < 1:
        sums = sums[: int(torch.searchsorted(sums, generation.top_p)) + 1]
    at = int(torch.searchsorted(sums, drawer.draw() * float(sums[-1]), right=True))
    at = min(at, len(sums) - 1)
    return at if order is None else int(order[at])


def forbid_tokens(logits: torch.Tensor, tokens: frozenset[int]) -> torch.Tensor:
    """Return a copy of ``logits``, (vocabulary,), by which none of these tokens can come."""
    import torch

    known = [token for token in tokens if 0 <= token < len(logits)]
    with torch.inference_mode():
        return logits.index_fill(0, torch.tensor(known, dtype=torch.int64, device=logits.device), float("-inf"))


def find_likelihood(logits: torch.Tensor, token: int, most: int) -> Likelihood:
    """Return how likely ``token`` was by ``logits``, (vocabulary,), and the ``most`` likeliest tokens.

    As vLLM 0.32 counts them: of the raw logits (``logprobs_mode`` ``raw_logprobs``), the rank by how many are above.
    """
    import torch

    logprobs = torch.log_softmax(logits.float(), 0)
    own = logprobs[token]
    values, tokens = torch.topk(logprobs, min(most, len(logprobs)))
    return Likelihood(
        logprob=float(own),
        rank=int((logprobs > own).sum()) + 1,
        top=tuple(zip(tokens.tolist(), values.tolist(), strict=True)),
    )


def _sort_as_far_as(chances: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the likeliest tokens first, as many as surely reach ``top_p``: a whole vocabulary takes long to sort."""
    import torch

    for most in (2**7, 2**11):
        if most < len(chances):
            best, order = torch.topk(chances, most)
            if float(best.sum()) > top_p:
                return best, order
    best, order = torch.sort(chances, descending=True)
    return best, order
