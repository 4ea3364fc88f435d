"""The pool of a vLLM whose metrics do not tell its blocks, from its start-up log."""

from __future__ import annotations

from dataclasses import replace

from kvledger.engines.facts import Engine, PoolFacts, StartupFacts
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.pool import PoolShape, Structure, read_pool_shape

__all__ = ["read_logged_pool"]

_HALF_A_PRINTED_CONCURRENCY = 0.005


def read_logged_pool(engine: VllmEngine, start: StartupFacts | None, *, engines: int) -> PoolShape | None:
    """Return the pool that the log of this server tells; None when it tells no number of blocks.

    ``# GPU blocks`` is the number itself. ``GPU KV cache size`` in tokens (V1, 0.8 and later) is one only where all
    layers share a block table: then ``Maximum concurrency`` times the blocks of the longest request is the number too.
    """
    if start is None or start.engine is not Engine.VLLM:
        return None
    pools = start.find_pools("kv", engine_index=engine.index) or start.find_pools("kv")
    pool = next((one for one in pools if one.blocks is not None or one.tokens is not None), None)
    block_tokens = engine.count_config("block_size") or _block_tokens(start, pool)
    if pool is None or not block_tokens:
        return None
    is_one_table = False
    blocks = None if pool.blocks is None else int(pool.blocks.value)
    if blocks is None:
        blocks = _blocks_of_tokens(pool, block_tokens)
        is_one_table = blocks is not None
    if not blocks:
        return None
    told = {**engine.cache_config, "num_gpu_blocks": str(blocks * engines), "block_size": str(block_tokens)}
    shape = read_pool_shape(replace(engine, cache_config=told), engines=engines)
    if shape is not None and is_one_table and shape.structure is Structure.UNKNOWN:
        why = "the start-up log: its concurrency is its tokens over those of the longest request, in whole blocks"
        shape = replace(shape, structure=Structure.ONE_GROUP, structure_source=why)
    if shape is not None and shape.max_model_len is None and start.max_model_len is not None:
        length = int(start.max_model_len.value)
        shape = replace(shape, max_model_len=length, max_model_len_source="the start-up log")
    return shape


def _block_tokens(start: StartupFacts, pool: PoolFacts | None) -> int | None:
    told = pool.block_tokens if pool is not None and pool.block_tokens is not None else start.block_tokens
    return None if told is None else int(told.value)


def _blocks_of_tokens(pool: PoolFacts, block_tokens: int) -> int | None:
    tokens, longest, concurrency = pool.tokens, pool.longest_tokens, pool.concurrency
    if tokens is None or longest is None or concurrency is None:
        return None
    blocks, rest = divmod(int(tokens.value), block_tokens)
    needed = -(-int(longest.value) // block_tokens)
    off = abs(float(concurrency.value) * needed - blocks)
    return blocks if not rest and off <= _HALF_A_PRINTED_CONCURRENCY * needed + 1 else None
