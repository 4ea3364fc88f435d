"""What the samples of a recorded server say about the requests that ended between them.

An engine tells, in every sample, how many requests have ended and the sums of their lengths; once a minute the buckets
of these histograms too. The interval between two samples therefore has an exact count and exact sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvledger.engines.facts import EngineSnapshot, HistogramReading
from kvledger.engines.vllm.metrics import VllmEngine, VllmScrape
from kvledger.measure.recording import RecordedSample
from kvledger.traces.recorded_counts import read_counts
from kvledger.traces.recorded_slots import SlotHistory

__all__ = ["Histories", "Minute", "RecordedEngine", "Series", "gather", "under_way"]

PROMPT = "request_prompt_tokens"
OUTPUT = "request_generation_tokens"
LIMIT = "request_params_max_tokens"
LATENCY = "e2e_request_latency_seconds"
STEP = "inter_token_latency_seconds"
_CLOCK_SLACK_SECONDS = 2.0
_MOST = 2.0**53
_MOST_COUNTED = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The buckets between two samples that have them.

    ``end``: number of the interval after the last one covered. ``counts[i]`` observations are above ``edges[i - 1]``
    and at most ``edges[i]``; both empty where no buckets tell.
    """

    end: int
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(slots=True)
class Series:
    """One histogram of one engine, interval by interval; :meth:`take` mutates."""

    counts: list[int] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    minutes: list[Minute] = field(default_factory=list)
    earlier: Minute = field(default_factory=lambda: Minute(end=0))
    """The buckets of what ended before the recording began."""
    _last: HistogramReading | None = None
    _buckets: dict[float, float] | None = None
    _owed: float = 0.0

    def start(self, reading: HistogramReading | None) -> None:
        """Set the zero of the first interval."""
        self._last = reading if reading is not None and _is_sane(reading) else None
        self._buckets = _fresh(self._last)
        if self._buckets is not None:
            self.earlier = _difference(self._buckets, {}, end=0)

    def take(self, reading: HistogramReading | None, *, has_restarted: bool) -> None:
        """Add the interval that ends with this reading; after a restart counting begins at zero."""
        if has_restarted:
            self._last, self._buckets = None, {}
            self.minutes.append(Minute(end=len(self.counts)))
        if reading is None or not _is_sane(reading):
            self.counts.append(0)
            self.totals.append(0.0)
            return
        before_count, before_total = (0.0, 0.0) if self._last is None else (self._last.count, self._last.total)
        count = max(0, round(reading.count - before_count))
        total = max(0.0, reading.total - before_total) + self._owed
        self._owed = 0.0 if count else total  # a sum may be scraped one step before its count
        self.counts.append(count)
        self.totals.append(total if count else 0.0)
        self._last = reading
        fresh = _fresh(reading)
        if fresh is not None:
            self._close(fresh)

    def _close(self, fresh: dict[float, float]) -> None:
        before, self._buckets = self._buckets, fresh
        end = len(self.counts)
        self.minutes.append(Minute(end=end) if before is None else _difference(fresh, before, end=end))

    def finish(self) -> None:
        """Close the last minute, whose buckets were not written."""
        if not self.minutes or self.minutes[-1].end < len(self.counts):
            self.minutes.append(Minute(end=len(self.counts)))


def _difference(after: dict[float, float], before: dict[float, float], *, end: int) -> Minute:
    """Return what was added to each bucket."""
    edges = tuple(sorted(after))
    cumulative = [after[edge] - before.get(edge, 0.0) for edge in edges]
    counts = tuple(min(max(0, round(a - b)), _MOST_COUNTED) for a, b in zip(cumulative, [0.0, *cumulative]))
    return Minute(end=end, edges=edges, counts=counts)


def _fresh(reading: HistogramReading | None) -> dict[float, float] | None:
    """Return the buckets by edge when they belong to this very sample: the last of them then is the count."""
    if reading is None or not reading.counts or reading.counts[-1] != reading.count:
        return None
    believed = all(edge > 0 for edge in reading.edges) and all(0 <= count <= _MOST for count in reading.counts)
    return dict(zip(reading.edges, reading.counts)) if believed else None


def _is_sane(reading: HistogramReading) -> bool:
    return 0 <= reading.count <= _MOST and 0 <= reading.total <= _MOST


@dataclass(slots=True)
class RecordedEngine:
    """One engine of one server: its intervals; mutable while samples are gathered.

    ``restarts_open``: requests under way in the last sample before a restart.
    """

    source: int
    index: int
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    prompts: Series = field(default_factory=Series)
    outputs: Series = field(default_factory=Series)
    limits: Series = field(default_factory=Series)
    latencies: Series = field(default_factory=Series)
    steps: Series = field(default_factory=Series)
    restarts_open: int = 0
    first: VllmEngine | None = None
    last: VllmEngine | None = None
    last_seconds: float = 0.0
    start_seconds: float | None = None

    def take(self, engine: VllmEngine, scrape: VllmScrape, seconds: float) -> None:
        """Add one sample."""
        found = engine.histograms
        names = (PROMPT, OUTPUT, LIMIT, LATENCY, STEP)
        pairs = tuple(zip(self._series(), names, strict=True))
        if self.last is None:
            self.first = engine
            for series, name in pairs:
                series.start(found.get(name))
        elif seconds >= self.last_seconds:
            has_restarted = self._restarted(engine, scrape)
            if has_restarted:
                self.restarts_open += under_way(self.last)
            self.began.append(self.last_seconds)
            self.ended.append(seconds)
            for series, name in pairs:
                series.take(found.get(name), has_restarted=has_restarted)
        else:
            return  # a clock set back: the next sample spans it
        self.last, self.last_seconds = engine, seconds
        self.start_seconds = scrape.start_seconds

    def _series(self) -> tuple[Series, ...]:
        return self.prompts, self.outputs, self.limits, self.latencies, self.steps

    def finish(self) -> None:
        """Close the last minute of every histogram."""
        for series in self._series():
            series.finish()

    def _restarted(self, engine: VllmEngine, scrape: VllmScrape) -> bool:
        assert self.last is not None
        starts = self.start_seconds, scrape.start_seconds
        if starts[0] is not None and starts[1] is not None and abs(starts[1] - starts[0]) > _CLOCK_SLACK_SECONDS:
            return True
        return any(
            before is not None and after is not None and after < before
            for before, after in (
                (self.last.count(PROMPT), engine.count(PROMPT)),
                (self.last.count(OUTPUT), engine.count(OUTPUT)),
                (self.last.generation_tokens, engine.generation_tokens),
            )
        )

    @property
    def tells_lengths(self) -> bool:
        """Whether its samples have both histograms of lengths."""
        return self.last is not None and {PROMPT, OUTPUT} <= set(self.last.histograms)

    def mean_latencies(self) -> NDArray[np.float64]:
        """Return the mean end-to-end seconds of each interval: its own, else the recording's; NaN when never told."""
        counts, totals = np.array(self.latencies.counts, dtype=np.float64), np.array(self.latencies.totals)
        overall = totals.sum() / counts.sum() if counts.sum() else math.nan
        means = np.full(len(counts), overall)
        np.divide(totals, counts, out=means, where=counts > 0)
        return means


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """All engines of a recording."""

    engines: tuple[RecordedEngine, ...]
    samples: int
    failed: int
    slots: tuple[SlotHistory, ...] = ()
    """Of llama.cpp servers, whose requests are seen one by one."""
    last_snapshots: tuple[EngineSnapshot, ...] = ()
    """What each server of another engine said last."""


def gather(samples: Iterable[RecordedSample]) -> Histories:
    """Turn samples into the intervals of each engine."""
    engines: dict[tuple[int, int], RecordedEngine] = {}
    slots: dict[int, SlotHistory] = {}
    said: dict[int, tuple[EngineSnapshot, ...]] = {}
    count = failed = 0
    for sample in samples:
        count += 1
        if sample.has_failed or not math.isfinite(sample.seconds):
            failed += 1
            continue
        scrape = sample.scrape or _scrape_of(sample.snapshots)
        for engine in scrape.engines:
            key = (sample.source, engine.index)
            if key not in engines:
                engines[key] = RecordedEngine(source=key[0], index=key[1])
            engines[key].take(engine, scrape, sample.seconds)
        if sample.snapshots:
            said[sample.source] = sample.snapshots
        for snapshot in sample.snapshots:
            if snapshot.slots:
                slots.setdefault(sample.source, SlotHistory(source=sample.source)).take(snapshot.slots, sample.seconds)
    for one in engines.values():
        one.finish()
    return Histories(
        engines=tuple(engines[key] for key in sorted(engines)),
        samples=count,
        failed=failed,
        slots=tuple(slots[source] for source in sorted(slots)),
        last_snapshots=tuple(one for source in sorted(said) for one in said[source]),
    )


def _scrape_of(snapshots: Sequence[EngineSnapshot]) -> VllmScrape:
    """Return what another engine counts of ended requests, as if vLLM had said it; nothing where it counts none."""
    counts = (read_counts(snapshot) for snapshot in snapshots)
    found = {engine.index: engine for engine in counts if engine is not None}
    starts = [snapshot.start_seconds for snapshot in snapshots if snapshot.start_seconds is not None]
    return VllmScrape(engines=tuple(found.values()), start_seconds=min(starts, default=None))


def under_way(engine: VllmEngine | None) -> int:
    """Return the requests running or waiting in a sample."""
    return 0 if engine is None else (engine.running or 0) + (engine.waiting or 0)
