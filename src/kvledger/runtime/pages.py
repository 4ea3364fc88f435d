"""The real tensors: blocks of keys and values, preallocated, and their copies in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import CapacityError
from kvledger.runtime.layout import Layout

if TYPE_CHECKING:
    import torch

__all__ = ["Pages"]


class Pages:
    """The memory of a pool: ``kv``: (tensors, 2, blocks, block_size, kv_heads, head_size), in the model's dtype.

    Tensor ``i`` holds the i-th layer of every group; keys come first, then values.
    """

    def __init__(self, layout: Layout, *, blocks: int, device: Any, swap_bytes: int = 0) -> None:
        import torch

        shape = layout.shape
        block_size = layout.groups.groups[0].block_tokens
        sizes = (layout.tensors, 2, blocks, block_size, shape.kv_heads, shape.head_size)
        try:
            self.kv = torch.empty(sizes, dtype=getattr(torch, shape.dtype), device=device).zero_()  # every page taken
        except (RuntimeError, MemoryError) as error:
            raise CapacityError(
                f"a KV cache of {layout.groups.block_bytes * blocks} bytes could not be allocated on {device}: {error}",
                hint="give a smaller kv_memory",
            ) from None
        self.block_size = block_size
        self.block_bytes = layout.groups.block_bytes
        self.swap_bytes = swap_bytes
        self.swapped_bytes = 0
        flat = self.kv.view(layout.tensors, 2, blocks * block_size, shape.kv_heads, shape.head_size)
        self._flat = [(flat[i, 0], flat[i, 1]) for i in range(layout.tensors)]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return int(self.kv.nbytes)

    def tokens_of(self, tensor: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of one tensor by place: both (blocks * block_size, kv_heads, head_size), views."""
        return self._flat[tensor]

    def copy_blocks(self, pairs: NDArray[np.int64]) -> None:
        """Copy blocks within the pool (mutates)."""
        import torch

        sources, targets = torch.from_numpy(pairs).to(self.kv.device).unbind(1)
        self.kv[:, :, targets] = self.kv[:, :, sources]

    def save_blocks(self, blocks: NDArray[np.int32]) -> torch.Tensor | None:
        """Return a copy of blocks in host memory; None when `swap_bytes` has no room for it."""
        import torch

        needed = len(blocks) * self.block_bytes
        if self.swapped_bytes + needed > self.swap_bytes:
            return None
        self.swapped_bytes += needed
        return self.kv[:, :, torch.from_numpy(blocks.astype(np.int64)).to(self.kv.device)].cpu()

    def load_blocks(self, content: torch.Tensor, blocks: NDArray[np.int32]) -> None:
        """Write saved blocks back (mutates), and count their host memory as free."""
        import torch

        self.kv[:, :, torch.from_numpy(blocks.astype(np.int64)).to(self.kv.device)] = content.to(self.kv.device)
        self.drop(content)

    def drop(self, content: torch.Tensor) -> None:
        """Count the host memory of saved blocks as free."""
        self.swapped_bytes -= content.nbytes
