"""The reference of attention over block tables: blocks are gathered for PyTorch's own attention, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.pages import Pages
from kvledger.runtime.tables import BlockTables

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner
    from kvledger.runtime.batch import Batch, Chunk

__all__ = ["Gather", "attend_causally"]


class Gather:
    """Gathers the blocks a sequence reads into one tensor, for PyTorch's own attention."""

    joins = False
    team: Any = None

    def __init__(self, layout: Layout, pages: Pages, tables: BlockTables) -> None:
        self.layout = layout
        self.pages = pages
        self.tables = tables

    def attend(
        self, batch: Batch, layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Store keys and values in their blocks (mutates), and return the answer: (1, rows, heads, head_size)."""
        self.store(batch, layer, key, value)
        return self.answer(batch, layer, query, key, value, manner)

    def attend_joined(
        self, batch: Batch, layer: Layer, joined: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], manner: Manner
    ) -> torch.Tensor:
        """Nothing is joined here: ``joins`` says so."""
        raise NotImplementedError

    def answer(
        self, batch: Batch, layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Return the answer, (1, rows, heads, head_size), once keys and values are in their blocks."""
        import torch

        answer = torch.empty(query.shape[2], query.shape[1], query.shape[3], dtype=query.dtype, device=query.device)
        self._decode(batch, layer, query, manner, answer)
        for chunk in batch.chunks:
            rows = slice(chunk.row, chunk.row + chunk.tokens)
            if chunk.start == 0:
                own_keys, own_values = key[:, :, rows], value[:, :, rows]
            else:
                own_keys, own_values = self._gather(layer, chunk, manner.window_tokens)
            attended = attend_causally(query[:, :, rows], own_keys, own_values, manner)
            answer[rows] = attended[0].transpose(0, 1)
        return answer[None]

    def store(self, batch: Batch, layer: Layer, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store the keys and values of every row in its block (mutates)."""
        keys, values = self.pages.tokens_of(self.layout.tensor_of[layer.index])
        places = batch.places[self.layout.group_of[layer.index]]
        keys.index_copy_(0, places, key[0].transpose(0, 1))
        values.index_copy_(0, places, value[0].transpose(0, 1))

    def close(self) -> None:
        """Let go of nothing."""

    def _decode(self, batch: Batch, layer: Layer, query: torch.Tensor, manner: Manner, answer: torch.Tensor) -> None:
        """Answer the rows with one token, by gathering each as a chunk."""
        from kvledger.runtime.batch import Chunk

        for row, (slot, length) in enumerate(zip(batch.decodes.slots, batch.decodes.lengths, strict=True)):
            chunk = Chunk(row=row, start=int(length) - 1, tokens=1, slot=int(slot))
            own = self._gather(layer, chunk, manner.window_tokens)
            attended = attend_causally(query[:, :, row : row + 1], *own, manner)
            answer[row : row + 1] = attended[0].transpose(0, 1)

    def _gather(self, layer: Layer, chunk: Chunk, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values a chunk can reach: (1, kv_heads, tokens, head_size) each."""
        import torch

        keys, values = self.pages.tokens_of(self.layout.tensor_of[layer.index])
        group = self.layout.group_of[layer.index]
        block = self.pages.block_size
        first = max(0, chunk.start - window + 1) if window else 0
        begin = first // block
        entries = self.tables.arrays.blocks[chunk.slot, group, begin : -(-chunk.end // block)]
        places = (entries[:, None].astype(np.int64) * block + np.arange(block)).reshape(-1)
        wanted = torch.from_numpy(places[first - begin * block : chunk.end - begin * block]).to(keys.device)
        return keys[wanted].transpose(0, 1)[None], values[wanted].transpose(0, 1)[None]


def attend_causally(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner) -> torch.Tensor:
    """Return causal attention where the last query row stands at the last key: (1, heads, rows, head_size)."""
    import torch

    rows, tokens = query.shape[2], key.shape[2]
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (
            x[:, :, None].expand(-1, -1, shared, -1, -1).reshape(1, query.shape[1], tokens, -1) for x in (key, value)
        )
    window = manner.window_tokens
    causal = rows == tokens and rows > 1 and (window is None or tokens <= window)
    if manner.softcap or manner.sinks is not None:
        return _attend_at_length(query, key, value, manner)
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if causal or rows == 1 else _mask(rows, tokens, window, query.device),
        is_causal=causal,
        scale=manner.scale,
    )


def _mask(rows: int, tokens: int, window: int | None, device: Any) -> torch.Tensor:
    """Return which tokens each row reads: (rows, tokens) bool."""
    import torch

    at = torch.arange(tokens - rows, tokens, device=device)[:, None]
    read = torch.arange(tokens, device=device)[None]
    mask = read <= at
    return mask if window is None else mask & (read > at - window)


def _attend_at_length(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner) -> torch.Tensor:
    """Return attention whose scores are bent or have sinks, which PyTorch's own attention cannot do."""
    import torch

    scores = torch.matmul(query, key.transpose(2, 3)).float() * manner.scale
    if manner.softcap:
        scores = torch.tanh(scores / manner.softcap) * manner.softcap
    mask = _mask(query.shape[2], key.shape[2], manner.window_tokens, query.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    if manner.sinks is not None:
        sinks = manner.sinks.float()[None, :, None, None].expand(1, -1, query.shape[2], 1)
        scores = torch.cat([scores, sinks], dim=3)
    weights = torch.softmax(scores, dim=3)[..., : key.shape[2]].to(value.dtype)
    return torch.matmul(weights, value)
