"""What a layer tells vLLM's planner: the page it needs and how long it keeps blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

__all__ = ["LayerSpec", "SpecKind", "is_one_group", "is_uniform_type", "merge_specs"]


class SpecKind(StrEnum):
    """The kinds of layers vLLM tells apart (``v1/kv_cache_interface.py``)."""

    FULL = "full"
    LATENT = "latent"
    """MLA and sparse-attention indexers: one vector a token, the same on every tensor-parallel rank."""
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    CROSS = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """The cache of one layer on one rank.

    ``payload_bytes`` of a page hold data; ``page_bytes`` is what the page takes. ``shape`` (heads, head sizes, dtype)
    only tells apart layers whose pages happen to be equally large.
    """

    kind: SpecKind
    block_tokens: int
    payload_bytes: int
    page_bytes: int
    shape: tuple[int | str, ...] = ()
    distinct_bytes: int = field(default=0, compare=False)
    """Of the payloads of this page on all tensor-parallel ranks, the bytes that are no copies."""
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    retained_tokens: int = 0
    """Tokens kept behind the window (drafts with several modules)."""
    reserve_tokens: int | None = None
    """Tokens of an encoder's output."""
    checkpoint_blocks: int = 0
    speculative_blocks: int = 0
    shared_by_dcp: bool = True
    """Decode context parallelism splits the tokens of this layer."""

    def with_block(self, block_tokens: int) -> LayerSpec:
        """Return the same layer with another block; its page scales."""
        return replace(
            self,
            block_tokens=block_tokens,
            payload_bytes=self.payload_bytes * block_tokens // self.block_tokens,
            page_bytes=self.page_bytes * block_tokens // self.block_tokens,
            distinct_bytes=self.distinct_bytes * block_tokens // self.block_tokens,
        )

    def with_page(self, page_bytes: int) -> LayerSpec:
        """Return the same layer, padded to a page."""
        return replace(self, page_bytes=page_bytes)

    def as_full(self, block_tokens: int | None = None) -> LayerSpec:
        """Return the layer sized as full attention, as without the hybrid manager."""
        spec = self if block_tokens in (None, self.block_tokens) else self.with_block(int(block_tokens or 0))
        return replace(spec, kind=SpecKind.FULL, retained_tokens=0)


def merge_specs(specs: Sequence[LayerSpec]) -> LayerSpec | None:
    """Return the one spec that stands for all, or None when they differ in more than can be reconciled.

    Full-attention layers may differ in whether they have a window or chunk, if all that have one agree.
    """
    first = specs[0]
    if first.kind is not SpecKind.FULL:
        return first if all(spec == first for spec in specs) else None
    bare = _bare(first)
    if any(_bare(spec) != bare for spec in set(specs)):  # most layers are equal
        return None
    windows = {s.window_tokens for s in specs if s.window_tokens is not None}
    chunks = {s.chunk_tokens for s in specs if s.chunk_tokens is not None}
    if len(windows) > 1 or len(chunks) > 1 or (windows and chunks):
        return None
    return replace(
        first, window_tokens=windows.pop() if windows else None, chunk_tokens=chunks.pop() if chunks else None
    )


def _bare(spec: LayerSpec) -> LayerSpec:
    return replace(spec, window_tokens=None, chunk_tokens=None)


def is_one_group(specs: Sequence[LayerSpec]) -> bool:
    """Tell whether all layers share one block table and one page size."""
    return merge_specs(specs) is not None


def is_uniform_type(specs: Sequence[LayerSpec]) -> bool:
    """Tell whether all layers always need the same number of slots, whatever their widths (0.11 and later)."""
    first = specs[0]
    if len({s.block_tokens for s in specs}) > 1 or len({s.shared_by_dcp for s in specs}) > 1:
        return False
    match first.kind:
        case SpecKind.FULL | SpecKind.LATENT:
            return all(s.kind in (SpecKind.FULL, SpecKind.LATENT) for s in specs)
        case SpecKind.WINDOW:
            return all(s.kind is SpecKind.WINDOW and s.window_tokens == first.window_tokens for s in specs)
        case SpecKind.CHUNK:
            return all(s.kind is SpecKind.CHUNK and s.chunk_tokens == first.chunk_tokens for s in specs)
        case SpecKind.STATE:
            return all(
                s.kind is SpecKind.STATE
                and s.page_bytes == first.page_bytes
                and s.speculative_blocks == first.speculative_blocks
                and s.checkpoint_blocks == first.checkpoint_blocks
                for s in specs
            )
        case SpecKind.CROSS:
            return all(s.kind is SpecKind.CROSS for s in specs)
