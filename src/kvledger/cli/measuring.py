"""From a source to readings and a report: the wiring that `measure`, `watch` and `check` share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvledger.cli.measure_options import parse_duration
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.errors import Error, ModelError, SourceError, UsageError
from kvledger.ledger import Accuracy
from kvledger.measure.balance import Scheduling
from kvledger.measure.groups import price_by_plan
from kvledger.measure.meter import WINDOW_SAMPLES, Meter, Reading, shown_name
from kvledger.measure.pool import PoolShape
from kvledger.measure.pricing import keeps_every_token, price_by_bytes, price_by_model, price_by_token
from kvledger.measure.recording import RecordedSample
from kvledger.measure.served_name import explain_difference
from kvledger.measure.summary import summarise
from kvledger.model.catalogue import catalogue, find_model
from kvledger.report.measure import MeasureReport, SourceReport
from kvledger.sources.http import Access, fetch, parse_address, read_token
from kvledger.sources.servers import Feed, Pace, Window, is_server, open_feed
from kvledger.units import parse_bytes

if TYPE_CHECKING:
    from kvledger.model.spec import ModelSpec

__all__ = ["Session"]

_MOST_NAMES = 100
"""Served names that are compared with the model given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What the options say about the pool."""

    model: ModelSpec | None
    kv_dtype: str | None
    bytes_per_token: int | None
    kv_memory: int | None
    max_model_len: int | None


class Session:
    """One measurement: opens the source, feeds a meter for each server, gathers the report."""

    def __init__(self, specs: tuple[str, ...], options: dict[str, Any], *, pace: Pace) -> None:
        self._specs = specs
        self._access = _access(options)
        self._pace = pace
        self._facts = _facts(options)
        self._scheduling = Scheduling(options["scheduling"])
        self._served: dict[str, ModelSpec | None] = {}
        self._meters: dict[int, Meter] = {}
        self._samples: dict[int, int] = {}
        self._missed: dict[int, int] = {}
        self._errors: dict[int, str] = {}
        self._notes: list[str] = []
        self._compared: set[str] = set()
        self._hints: list[str] = []
        self._asked_length = False
        self.feed = self._open(options)

    def readings(self, *, on_sample: Callable[[RecordedSample], None] | None = None) -> Iterator[tuple[int, Reading]]:
        """Yield (source, reading) of every engine of every sample as it comes."""
        for sample in self.feed.samples:
            if on_sample is not None:
                on_sample(sample)
            self._samples[sample.source] = self._samples.get(sample.source, 0) + 1
            if sample.scrape is None:
                self._missed[sample.source] = self._missed.get(sample.source, 0) + 1
                self._errors[sample.source] = sample.error
                continue
            meter = self._meters.get(sample.source)
            if meter is None:
                meter = Meter(complete=self._complete, scheduling=self._scheduling)
                self._meters[sample.source] = meter
            for reading in meter.take(sample.scrape, seconds=sample.seconds):
                yield sample.source, reading

    def report(self) -> MeasureReport:
        """Return what was measured so far.

        Raises:
            SourceError: No sample could be read.
        """
        if self.feed.other is not None:
            raise SourceError(
                "the source is a log, or an engine other than vLLM: it gives no window of samples",
                hint="`kvledger measure` reads it as far as it goes",
            )
        if not self._meters:
            reason = next(iter(self._errors.values()), "the source holds no sample")
            raise SourceError(f"nothing was measured: {reason}", hint="give a running server or a saved /metrics text")
        if max(self._samples.values()) > WINDOW_SAMPLES:
            self._notes.append(f"means and peaks are of the last {WINDOW_SAMPLES:,} samples of each engine")
        sources = []
        for number, meter in sorted(self._meters.items()):
            engines = tuple(
                summarise(readings, meter.spans(index)) for index, readings in meter.settle().items() if readings
            )
            sources.append(
                SourceReport(
                    name=self.feed.names[number] if number < len(self.feed.names) else f"source {number + 1}",
                    engines=engines,
                    samples=self._samples[number],
                    missed=self._missed.get(number, 0),
                    last_error=self._errors.get(number, ""),
                )
            )
        return MeasureReport(sources=tuple(sources), notes=tuple(dict.fromkeys(self._notes)))

    def take_hints(self) -> list[str]:
        """Return what came up since the last call and should be said at once."""
        hints, self._hints = self._hints, []
        return hints

    def _open(self, options: dict[str, Any]) -> Feed:
        window = Window(
            since_seconds=parse_duration(options["since"]),
            until_seconds=parse_duration(options["until"]),
            step_seconds=max(1.0, self._pace.every_seconds),
            selector=options["selector"],
        )
        return open_feed(self._specs, access=self._access, pace=self._pace, window=window)

    def _complete(self, shape: PoolShape, engine: VllmEngine) -> PoolShape:
        facts = self._facts
        if facts.max_model_len is not None:
            shape = replace(shape, max_model_len=facts.max_model_len, max_model_len_source="--max-model-len")
        elif shape.max_model_len is None:
            shape = self._ask_length(shape)
        if facts.bytes_per_token is not None:
            return price_by_token(shape, facts.bytes_per_token)
        if facts.kv_memory is not None:
            return price_by_bytes(shape, facts.kv_memory, source="--kv-memory", accuracy=Accuracy.DERIVED)
        if facts.model is not None and engine.model is not None:
            self._compare_names(engine.model, facts.model)
        model = facts.model or self._find_served(engine.model)
        if model is not None:
            dtype = facts.kv_dtype or _served_dtype(engine)
            price = price_by_model if keeps_every_token(model) else price_by_plan
            try:
                return price(shape, model, dtype)
            except (ModelError, UsageError) as error:
                self._notes.append(error.message)
        if shape.pricing is None:
            self._notes.append("what a token costs is not known: give --model, --bytes-per-token or --kv-memory")
        return shape

    def _compare_names(self, served: str, model: ModelSpec) -> None:
        """Note once for each served name that another model is served than the one given."""
        if served in self._compared or len(self._compared) >= _MOST_NAMES:
            return
        self._compared.add(served)
        why = explain_difference(served, model, self._find_served(served), families=catalogue())
        if why is not None:
            text = f"the server serves `{shown_name(served)[:80]}`, but --model is {model.name}: {why}"
            self._notes.append(text)
            self._hints.append(text)

    def _find_served(self, name: str | None) -> ModelSpec | None:
        if name is None:
            return None
        if name not in self._served:
            self._served[name] = None
            with suppress(UsageError):
                self._served[name] = find_model(name)
        return self._served[name]

    def _ask_length(self, shape: PoolShape) -> PoolShape:
        """Ask the server's list of models once for the longest request; nothing is lost when it does not answer."""
        spec = self._specs[0]
        if self._asked_length or len(self._specs) > 1 or not is_server(spec) or spec.startswith("prometheus:"):
            return self._with_length(shape)
        self._asked_length = True
        try:
            address = replace(parse_address(spec, default_path="/v1/models"), path="/v1/models")
            answer = json.loads(fetch(address, self._access).content)
            length = answer["data"][0]["max_model_len"]
        except (Error, ValueError, LookupError, TypeError, RecursionError):
            return shape
        if isinstance(length, int) and 0 < length <= 2**40:
            self._told_length = length
        return self._with_length(shape)

    _told_length: int | None = None

    def _with_length(self, shape: PoolShape) -> PoolShape:
        if self._told_length is None:
            return shape
        return replace(shape, max_model_len=self._told_length, max_model_len_source="the server's list of models")


def _served_dtype(engine: VllmEngine) -> str | None:
    told = engine.cache_config.get("cache_dtype", "auto")
    return None if told in ("auto", "None", "") else told


def _access(options: dict[str, Any]) -> Access:
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


def _facts(options: dict[str, Any]) -> _Facts:
    given = [name for name in ("model", "bytes_per_token", "kv_memory") if options[name] is not None]
    if len(given) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"what a token costs was given twice: {names}", hint="give one of them")
    model = None
    if options["model"] is not None:
        from kvledger.sources.models import load_model

        model = load_model(options["model"])
    return _Facts(
        model=model,
        kv_dtype=options["kv_dtype"],
        bytes_per_token=options["bytes_per_token"],
        kv_memory=None if options["kv_memory"] is None else parse_bytes(options["kv_memory"]),
        max_model_len=options["max_model_len"],
    )
