"""What a block costs: from the model, from bytes a token, or from the bytes of the pool."""

from __future__ import annotations

from dataclasses import replace

from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.measure.pool import PoolShape, Pricing, Structure
from kvledger.model.layers import AttentionCache, LatentCache
from kvledger.model.spec import ModelSpec
from kvledger.units import counted

__all__ = ["count_fitting_blocks", "keeps_every_token", "price_by_bytes", "price_by_model", "price_by_token"]

_SURELY_MORE = 1.1
"""Blocks beyond those the server has that no padding or rounding explains."""


def price_by_token(shape: PoolShape, bytes_per_token: int) -> PoolShape:
    """Price a pool by what a token costs, as given."""
    return replace(
        shape,
        pricing=Pricing(
            block_bytes=bytes_per_token * shape.block_tokens,
            source=f"{bytes_per_token:,} bytes a token, as given",
            accuracy=Accuracy.DERIVED,
        ),
    )


def price_by_bytes(shape: PoolShape, kv_bytes: int, *, source: str, accuracy: Accuracy) -> PoolShape:
    """Price a pool by its bytes: a block is the largest whole number of bytes a slot of which the blocks fit in."""
    per_slot = kv_bytes // (shape.blocks * shape.block_tokens)
    if per_slot < 1:
        raise UsageError(
            f"{kv_bytes:,} bytes are less than one byte for each of "
            f"{counted(shape.blocks * shape.block_tokens, 'slot')}",
            hint="give the memory of the KV pool, such as --kv-memory 16GiB",
        )
    return replace(
        shape,
        pricing=Pricing(
            block_bytes=per_slot * shape.block_tokens, source=source, accuracy=accuracy, capacity_bytes=kv_bytes
        ),
    )


def count_fitting_blocks(shape: PoolShape, priced: PoolShape) -> int | None:
    """Return how many blocks at a price the server's bytes would hold, where that shows the price is too low.

    The bytes a server tells are one rank's and the price is of all ranks together, so the price of its model can be
    the higher of both, but never the lower: then the server would have made more blocks.

    Args:
        shape: The pool as the server tells it.
        priced: The same pool with the price of a model.
    """
    told, price = shape.pricing, priced.pricing
    if told is None or told.capacity_bytes is None or price is None or price.block_bytes < 1:
        return None
    fitting = told.capacity_bytes // price.block_bytes
    return fitting if fitting > shape.blocks * _SURELY_MORE else None


def keeps_every_token(model: ModelSpec) -> bool:
    """Tell whether every layer that keeps anything keeps every token."""
    caches = [layer.cache for layer in model.caching_layers()]
    return all(
        isinstance(cache, LatentCache) or (isinstance(cache, AttentionCache) and cache.cap_tokens is None)
        for cache in caches
    )


def price_by_model(shape: PoolShape, model: ModelSpec, kv_dtype: str | None) -> PoolShape:
    """Price a pool by its model: all ranks together, each byte once.

    A model of which every layer keeps every token has one block table a request; its structure need not be told.

    Raises:
        ModelError: A layer has a window or a state, so one price for all blocks is not enough.
    """
    if not keeps_every_token(model):
        raise ModelError(
            f"`{model.name}` has layers that do not keep every token: its blocks are of several groups",
            hint="price it by its plan: `price_by_plan`",
        )
    per_token = model.bytes_per_token(kv_dtype)
    if not per_token:
        raise ModelError(f"`{model.name}` keeps no KV cache")
    known = shape.structure is not Structure.UNKNOWN
    stored = model.storage(kv_dtype).kv.name
    return replace(
        shape,
        structure=shape.structure if known else Structure.ONE_GROUP,
        structure_source=shape.structure_source if known else f"every layer of {model.name} keeps every token",
        pricing=Pricing(
            block_bytes=per_token * shape.block_tokens,
            source=f"{model.name}: {per_token:,} bytes a token ({stored} KV), all ranks together",
            accuracy=Accuracy.DERIVED,
        ),
    )
