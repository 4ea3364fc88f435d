"""Scrapes of which one part is a step older than another.

vLLM writes its series at once, but renders ``/metrics`` in a thread of its own (``entrypoints/serve/instrumentator``,
read in 0.32), so on a busy front end a step may end between two lines: of 1,432 scrapes of servers on two overloaded
cores 20 were torn. Some series say the same twice, on both sides of such a line, and differ by the same number in every
whole scrape (``v1/metrics/loggers.py``, read in 0.26 to 0.32)::

    iteration_tokens_total_sum     = generation_tokens + prompt_tokens - prompt_tokens_cached
    request_success                = the counts of the histograms of ended requests
    time_to_first_token_count + inter_token_latency_count = generation_tokens, one token an output

They noticed 18 of those 20; what they do not see is a tear between the gauges, which come first, and the counters right
behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvledger.engines.vllm.metrics import VllmEngine

__all__ = ["TearDetector", "is_surely_torn"]

_SAME = 5
"""A difference that is the same so often in a row is no tear: tears follow each other by chance."""
_BROKEN = 8
"""What is broken so often in a row says nothing about this engine."""
_AT_THE_END = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "e2e_request_latency_seconds",
)


def is_surely_torn(engine: VllmEngine) -> bool:
    """Tell by one scrape alone whether it is torn; of engines before 0.26 that is not known."""
    return any(difference != 0 for _, difference, is_sure in _differences(engine) if is_sure)


@dataclass(slots=True)
class _Redundancy:
    """What two sides of one number differ by in whole scrapes, learned from them."""

    usual: int | None = None
    before: int | None = None
    same: int = 0
    broken: int = 0

    def is_broken(self, difference: int) -> bool:
        """Take the next difference."""
        self.same = self.same + 1 if difference == self.before else 1
        self.before = difference
        if self.usual is None or self.same >= _SAME:
            self.usual = difference
        self.broken = 0 if difference == self.usual else self.broken + 1
        return 0 < self.broken < _BROKEN


@dataclass(slots=True)
class TearDetector:
    """Follows one engine from sample to sample; :meth:`is_torn` mutates."""

    known: dict[str, _Redundancy] = field(default_factory=dict)

    def is_torn(self, engine: VllmEngine) -> bool:
        """Tell whether one part of a scrape surely is a step older than another."""
        if is_surely_torn(engine):
            return True
        torn = False
        for name, difference, is_sure in _differences(engine):
            if not is_sure:
                torn = self.known.setdefault(name, _Redundancy()).is_broken(difference) or torn
        return torn


def _differences(engine: VllmEngine) -> Iterator[tuple[str, int, bool]]:
    """Yield what each number differs by, and whether that surely is 0 in every whole scrape."""
    is_sure = engine.count_config("kv_cache_size_tokens") is not None
    prompt, generated, cached = engine.prompt_tokens, engine.generation_tokens, engine.cached_tokens
    stepped = engine.total("iteration_tokens_total")
    if stepped is not None and prompt is not None and generated is not None and cached is not None:
        yield "steps", stepped - generated - prompt + cached, is_sure
    ended = [engine.count(name) for name in _AT_THE_END]
    counts = [count for count in (*ended, sum(engine.finished.values())) if count is not None]
    if engine.finished and len(counts) > 1:
        yield "ended", max(counts) - min(counts), is_sure
    first, later = engine.count("time_to_first_token_seconds"), engine.count("inter_token_latency_seconds")
    if first is not None and later is not None and generated is not None and not engine.draft_tokens:
        yield "outputs", first + later - generated, False  # an error is an output without a token
