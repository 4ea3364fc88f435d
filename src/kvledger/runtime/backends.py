"""Ways to compute attention over block tables: the reference by gathering, and the compiled kernel of a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvledger.errors import UsageError
from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.options import Attention
from kvledger.runtime.pages import Pages
from kvledger.runtime.tables import BlockTables

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.batch import Batch, Chunk

__all__ = ["Backend", "Compiled", "Gather", "choose_backend"]

_ITEMS_WORTH_A_THREAD = 2**21
"""Numbers to read (keys) above which handing half of them to another thread is worth it."""


class Backend(Protocol):
    """Computes attention for the packed tokens of a step."""

    def attend(
        self, batch: Batch, layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Store keys and values in their blocks (mutates), and return the answer: (1, rows, heads, head_size)."""


class Gather:
    """Gathers the blocks a sequence reads into one tensor, for PyTorch's own attention."""

    def __init__(self, layout: Layout, pages: Pages, tables: BlockTables) -> None:
        self.layout = layout
        self.pages = pages
        self.tables = tables

    def attend(
        self, batch: Batch, layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Store keys and values in their blocks (mutates), and return the answer: (1, rows, heads, head_size)."""
        import torch

        keys, values = self.pages.tokens_of(self.layout.tensor_of[layer.index])
        group = self.layout.group_of[layer.index]
        places = batch.places[group]
        keys.index_copy_(0, places, key[0].transpose(0, 1))
        values.index_copy_(0, places, value[0].transpose(0, 1))
        answer = torch.empty(query.shape[2], query.shape[1], query.shape[3], dtype=query.dtype, device=query.device)
        self._decode(batch, layer, query, scale, answer)
        for chunk in batch.chunks:
            rows = slice(chunk.row, chunk.row + chunk.tokens)
            if chunk.start == 0:
                own_keys, own_values = key[:, :, rows], value[:, :, rows]
            else:
                own_keys, own_values = self._gather(keys, values, group, chunk, layer.window_tokens)
            attended = _attend(query[:, :, rows], own_keys, own_values, layer.window_tokens, scale)
            answer[rows] = attended[0].transpose(0, 1)
        return answer[None]

    def _decode(self, batch: Batch, layer: Layer, query: torch.Tensor, scale: float, answer: torch.Tensor) -> None:
        """Answer the rows with one token, by gathering each as a chunk."""
        from kvledger.runtime.batch import Chunk

        keys, values = self.pages.tokens_of(self.layout.tensor_of[layer.index])
        group = self.layout.group_of[layer.index]
        for row, (slot, length) in enumerate(zip(batch.decodes.slots, batch.decodes.lengths, strict=True)):
            chunk = Chunk(row=row, start=int(length) - 1, tokens=1, slot=int(slot))
            own = self._gather(keys, values, group, chunk, layer.window_tokens)
            attended = _attend(query[:, :, row : row + 1], *own, layer.window_tokens, scale)
            answer[row : row + 1] = attended[0].transpose(0, 1)

    def _gather(
        self, keys: torch.Tensor, values: torch.Tensor, group: int, chunk: Chunk, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values a chunk can reach: (1, kv_heads, tokens, head_size) each."""
        import torch

        block = self.pages.block_size
        first = max(0, chunk.start - window + 1) if window else 0
        begin = first // block
        entries = self.tables.arrays.blocks[chunk.slot, group, begin : -(-chunk.end // block)]
        places = (entries[:, None].astype(np.int64) * block + np.arange(block)).reshape(-1)
        wanted = torch.from_numpy(places[first - begin * block : chunk.end - begin * block]).to(keys.device)
        return keys[wanted].transpose(0, 1)[None], values[wanted].transpose(0, 1)[None]


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, scale: float
) -> torch.Tensor:
    """Return causal attention where the last query row stands at the last key, within a window."""
    import torch

    rows, tokens = query.shape[2], key.shape[2]
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (
            x[:, :, None].expand(-1, -1, shared, -1, -1).reshape(1, query.shape[1], tokens, -1) for x in (key, value)
        )
    mask = None
    causal = rows == tokens and rows > 1 and (window is None or tokens <= window)
    if not causal and rows > 1:
        at = torch.arange(tokens - rows, tokens, device=query.device)[:, None]
        read = torch.arange(tokens, device=query.device)[None]
        mask = read <= at
        if window is not None:
            mask = mask & (read > at - window)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale
    )


class Compiled(Gather):
    """Decodes through a compiled kernel that reads the blocks in place; prompts go through PyTorch's attention."""

    def __init__(self, layout: Layout, pages: Pages, tables: BlockTables, *, threads: int) -> None:
        import torch

        from kvledger.runtime import _decode

        super().__init__(layout, pages, tables)
        kernels = {torch.float32: _decode.attend_float32, torch.bfloat16: _decode.attend_bfloat16}
        dtype = pages.kv.dtype
        if dtype not in kernels or pages.kv.device.type != "cpu":
            raise UsageError(
                f"the compiled kernel reads float32 and bfloat16 on a CPU, not {layout.shape.dtype} on "
                f"{pages.kv.device.type}",
                hint="use attention=Attention.GATHER",
            )
        self._kernel = kernels[dtype]
        self._arrays = [tuple(_as_array(x) for x in pages.tokens_of(i)) for i in range(layout.tensors)]
        self._tables = [tables.arrays.blocks[:, group] for group in range(len(layout.groups.groups))]
        self._spans = {
            layer.index: np.array([pages.block_size, layer.window_tokens or 0], np.int64)
            for layer in layout.layers.values()
        }
        most_heads = max(layer.query_heads // layer.shape.kv_heads for layer in layout.layers.values())
        longest = tables.arrays.blocks.shape[2] * pages.block_size
        self._scores = np.empty((max(1, threads), most_heads, longest), np.float32)
        self._workers = ThreadPoolExecutor(threads - 1, "kvledger-attention") if threads > 1 else None

    def _decode(self, batch: Batch, layer: Layer, query: torch.Tensor, scale: float, answer: torch.Tensor) -> None:
        import torch

        rows = len(batch.decodes)
        if rows == 0:
            return
        asked = query[0, :, :rows].transpose(0, 1).to(torch.float32).contiguous()
        out = answer[:rows] if answer.dtype == torch.float32 else torch.empty_like(asked)
        keys, values = self._arrays[self.layout.tensor_of[layer.index]]
        arguments = (
            asked.numpy(), keys, values, self._tables[self.layout.group_of[layer.index]], batch.decodes.slots,
            batch.decodes.lengths, self._spans[layer.index], np.float32(scale),
        )  # fmt: skip
        items = rows * layer.shape.kv_heads
        self._share_out(arguments, out.numpy(), items, int(batch.decodes.lengths.sum()) * layer.shape.token_bytes // 8)
        if out.dtype != answer.dtype:
            answer[:rows] = out

    def _share_out(self, arguments: tuple[Any, ...], out: Any, items: int, numbers: int) -> None:
        """Run all items, on several threads where that is worth it."""
        parts = len(self._scores) if numbers > _ITEMS_WORTH_A_THREAD else 1
        cuts = [items * i // parts for i in range(parts + 1)]

        def run(part: int) -> None:
            self._kernel(*arguments, self._scores[part], out, cuts[part], cuts[part + 1])

        waits = [self._workers.submit(run, part) for part in range(1, parts)] if self._workers else []
        run(0)
        for wait in waits:
            wait.result()


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor as an array: bfloat16 as 16-bit integers."""
    import torch

    return tensor.numpy() if tensor.dtype == torch.float32 else tensor.view(torch.uint16).numpy()


def choose_backend(attention: Attention, layout: Layout, pages: Pages, tables: BlockTables) -> Backend:
    """Return the way of computing attention that was asked for, or the best there is.

    Raises:
        UsageError: It cannot serve this device or these numbers.
    """
    import torch

    kind, dtype = pages.kv.device.type, layout.shape.dtype
    if attention is Attention.AUTO:
        attention = Attention.COMPILED if kind == "cpu" and dtype != "float16" else Attention.GATHER
    match attention:
        case Attention.COMPILED:
            return Compiled(layout, pages, tables, threads=torch.get_num_threads())
        case Attention.GATHER:
            return Gather(layout, pages, tables)
        case _:
            raise UsageError(f"attention `{attention}` is not there on {kind}")
