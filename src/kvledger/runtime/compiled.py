"""Attention over block tables on a CPU, through compiled kernels that read the blocks in place."""

from __future__ import annotations

from itertools import filterfalse
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.runtime.gather import Gather, attend_causally
from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.pages import Pages
from kvledger.runtime.tables import BlockTables
from kvledger.runtime.team import Team, address_of

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner
    from kvledger.runtime.batch import Batch, Chunk

__all__ = ["Compiled"]

_ROWS_OF_A_THREAD = 2
"""With fewer rows than these for each thread, a row is cut into parts, one for each key-value head."""
_LONG_TOKENS = 512
"""Prompts longer than this go through PyTorch's attention, whose products of large matrices are faster."""
_TURNS_OF_A_THREAD = 4
"""Times a thread goes back for more rows to turn."""


class Compiled(Gather):
    """Reads the blocks in place: one kernel for rows that decode, another for chunks of prompts."""

    team: Team

    def __init__(self, layout: Layout, pages: Pages, tables: BlockTables, *, threads: int) -> None:
        import torch

        from kvledger.runtime import _chunks, _decode, _rows

        super().__init__(layout, pages, tables)
        kernels = {
            torch.float32: (_decode.attend_float32, _chunks.attend_float32),
            torch.bfloat16: (_decode.attend_bfloat16, _chunks.attend_bfloat16),
        }
        dtype = pages.kv.dtype
        if dtype not in kernels or pages.kv.device.type != "cpu":
            raise UsageError(
                f"the compiled kernels read float32 and bfloat16 on a CPU, not {layout.shape.dtype} on "
                f"{pages.kv.device.type}",
                hint="use attention=Attention.GATHER",
            )
        self._decoding, self._prefilling = kernels[dtype]
        self._turning = _rows.turn
        self.joins = dtype == torch.float32
        self.team = Team(threads)
        pairs = [pages.tokens_of(i) for i in range(layout.tensors)]
        self._places = len(pairs[0][0])
        self._addresses = [(keys.data_ptr(), values.data_ptr()) for keys, values in pairs]
        self._sizes = {layer.index: self._sizes_of(layer) for layer in layout.layers.values()}
        self._lies = {layer.index: self._lies_of(layer) for layer in layout.layers.values()}
        self._longest = tables.arrays.blocks.shape[2] * pages.block_size
        heads = max(layer.query_heads for layer in layout.layers.values())
        self._scratch_numbers = max(
            _decode.count_scratch(heads, self._longest),
            _chunks.count_scratch(layout.shape.head_size, heads // layout.shape.kv_heads),
        )
        self._scratch_numbers += -self._scratch_numbers % 16  # a cache line
        self._scratch = torch.empty(self.team.threads, self._scratch_numbers, dtype=torch.float32, device="cpu")
        self._tile_rows = _chunks.TILE_ROWS
        self._tiled: tuple[Batch | None, NDArray[np.int64]] = (None, np.zeros((0, 4), np.int64))

    def close(self) -> None:
        """Let threads of its own end (mutates)."""
        self.team.close()

    def attend_joined(
        self, batch: Batch, layer: Layer, joined: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], manner: Manner
    ) -> torch.Tensor:
        """Turn queries and keys, store keys and values (mutates), and return the answer: (1, rows, heads * head_size).

        ``joined``: (1, rows, numbers of all heads), queries, keys and values of all heads. ``turns``: cosines and
        sines of the rotary embedding, (1, rows, head_size) each. All are float32.
        """
        heads, kv_heads, size = layer.query_heads, layer.shape.kv_heads, layer.shape.head_size
        rows = joined.shape[1]
        queries = joined.new_empty(rows, heads, size)
        cosines, sines = turns[0].contiguous(), turns[1].contiguous()
        self.team.run(
            self._turning, rows, heads, kv_heads, size, self._places,
            max(1, rows // (self.team.threads * _TURNS_OF_A_THREAD)),
            joined.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
            batch.places[self.layout.group_of[layer.index]].data_ptr(),
            *self._addresses[self.layout.tensor_of[layer.index]], queries.data_ptr(),
            numbers=joined.numel(),
        )  # fmt: skip
        return self._read(batch, layer, queries, manner).view(1, rows, heads * size)

    def answer(
        self, batch: Batch, layer: Layer, query: torch.Tensor, _key: Any, _value: Any, manner: Manner
    ) -> torch.Tensor:
        """Return the answer, (1, rows, heads, head_size), once keys and values are in their blocks."""
        import torch

        queries = query[0].transpose(0, 1).to(torch.float32).contiguous()
        return self._read(batch, layer, queries, manner).to(query.dtype)[None]

    def _read(self, batch: Batch, layer: Layer, queries: torch.Tensor, manner: Manner) -> torch.Tensor:
        """Return the answer to queries, both (rows, heads, head_size) float32."""
        import torch

        out = torch.empty_like(queries)
        bent, sinks = np.array([manner.scale, manner.softcap], np.float32), _sinks_of(manner)
        if len(batch.decodes):
            self._decode_rows(batch, layer, queries, bent, sinks, out)
        if batch.chunks:
            self._attend_chunks(batch, layer, queries, manner, bent, sinks, out)
        return out

    def _decode_rows(
        self, batch: Batch, layer: Layer, queries: torch.Tensor, bent: Any, sinks: Any, out: torch.Tensor
    ) -> None:
        rows, kv_heads = len(batch.decodes), layer.shape.kv_heads
        parts = 1 if rows >= _ROWS_OF_A_THREAD * self.team.threads else kv_heads
        self.team.run(
            self._decoding, rows, *self._sizes[layer.index], self._longest, len(sinks), parts, self._scratch_numbers,
            queries.data_ptr(), *self._lies[layer.index], *batch.decodes.addresses, address_of(bent), address_of(sinks),
            self._scratch.data_ptr(), out.data_ptr(),
            numbers=batch.decodes.read_tokens * layer.shape.token_bytes // 4,
        )  # fmt: skip

    def _attend_chunks(
        self,
        batch: Batch,
        layer: Layer,
        queries: torch.Tensor,
        manner: Manner,
        bent: Any,
        sinks: Any,
        out: torch.Tensor,
    ) -> None:
        for chunk in filter(_is_long, batch.chunks):
            rows = slice(chunk.row, chunk.row + chunk.tokens)
            asked = queries[rows].transpose(0, 1)[None].to(self.pages.kv.dtype)
            own = self._gather(layer, chunk, layer.window_tokens)
            out[rows] = attend_causally(asked, *own, manner)[0].transpose(0, 1)
        tiles = self._tiles_of(batch)
        if not len(tiles):
            return
        self.team.run(
            self._prefilling, len(tiles), *self._sizes[layer.index], len(sinks), self._scratch_numbers,
            queries.data_ptr(), *self._lies[layer.index], address_of(tiles), address_of(bent), address_of(sinks),
            self._scratch.data_ptr(), out.data_ptr(),
            numbers=queries.numel() * self.pages.block_size,
        )  # fmt: skip

    def _sizes_of(self, layer: Layer) -> tuple[int, ...]:
        """Return heads, key-value heads, size, numbers of keys, elements between tables, block size and window."""
        numbers = self._places * layer.shape.kv_heads * layer.shape.head_size
        return (
            layer.query_heads, layer.shape.kv_heads, layer.shape.head_size, numbers,
            self.tables.arrays.blocks.strides[0] // 4, self.pages.block_size, layer.window_tokens or 0,
        )  # fmt: skip

    def _lies_of(self, layer: Layer) -> tuple[int, int, int]:
        """Return where keys, values and the first table lie."""
        blocks = self.tables.arrays.blocks
        table = address_of(blocks) + self.layout.group_of[layer.index] * blocks.strides[1]
        return (*self._addresses[self.layout.tensor_of[layer.index]], table)

    def _tiles_of(self, batch: Batch) -> NDArray[np.int64]:
        """Return the tiles of a step's chunks: their first row, rows, the position of the first, and the slot."""
        if self._tiled[0] is not batch:
            tiles = [
                (chunk.row + at, min(self._tile_rows, chunk.tokens - at), chunk.start + at, chunk.slot)
                for chunk in filterfalse(_is_long, batch.chunks)
                for at in range(0, chunk.tokens, self._tile_rows)
            ]
            self._tiled = batch, np.array(tiles, np.int64).reshape(-1, 4)
        return self._tiled[1]


def _is_long(chunk: Chunk) -> bool:
    return chunk.start == 0 and chunk.tokens > _LONG_TOKENS


def _sinks_of(manner: Manner) -> NDArray[np.float32]:
    """Return the sinks of a layer, (heads,), or an empty array."""
    return np.zeros(0, np.float32) if manner.sinks is None else manner.sinks.detach().float().numpy()
