"""The pool of one running engine: how many blocks, how large, and which of that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kvledger.engines.vllm.metrics import Generation, VllmEngine
from kvledger.ledger import Accuracy

__all__ = ["GroupCost", "NullBlock", "PoolShape", "Pricing", "Structure", "count_held_blocks", "read_pool_shape"]


_NEAR = 1e-4
"""How far from a whole number of blocks a gauge may be: it is printed with all its digits."""


class Structure(StrEnum):
    """How requests take blocks."""

    ONE_GROUP = "one-group"
    """Every layer keeps every token: a request of n tokens holds ceil(n / block) blocks."""
    GROUPS = "groups"
    """Groups of layers with their own block tables, windows or states."""
    UNKNOWN = "unknown"


class NullBlock(StrEnum):
    """What the gauge counts as the whole."""

    OUTSIDE = "outside"
    """V1 from 0.10: used / (blocks - 1)."""
    INSIDE = "inside"
    """V1 up to 0.9.2: used / blocks, and the null block counts as used."""
    NONE = "none"
    """V0: there is no null block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """What the tokens of a request need in one group of layers."""

    name: str
    token_bytes: int
    """Bytes of one token; 0 for a state."""
    window_tokens: int | None = None
    """Tokens of a request that can still be read; None: all."""
    request_bytes: int = 0
    """Bytes of a request at any length: its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """What a block costs in bytes, and how that is known."""

    block_bytes: int
    source: str
    accuracy: Accuracy
    capacity_bytes: int | None = None
    """Bytes of the pool where they are known by themselves; what no block covers is a remainder."""
    groups: tuple[GroupCost, ...] = ()
    """Where layers are in groups: what a request's tokens need in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """Blocks of one engine's pool; ``pricing`` None means that only tokens are known."""

    blocks: int
    block_tokens: int
    null_block: NullBlock
    structure: Structure
    structure_source: str
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    max_model_len_source: str = ""
    pricing: Pricing | None = None

    @property
    def null_blocks(self) -> int:
        """Blocks that no request can get."""
        return 0 if self.null_block is NullBlock.NONE else 1

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can get."""
        return max(0, self.blocks - self.null_blocks)

    @property
    def usable_tokens(self) -> int:
        """Token slots that requests can get."""
        return self.usable_blocks * self.block_tokens

    @property
    def capacity_tokens(self) -> int:
        """Token slots of the whole pool: what shares are of."""
        return self.blocks * self.block_tokens

    def price(self, pricing: Pricing | None) -> PoolShape:
        """Return the same pool with a price."""
        return replace(self, pricing=pricing)


def read_pool_shape(engine: VllmEngine, *, engines: int) -> PoolShape | None:
    """Read the pool from the labels of ``vllm:cache_config_info``; None when they do not say it.

    The number of blocks is the sum over the data-parallel ``engines`` (vLLM ``v1/engine/core_client.py``).
    ``kv_cache_max_concurrency`` (0.26+) times the longest length is ``kv_cache_size_tokens``; with one group of layers
    it is blocks / ceil(length / block), which tells whether there is one.
    """
    total, block_tokens = engine.count_config("num_gpu_blocks"), engine.count_config("block_size")
    if not total or not block_tokens:
        return None
    blocks = total // engines if total % engines == 0 else total
    length = _longest(engine)
    structure, source = _structure(engine, blocks, block_tokens, length)
    caching = engine.cache_config.get("enable_prefix_caching")
    return PoolShape(
        blocks=blocks,
        block_tokens=block_tokens,
        null_block=_null_block(engine, blocks),
        structure=structure,
        structure_source=source,
        prefix_caching={"True": True, "False": False}.get(caching or ""),
        max_model_len=length,
        max_model_len_source="kv_cache_size_tokens / kv_cache_max_concurrency" if length else "",
        pricing=_pricing(engine, blocks),
    )


def count_held_blocks(shape: PoolShape, usage_ratio: float) -> int | None:
    """Return the blocks running requests hold, from the gauge; None when it is no whole number of blocks.

    vLLM ``v1/core/block_pool.py``: usage = 1 - free / (blocks - 1) (0.10+), 1 - free / blocks (up to 0.9.2).
    """
    whole = shape.usable_blocks if shape.null_block is NullBlock.OUTSIDE else shape.blocks
    exact = usage_ratio * whole
    held = round(exact)
    if abs(exact - held) > _NEAR * max(1.0, exact):
        return None
    return max(0, held - 1) if shape.null_block is NullBlock.INSIDE else held


def _longest(engine: VllmEngine) -> int | None:
    tokens = engine.count_config("kv_cache_size_tokens")
    try:
        concurrency = float(engine.cache_config.get("kv_cache_max_concurrency", "nan")[:40])
    except ValueError:
        return None
    if not tokens or not 0 < concurrency < 1e12:
        return None
    guess = round(tokens / concurrency)
    return guess if guess > 0 and abs(int(concurrency * guess) - tokens) <= max(1, concurrency) else None


def _structure(engine: VllmEngine, blocks: int, block_tokens: int, length: int | None) -> tuple[Structure, str]:
    if length is None:
        return Structure.UNKNOWN, "this release does not say how its layers share blocks"
    concurrency = float(engine.cache_config["kv_cache_max_concurrency"])
    needed = -(-length // block_tokens)
    if abs(concurrency * needed - blocks) <= 1e-6 * blocks:
        return (
            Structure.ONE_GROUP,
            f"kv_cache_max_concurrency is {blocks:,} blocks / {needed} for {length:,} tokens: one block table a "
            "request",
        )
    return (
        Structure.GROUPS,
        f"a request of {length:,} tokens takes {blocks / concurrency:.1f} blocks, not {needed}: layers are in groups",
    )


def _null_block(engine: VllmEngine, blocks: int) -> NullBlock:
    if engine.generation is Generation.V0:
        return NullBlock.NONE
    usage = engine.usage_ratio
    if usage is None or not usage or engine.count_config("kv_cache_size_tokens"):
        return NullBlock.OUTSIDE
    # 0.8.5 to 0.9.2 count the null block as used, so the gauge is never 0 and is whole over all blocks
    inside, outside = usage * blocks, usage * (blocks - 1)
    if abs(inside - round(inside)) < abs(outside - round(outside)):
        return NullBlock.INSIDE
    return NullBlock.OUTSIDE


def _pricing(engine: VllmEngine, blocks: int) -> Pricing | None:
    size = engine.count_config("kv_cache_memory_bytes")
    if size is None or size < blocks or engine.cache_config.get("num_gpu_blocks_override", "None") != "None":
        return None
    return Pricing(
        block_bytes=size // blocks,
        source="kv_cache_memory_bytes / num_gpu_blocks, of one rank",
        accuracy=Accuracy.DERIVED,
        capacity_bytes=size,
    )
