"""Attention over block tables on a CPU: decoding reads the blocks in place, through a compiled kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from kvledger.errors import UsageError
from kvledger.runtime.gather import Gather
from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.pages import Pages
from kvledger.runtime.tables import BlockTables

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner
    from kvledger.runtime.batch import Batch

__all__ = ["Compiled"]

_ITEMS_WORTH_A_THREAD = 2**21
"""Numbers to read (keys) above which handing half of them to another thread is worth it."""


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

    def close(self) -> None:
        """Let the other threads end (mutates)."""
        if self._workers:
            self._workers.shutdown()

    def _decode(self, batch: Batch, layer: Layer, query: torch.Tensor, manner: Manner, answer: torch.Tensor) -> None:
        import torch

        rows = len(batch.decodes)
        if rows == 0:
            return
        asked = query[0, :, :rows].transpose(0, 1).to(torch.float32).contiguous()
        out = answer[:rows] if answer.dtype == torch.float32 else torch.empty_like(asked)
        keys, values = self._arrays[self.layout.tensor_of[layer.index]]
        arguments = (
            asked.numpy(), keys, values, self._tables[self.layout.group_of[layer.index]], batch.decodes.slots,
            batch.decodes.lengths, self._spans[layer.index], np.array([manner.scale, manner.softcap], np.float32),
            _sinks_of(manner),
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


def _sinks_of(manner: Manner) -> Any:
    """Return the sinks of a layer, (heads,) float32, or an empty array."""
    return np.zeros(0, np.float32) if manner.sinks is None else manner.sinks.detach().float().numpy()


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the memory of a tensor as an array: bfloat16 as 16-bit integers."""
    import torch

    return tensor.numpy() if tensor.dtype == torch.float32 else tensor.view(torch.uint16).numpy()
