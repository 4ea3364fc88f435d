"""Attention over block tables on CUDA, through the paged kernels of FlashInfer.

One ragged call a layer serves prompts and decoding alike. FlashInfer plans a call for all layers that share a table and
a manner; the signatures are those of 0.7.4. Not run on a GPU here: the tests run it against a stand-in that computes
what FlashInfer's documentation says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvledger.errors import MissingExtra, UsageError
from kvledger.runtime.gather import Gather
from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.pages import Pages
from kvledger.runtime.tables import BlockTables

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner
    from kvledger.runtime.batch import Batch

__all__ = ["FlashInfer"]

_WORKSPACE_BYTES = 128 * 2**20


class FlashInfer(Gather):
    """Reads and computes through FlashInfer; layers with sinks, which it does not take here, are gathered.

    Raises:
        MissingExtra: FlashInfer is not installed.
        UsageError: The cache is not in half precision on CUDA.
    """

    def __init__(self, layout: Layout, pages: Pages, tables: BlockTables) -> None:
        import torch

        super().__init__(layout, pages, tables)
        try:
            import flashinfer
        except ImportError:
            raise MissingExtra.for_package("flashinfer-python", extra="flashinfer") from None
        if pages.kv.device.type != "cuda" or layout.shape.dtype == "float32":
            raise UsageError(
                f"FlashInfer serves float16 and bfloat16 on CUDA, not {layout.shape.dtype} on {pages.kv.device.type}",
                hint="use attention=Attention.GATHER",
            )
        self._make = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=pages.kv.device)
        self._planned: dict[tuple[Any, ...], tuple[Batch | None, Any]] = {}

    def attend(
        self, batch: Batch, layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Store keys and values in their blocks (mutates), and return the answer: (1, rows, heads, head_size)."""
        if manner.sinks is not None:
            return super().attend(batch, layer, query, key, value, manner)
        self.store(batch, layer, key, value)
        pages = self.pages.kv[self.layout.tensor_of[layer.index]]
        answer: torch.Tensor = self._plan(batch, layer, query.dtype, manner).run(
            query[0].transpose(0, 1).contiguous(), (pages[0], pages[1])
        )
        return answer[None]

    def _plan(self, batch: Batch, layer: Layer, dtype: torch.dtype, manner: Manner) -> Any:
        """Return a call that is planned for this step and for layers like this one."""
        group = self.layout.group_of[layer.index]
        kind = (group, layer.query_heads, manner.scale, manner.softcap, manner.window_tokens)
        planned, call = self._planned.get(kind, (None, None))
        if call is None:
            call = self._make(self._workspace, "NHD")
        if planned is not batch:
            rows, pages, blocks, last = (self._on_device(x) for x in self._lay_out(batch, group, manner.window_tokens))
            call.plan(
                rows,
                pages,
                blocks,
                last,
                layer.query_heads,
                layer.shape.kv_heads,
                layer.shape.head_size,
                self.pages.block_size,
                causal=True,
                sm_scale=manner.scale,
                window_left=-1 if manner.window_tokens is None else manner.window_tokens - 1,
                logits_soft_cap=manner.softcap or None,
                q_data_type=dtype,
                kv_data_type=self.pages.kv.dtype,
            )
            self._planned[kind] = batch, call
        return call

    def _lay_out(self, batch: Batch, group: int, window: int | None) -> tuple[Any, ...]:
        """Return, by sequence, where its rows and its blocks begin, the blocks, and the tokens in its last one.

        Blocks behind the window of a sequence's first row are left out: rows and tokens are aligned at their ends.
        """
        block = self.pages.block_size
        spans = [(int(slot), int(end) - 1, int(end)) for slot, end in zip(*batch.decodes.columns, strict=True)]
        spans += [(chunk.slot, chunk.start, chunk.end) for chunk in batch.chunks]
        tables = []
        for slot, start, end in spans:
            begin = max(0, start - window + 1) // block if window else 0
            tables.append(self.tables.arrays.blocks[slot, group, begin : -(-end // block)])
        rows = np.cumsum([0, *(end - start for _, start, end in spans)])
        pages = np.cumsum([0, *map(len, tables)])
        last = [(end - 1) % block + 1 for _, _, end in spans]
        return rows, pages, np.concatenate(tables), np.array(last)

    def _on_device(self, numbers: Any) -> torch.Tensor:
        import torch

        return torch.from_numpy(numbers.astype(np.int32)).to(self.pages.kv.device)
