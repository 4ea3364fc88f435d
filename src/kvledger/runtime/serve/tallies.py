"""What a server counts of its requests, under the law of conservation that `measure` reads vLLM by.

Tokens are counted when they enter and again when their answer ends, however it ends, so at every step

    live = (prompt - ended prompt) + (generation - ended generation)

is what is inside. vLLM leaves the second half out for requests whose client has gone; here nothing is left out. An
answer that shares its prompt with a sibling counts the prompt as found in a cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from kvledger.runtime.answers import Ending, Token
from kvledger.runtime.sequence import RequestId

__all__ = ["TOKEN_EDGES", "Distribution", "Tallies"]

TOKEN_EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Upper edges of the buckets of lengths, as vLLM has them for long models."""
SECOND_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_REASONS = {Ending.STOP: "stop", Ending.LENGTH: "length", Ending.CANCELLED: "abort", Ending.ERROR: "error"}


@dataclass(slots=True)
class Distribution:
    """A histogram: values up to each edge, their sum and their count."""

    edges: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def add(self, value: float) -> None:
        """Count a value (mutates)."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value
        self.count += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return upper edges and how many values are at or below each, as Prometheus has them."""
        below, found = 0, []
        for edge, count in zip((*self.edges, float("inf")), self.counts, strict=True):
            below += count
            found.append(("+Inf" if edge == float("inf") else f"{float(edge)}", float(below)))
        return found


@dataclass(slots=True)
class _Live:
    """One answer that has begun."""

    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    since: float
    generated: int = 0


@dataclass(slots=True)
class Tallies:
    """Counters since the server began; everything happens in the engine's thread."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    prompt: Distribution = field(default_factory=lambda: Distribution(TOKEN_EDGES))
    generation: Distribution = field(default_factory=lambda: Distribution(TOKEN_EDGES))
    computed: Distribution = field(default_factory=lambda: Distribution(TOKEN_EDGES))
    declared: Distribution = field(default_factory=lambda: Distribution(TOKEN_EDGES))
    first_token_seconds: Distribution = field(default_factory=lambda: Distribution(SECOND_EDGES))
    whole_seconds: Distribution = field(default_factory=lambda: Distribution(SECOND_EDGES))
    _live: dict[tuple[RequestId, int], _Live] = field(default_factory=dict)

    def take(self, token: Token, *, now: float, since: float, max_tokens: int) -> None:
        """Count a token, the prompt with the first of its answer, and the end with the last (mutates).

        An answer that ends before its first token never was inside. ``since``: when it was asked for.
        """
        key = (token.request, token.sample)
        live = self._live.get(key)
        if live is None and token.token_id is not None:
            live = self._live[key] = self._begin(token, since, max_tokens)
            self.first_token_seconds.add(now - since)
        if live is not None and token.token_id is not None:
            self.generation_tokens += 1
            live.generated += 1
        if token.ending is not None:
            self.finished[_REASONS[token.ending]] += 1
            if live is not None:
                del self._live[key]
                self._end(live, now)

    def _begin(self, token: Token, since: float, max_tokens: int) -> _Live:
        cached = token.prompt_tokens if token.sample else token.cached_tokens
        self.prompt_tokens += token.prompt_tokens
        self.cached_tokens += cached
        return _Live(prompt_tokens=token.prompt_tokens, cached_tokens=cached, max_tokens=max_tokens, since=since)

    def _end(self, live: _Live, now: float) -> None:
        self.prompt.add(live.prompt_tokens)
        self.generation.add(live.generated)
        self.computed.add(live.prompt_tokens - live.cached_tokens)
        self.declared.add(live.max_tokens)
        self.whole_seconds.add(now - live.since)
