"""The paged cache of continuous batching: sectors, and how many of them memory gives.

``generation/continuous_batching/cache.py`` of Transformers 5.24. A *page* holds ``page_size`` tokens of one layer, a
*block* a page of each layer of one attention type, a *sector* a whole number of blocks of every type. A sector belongs
to one attention type at a time; two more sectors take the writes of padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

__all__ = ["BlockGroup", "MemoryModel", "SectorGeometry", "count_storable_requests"]

_ALIGNMENT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """The layers of one attention type."""

    name: str
    layers: int
    page_tokens: int
    page_bytes: int
    window_tokens: int | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of a page of each layer."""
        return self.layers * self.page_bytes

    def count_blocks(self, length_tokens: int) -> int:
        """Return the blocks of a request; a window is a ring of ``ceil(window / page)`` pages."""
        kept = length_tokens if self.window_tokens is None else min(length_tokens, self.window_tokens)
        return -(-kept // self.page_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectorGeometry:
    """Sectors that blocks of every attention type divide."""

    groups: tuple[BlockGroup, ...]

    @property
    def sector_bytes(self) -> int:
        """``lcm(block bytes of every type, 128)``."""
        return lcm(*(group.block_bytes for group in self.groups), _ALIGNMENT)

    def blocks_per_sector(self, group: BlockGroup) -> int:
        """Return how many blocks of one type a sector holds."""
        return self.sector_bytes // group.block_bytes

    @property
    def tokens_per_sector(self) -> int:
        """Tokens of the type that gets most into a sector."""
        return max(self.blocks_per_sector(group) * group.page_tokens for group in self.groups)

    @property
    def model_block_bytes(self) -> int:
        """Bytes of a page of every layer, which ``num_blocks`` counts."""
        return sum(group.block_bytes for group in self.groups)


def count_storable_requests(geometry: SectorGeometry, sectors: int, length_tokens: int) -> int:
    """Return how many requests of one length fit, sharing sectors as ``count_storable_requests`` does there."""
    needs = [(group.count_blocks(length_tokens), geometry.blocks_per_sector(group)) for group in geometry.groups]

    def fits(requests: int) -> bool:
        return sum(-(-requests * blocks // each) for blocks, each in needs) <= sectors

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """What beside the cache has to fit: activations, inputs and attention masks (``PagedAttentionMemoryHandler``)."""

    geometry: SectorGeometry
    hidden_size: int
    vocabulary_size: int
    query_heads: int
    kv_heads: int
    head_size: int
    dtype_bytes: int
    flash: bool
    logits_to_keep: bool
    asynchronous: bool
    logprobs: bool
    max_blocks_per_request: int
    max_requests_per_batch: int

    @property
    def _copies(self) -> int:
        return 2 if self.asynchronous else 1

    @property
    def _types(self) -> int:
        return len(self.geometry.groups)

    @property
    def _peak_heads(self) -> int:
        """Heads of keys and values that live at the attention peak; eager and sdpa repeat them for every query head."""
        return 2 * self.kv_heads if self.flash else 2 * self.query_heads + self.kv_heads

    @property
    def _masks(self) -> int:
        if self.flash:
            return 0
        return 2 if any(group.window_tokens is not None for group in self.geometry.groups) else 1

    @property
    def _head_row_bytes(self) -> int:
        return self.hidden_size * self.dtype_bytes + self.vocabulary_size * 4

    @property
    def batch_token_bytes(self) -> int:
        """Bytes of one token of a batch: the larger activation peak and its share of the inputs."""
        head_peak = 0 if self.logits_to_keep else self._head_row_bytes
        heads = self.query_heads + 2 * self.kv_heads + self._peak_heads
        attention_peak = self.dtype_bytes * (self.hidden_size + heads * self.head_size)
        inputs = 7 * 4 + (2 if self.logprobs else 1) * 4 + self._types * (self.max_blocks_per_request * 4 + 16)
        return max(head_peak, attention_peak) + self._copies * inputs

    @property
    def sector_cost_bytes(self) -> int:
        """Bytes of a sector and of what reading its tokens takes."""
        token = self._peak_heads * self.head_size * self.dtype_bytes + self._copies * self._types * 8
        return self.geometry.sector_bytes + self.geometry.tokens_per_sector * token

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the two spare sectors, and of the logits of a full batch when hidden states are cut first."""
        rows = self.max_requests_per_batch * self._head_row_bytes if self.logits_to_keep else 0
        return 2 * self.geometry.sector_bytes + rows

    def mask_bytes(self, batch_tokens: int, sectors: int) -> int:
        """Return the bytes of the attention masks: batch times all tokens that can be read."""
        readable = sectors * self.geometry.tokens_per_sector
        return self._copies * self._masks * self.dtype_bytes * batch_tokens * (readable + batch_tokens)

    def count_footprint(self, batch_tokens: int, sectors: int) -> int:
        """Return all bytes that sizing plans for."""
        return (
            self.fixed_bytes
            + batch_tokens * self.batch_token_bytes
            + sectors * self.sector_cost_bytes
            + self.mask_bytes(batch_tokens, sectors)
        )

    def count_sectors(self, available_bytes: int, batch_tokens: int) -> int:
        """Return the sectors that memory gives; 0 or less when it does not start."""
        rest = available_bytes - self.fixed_bytes - batch_tokens * self.batch_token_bytes
        sectors = rest // self.sector_cost_bytes
        masks = self.mask_bytes(batch_tokens, sectors)
        each = self.mask_bytes(batch_tokens, sectors + 1) - masks
        # the engine divides in floating point; integers give the same but for masks beyond 2**53 bytes
        return sectors - -(-masks // (self.sector_cost_bytes + each))
