"""From a source to readings and a report: the wiring that `measure`, `watch` and `check` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kvledger.cli.completing import Completer, read_background, read_facts
from kvledger.cli.looking import look_at_engines, look_at_pools
from kvledger.cli.measure_options import parse_duration
from kvledger.cli.unused import find_given, name_unused, unused_by_source
from kvledger.engines.facts import Engine, EngineSnapshot
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.errors import SourceError, UsageError
from kvledger.findings.finding import FindingsReport
from kvledger.measure.balance import Scheduling
from kvledger.measure.meter import WINDOW_SAMPLES, Meter, Reading
from kvledger.measure.pool_meter import PoolMeter, PoolMoment
from kvledger.measure.pool_summary import PoolSummary, summarise_pool
from kvledger.measure.recording import RecordedSample
from kvledger.measure.selection import Selection
from kvledger.measure.summary import summarise
from kvledger.measure.verdict import Verdict, tell_missed
from kvledger.report.measure import MeasureReport, SourceReport
from kvledger.sources.http import Access, read_token
from kvledger.sources.servers import Feed, Pace, Window, is_server, open_feed
from kvledger.units import parse_bytes

__all__ = ["Session", "read_access"]


class Session:
    """One measurement: opens the source, feeds a meter for each server, gathers the report."""

    def __init__(self, specs: tuple[str, ...], options: dict[str, Any], *, pace: Pace) -> None:
        self._specs = specs
        self._access = read_access(options)
        self._pace = pace
        facts = read_facts(options)
        self._started = facts.startup
        self._complete = Completer(facts, access=self._access, server=specs[0] if self._can_tell_length() else None)
        self._scheduling = Scheduling(options["scheduling"])
        self._meters: dict[int, Meter] = {}
        self._pool_meters: dict[int, PoolMeter] = {}
        self._engines: set[Engine] = set()
        self._background = read_background(options, facts, self._complete)
        self._selection = Selection(source=options["server"], engine=options["engine"])
        self._samples: dict[int, int] = {}
        self._missed: dict[int, int] = {}
        self._errors: dict[int, str] = {}
        self._failing: dict[int, str] = {}
        self._notes: list[str] = []
        self.feed = self._open(options)
        self._given = find_given()
        self._hints = list(unused_by_source(specs, self._given))

    def readings(
        self, *, on_sample: Callable[[RecordedSample], None] | None = None
    ) -> Iterator[tuple[int, Reading | PoolMoment]]:
        """Yield (source, reading) of every engine, or every pool, of every sample as it comes."""
        for taken in self.feed.samples:
            sample = self._selection.choose(taken)
            if sample is None:
                continue
            if on_sample is not None:
                on_sample(sample)
            self._samples[sample.source] = self._samples.get(sample.source, 0) + 1
            if sample.has_failed:
                self._missed[sample.source] = self._missed.get(sample.source, 0) + 1
                self._errors[sample.source] = self._failing[sample.source] = sample.error
                continue
            self._failing.pop(sample.source, None)
            if sample.scrape is None:
                yield from ((sample.source, moment) for moment in self._take_pools(sample))
                continue
            meter = self._meters.get(sample.source)
            if meter is None:
                meter = Meter(complete=self._complete, started=self._started, scheduling=self._scheduling)
                self._meters[sample.source] = meter
            for reading in meter.take(sample.scrape, seconds=sample.seconds):
                yield sample.source, reading

    def report(self) -> MeasureReport:
        """Return what was measured so far.

        Raises:
            SourceError: No sample could be read.
        """
        if self.feed.log is not None:
            raise SourceError(
                "the source is a log: it gives no window of samples",
                hint="`kvledger measure` reads it as far as it goes",
            )
        if not self._meters and not self._pool_meters:
            reason = next(iter(self._errors.values()), None) or self._explain_nothing()
            hint = "give a running server or a saved /metrics text"
            if self._has_chosen_nothing() and not self._errors:
                hint = "give one that is there, or leave --server and --engine out"
            raise SourceError(f"nothing was measured: {reason}", hint=hint)
        if max(self._samples.values()) > WINDOW_SAMPLES:
            self._notes.append(f"means and peaks are of the last {WINDOW_SAMPLES:,} samples of each engine")
        self._notes += self._name_unused()
        sources = {number: self._source(number) for number in sorted(self._samples)}
        notes = (*self._notes, *self._complete.notes, *self._background.notes)
        return MeasureReport(
            sources=tuple(sources.values()), notes=tuple(dict.fromkeys(notes)), findings=self._look(sources)
        )

    def _name_unused(self) -> Iterator[str]:
        """Name options of engines of which none was measured."""
        if not self._meters:
            yield from name_unused(("scheduling",), self._given, "it is of vLLM, and none was measured")
        if Engine.LLAMACPP not in self._engines:
            yield from name_unused(("kv_unified",), self._given, "it is of llama.cpp, and none was measured")

    def _look(self, sources: dict[int, SourceReport]) -> FindingsReport:
        """Look for what would give memory back."""
        engines, pools = [], []
        for number, source in sources.items():
            meter = self._meters.get(number)
            engines += [(source.name, one, _last_scrape(meter, one.engine_index)) for one in source.engines]
            pools += [(source.name, one, self._last_snapshot(number, one)) for one in source.pools]
        return FindingsReport.ranked([*look_at_engines(engines).findings, *look_at_pools(pools).findings])

    def _explain_nothing(self) -> str:
        return self._selection.explain() if self._has_chosen_nothing() else "the source holds no sample"

    def _has_chosen_nothing(self) -> bool:
        """Tell whether there were samples, and none of what was asked for."""
        return (self._selection.source, self._selection.engine) != (None, None) and bool(self._selection.sources)

    def _last_snapshot(self, number: int, pool: PoolSummary) -> EngineSnapshot:
        """Return the last snapshot of a pool's engine, with what is not kept of every sample."""
        spans = self._pool_meters[number].spans(pool.key)
        return spans[-1][1] if spans else pool.last.snapshot

    def _source(self, number: int) -> SourceReport:
        meter, pools = self._meters.get(number), self._pool_meters.get(number)
        settled = {} if meter is None else meter.settle()
        return SourceReport(
            name=self.feed.names[number] if number < len(self.feed.names) else f"source {number + 1}",
            engines=tuple(
                replace(found, verdict=self._tell_missed(found.verdict, number))
                for index, readings in settled.items()
                if readings and meter is not None
                for found in (summarise(readings, meter.spans(index)),)
            ),
            pools=()
            if pools is None
            else tuple(
                replace(found, verdict=self._tell_missed(found.verdict, number))
                for key, moments in pools.settle().items()
                for found in (summarise_pool(moments, pools.spans(key)),)
            ),
            samples=self._samples[number],
            missed=self._missed.get(number, 0),
            last_error=self._errors.get(number, ""),
            failing=self._failing.get(number, ""),
        )

    def _tell_missed(self, verdict: Verdict, number: int) -> Verdict:
        samples = self._samples[number]
        answered = samples - self._missed.get(number, 0)
        return tell_missed(verdict, answered=answered, samples=samples, error=self._errors.get(number, ""))

    def _take_pools(self, sample: RecordedSample) -> tuple[PoolMoment, ...]:
        meter = self._pool_meters.get(sample.source)
        if meter is None:
            background = self._background
            meter = PoolMeter(complete=background.complete, expand=background.expand)
            self._pool_meters[sample.source] = meter
        self._engines |= {snapshot.engine for snapshot in sample.snapshots}
        for snapshot in sample.snapshots:
            self._complete.compare_names(snapshot.model)
        return meter.take(sample.snapshots, seconds=sample.seconds)

    def take_hints(self) -> list[str]:
        """Return what came up since the last call and should be said at once."""
        hints, self._hints = self._hints, []
        return [*hints, *self._complete.take_hints()]

    def _can_tell_length(self) -> bool:
        spec = self._specs[0]
        return len(self._specs) == 1 and is_server(spec) and not spec.startswith("prometheus:")

    def _open(self, options: dict[str, Any]) -> Feed:
        window = Window(
            since_seconds=parse_duration(options["since"]),
            until_seconds=parse_duration(options["until"]),
            step_seconds=max(1.0, self._pace.every_seconds),
            selector=options["selector"],
        )
        return open_feed(self._specs, access=self._access, pace=self._pace, window=window)


def _last_scrape(meter: Meter | None, engine_index: int) -> VllmEngine | None:
    spans = meter.spans(engine_index) if meter is not None else []
    return spans[-1][1] if spans else None


def read_access(options: dict[str, Any]) -> Access:
    """Read how a server may be asked."""
    timeout = parse_duration(options["timeout"])
    if not 0.01 <= timeout <= 600:
        raise UsageError(f"--timeout is {timeout:g} s, but must be 0.01 to 600 s")
    return Access(
        timeout_seconds=timeout,
        max_bytes=parse_bytes(options["max_size"]),
        ca_file=options["ca_file"],
        verify_tls=not options["insecure"],
        token=read_token(options["token_file"]),
    )
