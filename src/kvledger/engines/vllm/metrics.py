"""The ``/metrics`` of vLLM: what one scrape says about each engine behind it.

Names and meanings follow ``vllm/v1/metrics/loggers.py`` (read in 0.8.5 to 0.33.0) and, for V0, ``engine/metrics.py``.
Only series the laws need are kept; ``_created`` series and everything unknown are ignored. A series that is absent,
``NaN`` or ``None`` stays None and is listed in ``missing``: it never becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.engines.facts import HistogramReading
from kvledger.engines.vllm.series import (
    LABELLED,
    PREFIXES,
    VALUES,
    find_kind,
    find_replica,
    is_series,
    read_number,
    read_sample,
    spelling_of,
)
from kvledger.errors import SourceError

__all__ = ["Generation", "VllmEngine", "VllmScrape", "read_vllm_metrics"]

MAX_ENGINES = 4096
_MOST_OF_ANYTHING = 2**50
_MAX_BUCKETS = 256
_EXPECTED = ("running", "waiting", "usage_ratio", "prompt_tokens", "generation_tokens")


class Generation(StrEnum):
    """Which of vLLM's two engines speaks."""

    V0 = "V0"
    V1 = "V1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngine:
    """One engine at one instant; counters are cumulative since its start, None where the scrape does not say it."""

    index: int
    """The ``engine`` label; the place among all engines where a text holds several processes."""
    replica: str = ""
    """The process it is in, where the text says it (Ray)."""
    model: str | None = None
    generation: Generation = Generation.V1
    running: int | None = None
    waiting: int | None = None
    usage_ratio: float | None = None
    """The gauge of the pool, 0 to 1."""
    usage_source: str = ""
    prompt_tokens: int | None = None
    """Counted when a request emits its first token."""
    generation_tokens: int | None = None
    cached_tokens: int | None = None
    """Of ``prompt_tokens``, those found in a cache."""
    query_tokens: int | None = None
    """Prompt tokens of admitted requests, counted at admission; only with prefix caching on."""
    hit_tokens: int | None = None
    preemptions: int | None = None
    draft_tokens: int | None = None
    finished: Mapping[str, int] = field(default_factory=dict)
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    is_asleep: bool = False
    histograms: Mapping[str, HistogramReading] = field(default_factory=dict)
    """By the source's name without its prefix."""
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of ``vllm:cache_config_info``; the number of blocks in it is summed over data-parallel engines."""
    missing: tuple[str, ...] = ()

    def count_config(self, name: str) -> int | None:
        """Return a whole number of the cache config; None when absent, ``None``, no number or beyond belief."""
        text = self.cache_config.get(name, "")
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
        return None if value is None or value > _MOST_OF_ANYTHING else value

    def total(self, histogram: str) -> int | None:
        """Return the sum of a histogram of tokens, None when the scrape has none."""
        found = self.histograms.get(histogram)
        return None if found is None else int(found.total)

    def count(self, histogram: str) -> int | None:
        """Return how many observations a histogram has."""
        found = self.histograms.get(histogram)
        return None if found is None else int(found.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmScrape:
    """All engines of one scrape."""

    engines: tuple[VllmEngine, ...]
    start_seconds: float | None = None
    """When the frontend process started, by its own clock."""
    is_multiprocess: bool = False
    """Several API servers, or Ray, write these series: gauges and counters may be one step apart."""
    garbled_lines: int = 0


def read_vllm_metrics(text: str) -> VllmScrape:
    """Read one scrape of vLLM's ``/metrics``.

    Raises:
        SourceError: It has no series of vLLM, or names without a single sample.
    """
    reader = _Reader()
    for line in text.splitlines():
        reader.take(line)
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self._labels: dict[str, dict[str, str]] = {}
        self._engines: dict[tuple[str, str, int], _Draft] = {}
        """By spelling, process and ``engine`` label."""
        self._named = 0
        self._garbled = 0
        self._created = False
        self._start: float | None = None
        self._queries_are_tokens = True

    def take(self, line: str) -> None:
        spelling = spelling_of(line)
        if not spelling:
            if line.startswith("#"):
                self._comment(line)
            elif line.startswith("process_start_time_seconds"):
                self._start = read_number(line.rpartition(" ")[2])
            return
        end = min((at for at in (line.find("{"), line.find(" ")) if at > 0), default=len(line))
        kind, name, is_whole = find_kind(line[len(spelling) : end])
        if not kind:
            self._created = self._created or name.endswith("_created")
            return
        sample = read_sample(line, self._labels)
        if sample is None:
            self._garbled += 1
            return
        index = sample.labels.get("engine", "0")
        if not (index.isascii() and index.isdigit() and len(index) < 6):
            self._garbled += 1
            return
        key = (spelling, find_replica(sample.labels), int(index))
        draft = self._engines.get(key)
        if draft is None:
            if len(self._engines) >= MAX_ENGINES:
                self._garbled += 1
                return
            draft = self._engines[key] = _Draft()
        (draft if is_whole else draft.short()).take(kind, name, sample.labels, sample.value)

    def _comment(self, line: str) -> None:
        if is_series(line):
            self._named += 1
            if "prefix_cache_queries" in line and line.startswith("# HELP"):
                self._queries_are_tokens = "token" in line

    def finish(self) -> VllmScrape:
        if not self._engines:
            if self._named:
                raise SourceError(
                    "the text names metrics of vLLM but has no sample of any: the server keeps no statistics",
                    hint="start the server without `--disable-log-stats`",
                )
            raise SourceError(
                "the text has no metric of vLLM, nor of SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy or Transformers",
                hint="give the server's /metrics, such as http://host:8000 or a saved copy of it",
            )
        spelling = min((spelling for spelling, _, _ in self._engines), key=PREFIXES.index)
        keys = sorted(key for key in self._engines if key[0] == spelling)
        several = len({replica for _, replica, _ in keys}) > 1
        engines = tuple(
            self._engines[spelling, replica, index].finish(
                place if several else index, replica, queries_are_tokens=self._queries_are_tokens
            )
            for place, (_, replica, index) in enumerate(keys)
        )
        if all(engine.running is engine.prompt_tokens is engine.usage_ratio is None for engine in engines):
            raise SourceError(
                "the text has metrics of vLLM, but neither running requests, nor usage, nor token counters",
                hint="give the whole /metrics of the server, not a selection",
            )
        by_ray = spelling.startswith("ray")  # the start is that of Ray's own exporter, and series leave one by one
        return VllmScrape(
            engines=engines,
            start_seconds=None if by_ray else self._start,
            is_multiprocess=by_ray or (not self._created and self._start is None),
            garbled_lines=self._garbled,
        )


class _Draft:
    """One engine while its series are being read."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        """Numbers by name and labels: a series that comes again replaces itself, others of its name add up."""
        self.labelled: dict[str, dict[str, int]] = {field_name: {} for field_name, _ in LABELLED.values()}
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        self.buckets: dict[str, dict[float, float]] = {}
        self.config: dict[str, str] = {}
        self.model: str | None = None
        self.has_engine_label = False
        self._short: _Draft | None = None

    @property
    def values(self) -> dict[str, float]:
        """The numbers by our names."""
        return {name: sum(parts.values()) for name, parts in self._parts.items()}

    def short(self) -> _Draft:
        """Return the draft of the counters without their ending, which count where the others are absent."""
        if self._short is None:
            self._short = _Draft()
        return self._short

    def take(self, kind: str, name: str, labels: dict[str, str], value: float | None) -> None:
        if self.model is None:
            self.model = labels.get("model_name") or labels.get("model")  # Triton calls it so
        self.has_engine_label = self.has_engine_label or "engine" in labels
        if kind == "config":
            self.config = labels
        elif value is None:
            return
        elif kind == "value":
            self._parts.setdefault(VALUES[name], {})[tuple(sorted(labels.items()))] = value
        elif kind == "labelled":
            field_name, label = LABELLED[name]
            self.labelled[field_name][labels.get(label, "")[:80]] = int(value)
        else:
            self._take_histogram(kind, name, labels, value)

    def _take_histogram(self, kind: str, name: str, labels: dict[str, str], value: float) -> None:
        base = name[: -len(kind)]
        if kind == "_sum":
            self.sums[base] = value
        elif kind == "_count":
            self.counts[base] = value
        else:
            edge = math.inf if labels.get("le") == "+Inf" else read_number(labels.get("le", ""))
            buckets = self.buckets.setdefault(base, {})
            if edge is not None and (edge in buckets or len(buckets) < _MAX_BUCKETS):
                buckets[edge] = value

    def finish(self, index: int, replica: str, *, queries_are_tokens: bool) -> VllmEngine:
        values = self.values
        if self._short is not None:
            values = {**self._short.values, **values}
            for name, counts in self._short.labelled.items():
                self.labelled[name] = self.labelled[name] or counts
            self.has_engine_label = self.has_engine_label or self._short.has_engine_label
        usage, source = values.get("usage_ratio"), "vllm:kv_cache_usage_perc"
        if usage is None:
            usage, source = values.get("old_usage_ratio"), "vllm:gpu_cache_usage_perc"
        queries = values.get("query_tokens", values.get("old_query_tokens")) if queries_are_tokens else None
        hits = values.get("hit_tokens", values.get("old_hit_tokens")) if queries_are_tokens else None
        awake = self.labelled["sleep_state"].get("awake")
        usage = usage if usage is not None and 0 <= usage <= 1 else None
        known = {**values, "usage_ratio": -1.0 if usage is None else usage}
        return VllmEngine(
            index=index,
            replica=replica,
            model=self.model,
            generation=Generation.V1 if self.has_engine_label and "swapped" not in values else Generation.V0,
            running=_whole(values.get("running")),
            waiting=_whole(values.get("waiting")),
            usage_ratio=usage,
            usage_source=source if usage is not None else "",
            prompt_tokens=_whole(values.get("prompt_tokens")),
            generation_tokens=_whole(values.get("generation_tokens")),
            cached_tokens=_whole(values.get("cached_tokens")),
            query_tokens=_whole(queries),
            hit_tokens=_whole(hits),
            preemptions=_whole(values.get("preemptions")),
            draft_tokens=_whole(values.get("draft_tokens")),
            finished=self.labelled["finished"],
            waiting_by_reason=self.labelled["waiting_by_reason"],
            is_asleep=awake == 0,
            histograms=dict(self._histograms()),
            cache_config=self.config,
            missing=tuple(name for name in _EXPECTED if known.get(name, -1.0) < 0),
        )

    def _histograms(self) -> Iterator[tuple[str, HistogramReading]]:
        for name, count in self.counts.items():
            if name not in self.sums:
                continue
            buckets = sorted(self.buckets.get(name, {}).items())
            yield (
                name,
                HistogramReading(
                    name=name,
                    edges=tuple(edge for edge, _ in buckets),
                    counts=tuple(value for _, value in buckets),
                    count=count,
                    total=self.sums[name],
                ),
            )


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 else None
