"""The ``/metrics`` of vLLM: what one scrape says about each engine behind it.

Names and meanings follow ``vllm/v1/metrics/loggers.py`` (read in 0.8.5 to 0.33.0) and, for V0, ``engine/metrics.py``.
Only series the laws need are kept; ``_created`` series and everything unknown are ignored. A series that is absent,
``NaN`` or ``None`` stays None and is listed in ``missing``: it never becomes 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.engines.facts import HistogramReading
from kvledger.errors import SourceError

__all__ = ["Generation", "VllmEngine", "VllmScrape", "read_vllm_metrics", "wanted_series"]

MAX_ENGINES = 4096
_MAX_BUCKETS = 256
_MAX_LABELS = 200
_PREFIX = "vllm:"

_VALUES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_requests_swapped": "swapped",
    "kv_cache_usage_perc": "usage_ratio",
    "gpu_cache_usage_perc": "old_usage_ratio",
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
    "prompt_tokens_cached_total": "cached_tokens",
    "prefix_cache_queries_total": "query_tokens",
    "prefix_cache_hits_total": "hit_tokens",
    "gpu_prefix_cache_queries_total": "old_query_tokens",
    "gpu_prefix_cache_hits_total": "old_hit_tokens",
    "num_preemptions_total": "preemptions",
    "spec_decode_num_draft_tokens_total": "draft_tokens",
}
"""Series that become one number of the engine, and our name for it."""

_LABELLED = {
    "request_success_total": ("finished", "finished_reason"),
    "num_requests_waiting_by_reason": ("waiting_by_reason", "reason"),
    "engine_sleep_state": ("sleep_state", "sleep_state"),
}

_HISTOGRAMS = {
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
}
_ENDINGS = ("_bucket", "_sum", "_count")
_EXPECTED = ("running", "waiting", "usage_ratio", "prompt_tokens", "generation_tokens")
_SERIES = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


class Generation(StrEnum):
    """Which of vLLM's two engines speaks."""

    V0 = "V0"
    V1 = "V1"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngine:
    """One engine at one instant; counters are cumulative since its start, None where the scrape does not say it."""

    index: int
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
    """By the source's name without ``vllm:``."""
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of ``vllm:cache_config_info``; the number of blocks in it is summed over data-parallel engines."""
    missing: tuple[str, ...] = ()

    def count_config(self, name: str) -> int | None:
        """Return a whole number of the cache config; None when absent, ``None`` or no number."""
        text = self.cache_config.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

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
    """Several API servers write these series: gauges and counters may be one step apart."""
    garbled_lines: int = 0


def wanted_series(*, buckets: bool) -> frozenset[str]:
    """Return the names that are read, without ``vllm:``; ``buckets`` adds those of histogram buckets."""
    return frozenset(name for name in _wanted_names() if buckets or not name.endswith("_bucket"))


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
        self._engines: dict[int, _Draft] = {}
        self._wanted = _wanted_names()
        self._named = 0
        self._garbled = 0
        self._created = False
        self._start: float | None = None
        self._queries_are_tokens = True

    def take(self, line: str) -> None:
        if not line.startswith(_PREFIX):
            if line.startswith("#"):
                self._comment(line)
            elif line.startswith("process_start_time_seconds"):
                self._start = _number(line.rpartition(" ")[2])
            return
        end = min((at for at in (line.find("{"), line.find(" ")) if at > 0), default=len(line))
        name = line[len(_PREFIX) : end]
        kind = self._wanted.get(name)
        if kind is None:
            self._created = self._created or name.endswith("_created")
            return
        match = _SERIES.match(line)
        if match is None:
            self._garbled += 1
            return
        labels = self._read_labels(match["labels"] or "")
        index = labels.get("engine", "0")
        if not (index.isascii() and index.isdigit() and len(index) < 6) or (
            len(self._engines) >= MAX_ENGINES and int(index) not in self._engines
        ):
            self._garbled += 1
            return
        self._engines.setdefault(int(index), _Draft()).take(kind, name, labels, _number(match["value"]))

    def _comment(self, line: str) -> None:
        if line.startswith("# HELP vllm:"):
            self._named += 1
            if "prefix_cache_queries" in line:
                self._queries_are_tokens = "token" in line

    def _read_labels(self, text: str) -> dict[str, str]:
        found = self._labels.get(text)
        if found is None:
            pairs = _LABEL.findall(text)[:_MAX_LABELS]
            found = {key: _unescape(value) for key, value in pairs}
            if '"le"' not in text and 'le="' not in text:
                self._labels[text] = found
        return found

    def finish(self) -> VllmScrape:
        if not self._engines:
            if self._named:
                raise SourceError(
                    "the text names metrics of vLLM but has no sample of any: the server keeps no statistics",
                    hint="start the server without `--disable-log-stats`",
                )
            raise SourceError(
                "the text has no metric of vLLM",
                hint="give the server's /metrics, such as http://host:8000 or a saved copy of it",
            )
        engines = tuple(
            draft.finish(index, queries_are_tokens=self._queries_are_tokens)
            for index, draft in sorted(self._engines.items())
        )
        if all(engine.running is engine.prompt_tokens is engine.usage_ratio is None for engine in engines):
            raise SourceError(
                "the text has metrics of vLLM, but neither running requests, nor usage, nor token counters",
                hint="give the whole /metrics of the server, not a selection",
            )
        return VllmScrape(
            engines=engines,
            start_seconds=self._start,
            is_multiprocess=not self._created and self._start is None,
            garbled_lines=self._garbled,
        )


class _Draft:
    """One engine while its series are being read."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.labelled: dict[str, dict[str, int]] = {field_name: {} for field_name, _ in _LABELLED.values()}
        self.sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}
        self.buckets: dict[str, list[tuple[float, float]]] = {}
        self.config: dict[str, str] = {}
        self.model: str | None = None
        self.has_engine_label = False

    def take(self, kind: str, name: str, labels: dict[str, str], value: float | None) -> None:
        if self.model is None:
            self.model = labels.get("model_name")
        self.has_engine_label = self.has_engine_label or "engine" in labels
        if kind == "config":
            self.config = labels
        elif value is None:
            return
        elif kind == "value":
            key = _VALUES[name]
            self.values[key] = self.values.get(key, 0.0) + value
        elif kind == "labelled":
            field_name, label = _LABELLED[name]
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
            edge = math.inf if labels.get("le") == "+Inf" else _number(labels.get("le", ""))
            buckets = self.buckets.setdefault(base, [])
            if edge is not None and len(buckets) < _MAX_BUCKETS:
                buckets.append((edge, value))

    def finish(self, index: int, *, queries_are_tokens: bool) -> VllmEngine:
        values = self.values
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
            buckets = sorted(self.buckets.get(name, ()))
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


def _wanted_names() -> dict[str, str]:
    wanted = dict.fromkeys(_VALUES, "value") | dict.fromkeys(_LABELLED, "labelled") | {"cache_config_info": "config"}
    return wanted | dict(_histogram_names(_HISTOGRAMS))


def _histogram_names(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        for ending in _ENDINGS:
            yield f"{name}{ending}", ending


def _number(text: str) -> float | None:
    """Return a finite number of at most 2**60, else None (``NaN``, ``None``, garbage)."""
    try:
        value = float(text[:64])
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= 2**60 else None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 else None


def _unescape(text: str) -> str:
    return text if "\\" not in text else text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
