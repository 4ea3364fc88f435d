"""How many of the free blocks hold tokens that a later request can hit.

vLLM's gauge counts such blocks as free, and no series counts them. But from 0.26 on a block that is given back without
reusable content is taken again before any that has some (``v1/core/block_pool.py``, ``free_blocks``), so content is
overwritten only when every free block has it, and then the only bare blocks are those under way in requests. Since any
earlier sample at which all blocks may have been bare::

    filled >= (tokens written - (block - 1) * requests that wrote) / block
    bare   <= max(usable - filled, under way * most requests that ran at once)
    cached >= free - bare

Under way is 1, the tail of a request, or 2 with asynchronous scheduling, which also has a block whose last token is not
confirmed yet. A cache that somebody resets is bare at once, and no series tells; that it was not is the assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.balance import Balance
from kvledger.measure.figure import Span
from kvledger.measure.pool import PoolShape, Structure

__all__ = ["ReuseTracker"]


@dataclass(frozen=True, slots=True)
class _Counts:
    written: int
    """Tokens of requests that have emitted, less those found in the cache."""
    started: int
    running: int
    waiting: int


@dataclass(slots=True)
class ReuseTracker:
    """Follows one engine from sample to sample; :meth:`bound_cached` mutates."""

    first: _Counts | None = None
    last: _Counts | None = None
    most_running: int = 0
    under_way: int = 2
    """Blocks of a running request that may hold nothing reusable."""

    def bound_cached(self, shape: PoolShape, engine: VllmEngine | None, balance: Balance) -> Span:
        """Return how many blocks nobody refers to and a later request can hit.

        The most follows from the counters; the least supposes that the cache was not reset. Where the counters cannot
        be used, ``engine`` is None and nothing is learned.
        """
        idle = max(0, shape.usable_blocks - balance.held // shape.block_tokens)
        if shape.prefix_caching is False:
            return Span.exact(0)
        if engine is None:
            return Span(0, idle)
        ever = _count_computed(engine)
        high = idle if ever is None else min(idle, ever // shape.block_tokens)
        told = engine.count_config("kv_cache_size_tokens") and not engine.draft_tokens
        if not told or shape.prefix_caching is None or shape.structure is not Structure.ONE_GROUP:
            return Span(0, high)
        bare = self._bound_bare(shape, _read_counts(engine), prefilling=balance.prefilling.high)
        return Span(min(high, max(0, idle - bare)), high)

    def _bound_bare(self, shape: PoolShape, now: _Counts | None, *, prefilling: int) -> int:
        """Return the most blocks that may hold nothing reusable, whoever refers to them."""
        if now is None:
            self.first = self.last = None
            return shape.usable_blocks
        if self.first is None or self.last is None:
            self.first = self.last = now
        # all that began since the last sample may have run at once with what ran then
        met = self.last.running + max(0, now.started - self.last.started) + prefilling
        self.most_running = max(self.most_running, met)
        ever, lately = self.under_way * (now.started + prefilling), self.under_way * self.most_running
        since_start = _bare(shape, _Counts(0, 0, 0, 0), now, least=ever)
        since_first = _bare(shape, self.first, now, least=lately)
        self.last = now
        return min(since_start, since_first)


def _bare(shape: PoolShape, then: _Counts, now: _Counts, *, least: int) -> int:
    wrote = then.running + then.waiting + max(0, now.started - then.started)
    unsaved = 2 * (now.running + now.waiting)  # the token last sampled, and one step between gauge and counters
    tokens = max(0, now.written - then.written - unsaved - wrote * (shape.block_tokens - 1))
    return min(shape.usable_blocks, max(shape.usable_blocks - tokens // shape.block_tokens, least))


def _read_counts(engine: VllmEngine) -> _Counts | None:
    prompt, generated, cached = engine.prompt_tokens, engine.generation_tokens, engine.cached_tokens
    started = engine.count("time_to_first_token_seconds")
    if prompt is None or generated is None or cached is None or started is None or engine.running is None:
        return None
    return _Counts(prompt + generated - cached, started, engine.running, engine.waiting or 0)


def _count_computed(engine: VllmEngine) -> int | None:
    """Return the tokens the engine has computed since it started, at most: those of requests in prefill included."""
    if engine.prompt_tokens is None or engine.generation_tokens is None:
        return None
    return engine.prompt_tokens + engine.generation_tokens + max(0, (engine.query_tokens or 0) - engine.prompt_tokens)
