"""What disconnected clients leave in the counters, and how it is kept apart from what is alive.

vLLM counts a request's tokens when they come and again, in histograms, when it ends. A request whose client went away
is never observed at its end, so each leaves a constant in every difference of the two (tried on 0.32). The constants
only grow, and they are known:

* exactly, whenever nothing runs and nothing waits;
* within one block a running request at any busy sample, because held - stored is 0 to running x (block - 1);
* tighter over several samples between which nobody was lost: the intersection of their intervals.

Whether somebody was lost is counted too: requests that have emitted a token, less those that ended, less those lost,
are the ones that are alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.measure.figure import Span

__all__ = ["Differences", "Lost", "OffsetTracker", "read_differences"]

_NO_LIMIT = 2**61
_ANY = Span(0, _NO_LIMIT)
_MOST_COUNTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Entered minus ended, by kind: what is alive plus what was lost; None where a series is missing."""

    tokens: int
    """Prompt and generated tokens of requests that have emitted one."""
    requests: int | None
    """Requests that have emitted a token."""
    hits: int | None
    """Tokens those requests found in the prefix cache."""
    pending: int | None
    """Prompt tokens of requests that are admitted and have emitted nothing."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What lost requests have left in the counters, as far as it is known."""

    tokens: Span
    hits: Span


def read_differences(engine: VllmEngine) -> Differences | None:
    """Return the differences of one scrape, None when the token counters are not there.

    ``prompt_tokens - request_prompt_tokens_sum + generation_tokens - request_generation_tokens_sum`` and the like;
    hits are ``prompt_tokens_cached - (request_prompt_tokens_sum - request_prefill_kv_computed_tokens_sum)``.
    """
    prompt, generated = engine.prompt_tokens, engine.generation_tokens
    prompt_ended, generated_ended = engine.total("request_prompt_tokens"), engine.total("request_generation_tokens")
    if prompt is None or generated is None or prompt_ended is None or generated_ended is None:
        return None
    started, ended = engine.count("time_to_first_token_seconds"), engine.count("request_prompt_tokens")
    computed = engine.total("request_prefill_kv_computed_tokens")
    caching = engine.cache_config.get("enable_prefix_caching") == "True"  # else admissions are not counted
    hits = None
    if engine.cached_tokens is not None and computed is not None:
        hits = engine.cached_tokens - (prompt_ended - computed)
    return Differences(
        tokens=prompt - prompt_ended + generated - generated_ended,
        requests=None if started is None or ended is None else started - ended,
        hits=hits,
        pending=engine.query_tokens - prompt if caching and engine.query_tokens is not None else None,
    )


@dataclass(slots=True, kw_only=True)
class OffsetTracker:
    """Follows the losses of one engine from sample to sample; ``observe_`` methods mutate, the rest does not.

    What is left depends only on how many requests were lost, so whatever is learned at ``n`` losses holds at every
    sample with ``n`` losses: ``by_count`` keeps it, and a second pass over the same samples starts from it.
    """

    by_count: dict[int, Lost] = field(default_factory=dict)
    requests: Span = _ANY
    """Requests lost so far."""
    pending: Span = _ANY
    """Prompt tokens of requests lost before their first token."""
    pending_is_known: bool = True
    """False after requests were seen that the admission counter skips."""
    anchored_seconds: float | None = None
    """When the engine was last seen idle."""
    samples_since_anchor: int = 0
    contradictions: int = 0
    """Samples that no number of lost tokens explains: a sign that this law does not hold for the engine."""
    lost: Lost = field(default_factory=lambda: Lost(_ANY, _ANY))
    """What is known for the last sample."""

    def observe_idle(self, differences: Differences, *, seconds: float) -> None:
        """Take a sample at which nothing runs and nothing waits: all that is left was lost."""
        self.lost = Lost(Span.exact(differences.tokens), Span.exact(differences.hits or 0))
        self.requests = Span.exact(self._count(differences))
        self.pending, self.pending_is_known = Span.exact(differences.pending or 0), True
        self._keep()
        self.anchored_seconds, self.samples_since_anchor = seconds, 0

    def observe_counts(
        self, differences: Differences, *, running: int, waiting: int | None, lost_at_most: int = _NO_LIMIT
    ) -> None:
        """Narrow what lost requests have left by what can be alive; :meth:`observe_tokens` follows.

        Alive requests that have emitted a token are ``running - prefilling + preempted``, with 0 <= prefilling <=
        running and 0 <= preempted <= waiting. ``lost_at_most`` is what a later sample showed.
        """
        self.samples_since_anchor += 1
        if differences.pending is not None:
            # below: requests that skip the look-up are not counted at admission; wait for the next idle moment
            self.pending_is_known = self.pending_is_known and differences.pending >= self.pending.low
            self.pending = _up_to(self.pending.low, differences.pending)
        count = self._count(differences)
        prefilling = 0 if self.nothing_prefills(differences) else running
        if differences.requests is None:
            self.requests = Span.exact(count)
        else:
            low = max(self.requests.low, 0 if waiting is None else count - running - waiting)
            self.requests = _up_to(low, min(count, count - running + prefilling, lost_at_most))
        floor = self.lost.tokens.low, self.lost.hits.low
        ceiling = self.by_count.get(self.requests.high)
        known = self.by_count.get(self.requests.low)
        self.lost = Lost(
            _up_to(
                max(floor[0], known.tokens.low if known else 0),
                min(differences.tokens, ceiling.tokens.high if ceiling else _NO_LIMIT),
            ),
            _up_to(
                max(floor[1], known.hits.low if known else 0),
                min(differences.hits or 0, ceiling.hits.high if ceiling else _NO_LIMIT),
            ),
        )

    def observe_tokens(self, bounds: Span) -> None:
        """Narrow the lost tokens by the interval of one sample; :meth:`observe_counts` comes first."""
        met = self.lost.tokens.meet(bounds)
        if met is None:
            self.contradictions += 1
            self.by_count.clear()
            met = bounds
        self.lost = Lost(met, self.lost.hits)
        if self.requests.is_exact:
            self._keep()

    def _keep(self) -> None:
        self.by_count[self.requests.low] = self.lost
        while len(self.by_count) > _MOST_COUNTS:
            del self.by_count[min(self.by_count)]

    def nothing_prefills(self, differences: Differences) -> bool:
        """Tell whether surely no admitted request is still without a token."""
        return self.pending_is_known and differences.pending is not None and differences.pending == self.pending.low

    def _count(self, differences: Differences) -> int:
        """Return the requests that emitted and did not end; where they are not counted, every sample may lose one."""
        return self.samples_since_anchor if differences.requests is None else differences.requests


def _up_to(low: int, high: int) -> Span:
    return Span(low, max(low, high))
