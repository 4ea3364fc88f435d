"""The metrics of a server under vLLM's names, built new for every scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvledger.runtime.engine import Engine
from kvledger.runtime.options import Reservation
from kvledger.runtime.serve.tallies import Distribution, Tallies

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Exposition", "Instant", "take_instant"]

_LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """The engine between two steps, so that all numbers belong together."""

    running: int
    waiting: int
    usage_ratio: float
    preemptions: int
    queried_tokens: int
    hit_tokens: int
    families: tuple[Metric, ...]


def take_instant(engine: Engine, tallies: Tallies, *, model_name: str) -> Instant:
    """Read engine and tallies; call it in the engine's thread."""
    tables = engine.scheduler.tables
    held = tables.blocks - tables.free_blocks
    tally = engine.tally
    instant = Instant(
        running=len(engine.scheduler.running),
        waiting=len(engine.scheduler.waiting),
        usage_ratio=held / tables.blocks,
        preemptions=tally.preemptions,
        queried_tokens=tally.queried_tokens,
        hit_tokens=tally.hit_tokens,
        families=(),
    )
    families = tuple(_families(engine, tallies, instant, (model_name, "0")))
    return Instant(
        running=instant.running,
        waiting=instant.waiting,
        usage_ratio=instant.usage_ratio,
        preemptions=instant.preemptions,
        queried_tokens=instant.queried_tokens,
        hit_tokens=instant.hit_tokens,
        families=families,
    )


class Exposition:
    """A collector for `prometheus_client` over one instant."""

    def __init__(self, instant: Instant) -> None:
        self._instant = instant

    def collect(self) -> Iterable[Metric]:
        """Return all families."""
        return self._instant.families


def _families(engine: Engine, tallies: Tallies, instant: Instant, labels: tuple[str, str]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    def gauge(name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(labels, value)
        return family

    def counter(name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(labels, value)
        return family

    def histogram(name: str, text: str, found: Distribution) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(labels, buckets=found.buckets(), sum_value=found.total)
        return family

    yield gauge("num_requests_running", "Requests that have blocks.", instant.running)
    yield gauge("num_requests_waiting", "Requests that wait for a turn.", instant.waiting)
    yield gauge("kv_cache_usage_perc", "Blocks that running requests hold, 0 to 1.", instant.usage_ratio)
    yield counter("num_preemptions", "Requests that lost their blocks while running.", instant.preemptions)
    yield counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", instant.queried_tokens)
    yield counter("prefix_cache_hits", "Prompt tokens found there.", instant.hit_tokens)
    yield counter("prompt_tokens", "Prompt tokens of answers that have begun.", tallies.prompt_tokens)
    yield counter("prompt_tokens_cached", "Of them, those found in a cache.", tallies.cached_tokens)
    yield counter("generation_tokens", "Tokens generated.", tallies.generation_tokens)
    finished = CounterMetricFamily("vllm:request_success", "Answers ended.", labels=(*_LABELS, "finished_reason"))
    for reason in ("stop", "length", "abort", "error"):
        finished.add_metric((*labels, reason), tallies.finished[reason])
    yield finished
    yield histogram("request_prompt_tokens", "Prompts of ended answers (tokens).", tallies.prompt)
    yield histogram("request_generation_tokens", "Lengths of ended answers (tokens).", tallies.generation)
    yield histogram("request_prefill_kv_computed_tokens", "Prompt tokens not found in a cache.", tallies.computed)
    yield histogram("request_params_max_tokens", "max_tokens of ended answers.", tallies.declared)
    yield histogram("time_to_first_token_seconds", "From asking to the first token.", tallies.first_token_seconds)
    yield histogram("e2e_request_latency_seconds", "From asking to the end.", tallies.whole_seconds)
    yield _config(engine, labels)


def _config(engine: Engine, labels: tuple[str, str]) -> Metric:
    """Return the facts of the pool; as in vLLM, the number of blocks counts one that is never given out.

    How many requests of ``max_model_len`` fit at once tells `measure` whether all layers share one block table.
    """
    from prometheus_client.core import GaugeMetricFamily

    tables, options, longest = engine.scheduler.tables, engine.options, engine.max_model_len
    blocks = tables.blocks + 1
    needed = sum(
        group.most_blocks(longest, in_flight_tokens=options.max_num_batched_tokens, max_model_len=longest)
        for group in engine.layout.groups.groups
    )
    facts: dict[str, Any] = {
        "block_size": engine.pages.block_size,
        "num_gpu_blocks": blocks,
        "kv_cache_size_tokens": blocks * longest // needed,
        "kv_cache_max_concurrency": blocks / needed,
        "num_gpu_blocks_override": None,
        "enable_prefix_caching": options.prefix_caching and options.reservation is Reservation.BLOCKS,
        "cache_dtype": "auto",
        "gpu_memory_utilization": None,
        "kv_cache_memory_bytes": engine.pages.nbytes + engine.pages.block_bytes,
    }
    family = GaugeMetricFamily("vllm:cache_config_info", "Facts of the pool.", labels=("engine", *facts))
    family.add_metric((labels[1], *(str(value) for value in facts.values())), 1)
    return family
