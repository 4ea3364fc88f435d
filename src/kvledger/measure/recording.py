"""Recordings: every sample of a server as small changes, so that a week fits and a crash loses one sample.

A sample is flattened to numbers by name; a frame holds only what changed, as differences, in JSON. Names are said once
and numbered. Buckets of histograms are written once a minute: sums and counts carry the rest. Frames are compressed as
one stream that is flushed after each frame, so every whole frame can be read whatever follows it.

Layout: a line of magic, then frames: length (4 bytes), CRC-32 (4 bytes), kind (1 byte), payload. Kind ``S`` starts a
new stream (a new process appends to an old recording), ``C`` continues it.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvledger.engines.facts import EngineSnapshot, HistogramReading
from kvledger.engines.vllm.metrics import Generation, VllmEngine, VllmScrape
from kvledger.errors import SourceError
from kvledger.measure.recorded_snapshots import MARK, build_snapshots, flatten_snapshots

__all__ = ["MAGIC", "FrameReader", "FrameWriter", "RecordedSample"]

MAGIC = b"kvledger recording 1\n"
_HEAD = struct.Struct("<IIc")
_MAX_FRAME = 16 * 2**20
_MAX_TEXT = 64 * 2**20
_MAX_NAMES = 200_000
_BUCKETS_EVERY_SECONDS = 60.0
_EXPECTED = ("running", "waiting", "usage_ratio", "prompt_tokens", "generation_tokens")
_COUNTS = (
    "running",
    "waiting",
    "prompt_tokens",
    "generation_tokens",
    "cached_tokens",
    "query_tokens",
    "hit_tokens",
    "preemptions",
    "draft_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSample:
    """One sample of one source: a scrape of vLLM, or what another engine says; ``error`` says why there is neither."""

    seconds: float
    source: int
    scrape: VllmScrape | None = None
    snapshots: tuple[EngineSnapshot, ...] = ()
    error: str = ""

    @property
    def has_failed(self) -> bool:
        """True when the source gave no answer that can be read."""
        return self.scrape is None and not self.snapshots


def _keep(at: int) -> str:
    if at <= len(MAGIC):
        return "no sample lies before the damage: record anew"
    return f"keep the samples before it: `head -c {at} damaged.kvr > kept.kvr`, then read kept.kvr"


@dataclass(slots=True)
class _State:
    """Names and last values of one stream."""

    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)


class FrameWriter:
    """Turns samples into frames; a new writer starts a new stream."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        self._state = _State()
        self._started = False
        self._seconds = 0.0
        self._buckets_at: dict[int, float] = {}

    def write(self, sample: RecordedSample) -> bytes:
        """Return the frame of one sample."""
        due = sample.seconds - self._buckets_at.get(sample.source, -math.inf) >= _BUCKETS_EVERY_SECONDS
        flat: Mapping[str, Any] = {}
        if not sample.has_failed:
            prefix = f"{sample.source}/"
            flat = dict(flatten_snapshots(sample.snapshots, prefix=prefix, buckets=due))
            if sample.scrape is not None:
                flat = dict(_flatten(sample.scrape, prefix=prefix, buckets=due))
            if due:
                self._buckets_at[sample.source] = sample.seconds
        frame: dict[str, Any] = {"t": round(sample.seconds - self._seconds, 3)}
        self._seconds = round(self._seconds + frame["t"], 3)
        if sample.source:
            frame["s"] = sample.source
        if sample.has_failed:
            frame["e"] = sample.error[:200] or "no answer"
        gone_prefix = None if sample.has_failed else f"{sample.source}/"
        named, changed = self._changes(flat, gone_prefix=gone_prefix, has_buckets=due)
        if named:
            frame["n"] = named
        if changed:
            frame["d"] = changed
        text = json.dumps(frame, separators=(",", ":"), allow_nan=False).encode()
        payload = self._packer.compress(text) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        kind = b"C" if self._started else b"S"
        self._started = True
        return _HEAD.pack(len(payload), zlib.crc32(payload), kind) + payload

    def _changes(
        self, flat: Mapping[str, Any], *, gone_prefix: str | None, has_buckets: bool
    ) -> tuple[list[Any], list[Any]]:
        state, named, changed = self._state, [], []
        for name, value in flat.items():
            number = state.numbers.get(name)
            if number is None:
                state.numbers[name] = len(state.names)
                state.values[len(state.names)] = value
                state.names.append(name)
                named += [name, value]
                continue
            before = state.values.get(number)
            if before == value and type(before) is type(value):
                continue
            small = type(before) is int and type(value) is int
            changed += [number, value - before] if small else [number, [value]]
            state.values[number] = value
        if gone_prefix is not None:
            for number in [n for n in state.values if state.names[n].startswith(gone_prefix)]:
                name = state.names[number]
                if name not in flat and (has_buckets or "/b/" not in name):
                    changed += [number, None]
                    del state.values[number]
        return named, changed


class FrameReader:
    """Reads frames back; tolerant of a torn end, strict about everything else."""

    def __init__(self) -> None:
        self._unpacker: Any = None
        self._state = _State()
        self._paths: list[_Path] = []
        self._marked: list[int] = []
        self._seconds = 0.0
        self.good_bytes = len(MAGIC)
        """Where the last whole frame ends."""

    def read(self, content: bytes) -> Iterator[RecordedSample]:
        """Yield the samples of a whole recording.

        Raises:
            SourceError: It is no recording, or is damaged before its end.
        """
        if not content.startswith(MAGIC):
            raise SourceError("this is no recording of kvledger", hint="make one with `kvledger measure --record FILE`")
        at = len(MAGIC)
        while at + _HEAD.size <= len(content):
            length, checksum, kind = _HEAD.unpack_from(content, at)
            end = at + _HEAD.size + length
            if end > len(content):
                return
            payload = content[at + _HEAD.size : end]
            if length > _MAX_FRAME or zlib.crc32(payload) != checksum or kind not in (b"S", b"C"):
                if end == len(content):
                    return
                raise SourceError(f"the recording is damaged at byte {at:,}", hint=_keep(at))
            yield self._decode(payload, kind, at)
            at = self.good_bytes = end

    def _decode(self, payload: bytes, kind: bytes, at: int) -> RecordedSample:
        if kind == b"S":
            self._unpacker, self._state, self._seconds = zlib.decompressobj(-15), _State(), 0.0
            self._paths, self._marked = [], []
        try:
            if self._unpacker is None:
                raise ValueError("it does not begin with a stream")
            text = self._unpacker.decompress(payload, _MAX_TEXT)
            if self._unpacker.unconsumed_tail:
                raise ValueError("a frame is too large")
            frame = json.loads(text)
            return self._apply(frame)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, zlib.error, RecursionError) as error:
            raise SourceError(
                f"the recording cannot be understood at byte {at:,}: {str(error)[:100]}", hint=_keep(at)
            ) from None

    def _apply(self, frame: dict[str, Any]) -> RecordedSample:
        state = self._state
        self._seconds = round(self._seconds + float(frame["t"]), 3)
        named = frame.get("n", [])
        if len(state.names) + len(named) > _MAX_NAMES:
            raise ValueError("it has too many names")
        for name, value in zip(named[::2], named[1::2], strict=True):
            state.values[len(state.names)] = value
            state.names.append(str(name))
            self._paths.append(_Path.of(str(name)))
            if self._paths[-1].kind == "snapshot":
                self._marked.append(len(self._paths) - 1)
        changed = frame.get("d", [])
        for number, change in zip(changed[::2], changed[1::2], strict=True):
            if change is None:
                state.values.pop(number, None)
            elif isinstance(change, list):
                state.values[number] = change[0]
            else:
                state.values[number] = state.values[number] + change
        source = int(frame.get("s", 0))
        if "e" in frame:
            return RecordedSample(seconds=self._seconds, source=source, error=str(frame["e"])[:200])
        snapshots = self._snapshots(source)
        if snapshots:
            return RecordedSample(seconds=self._seconds, source=source, snapshots=snapshots)
        return RecordedSample(seconds=self._seconds, source=source, scrape=self._scrape(source))

    def _snapshots(self, source: int) -> tuple[EngineSnapshot, ...]:
        values = self._state.values
        mine = (number for number in self._marked if self._paths[number].source == source and number in values)
        return build_snapshots({self._paths[number].key: values[number] for number in mine})

    def _scrape(self, source: int) -> VllmScrape:
        found: dict[str, Any] = {}
        engines: dict[int, _Parts] = {}
        paths = self._paths
        for number, value in self._state.values.items():
            path = paths[number]
            if path.source != source:
                continue
            if path.engine is None:
                if path.kind != "snapshot":
                    found[path.key] = value
                continue
            parts = engines.get(path.engine)
            if parts is None:
                parts = engines[path.engine] = _Parts()
            parts.take(path, value)
        if not engines:
            raise ValueError("a sample has no engine")
        return VllmScrape(
            engines=tuple(parts.finish(index) for index, parts in sorted(engines.items())),
            start_seconds=found.get("start"),
            is_multiprocess=bool(found.get("multiprocess")),
        )


@dataclass(frozen=True, slots=True)
class _Path:
    """A name taken apart once: it is looked at in every sample."""

    source: int
    engine: int | None
    kind: str
    """``value``, ``text`` of a group, ``sum`` of a histogram, ``bucket``, or ``snapshot`` of another engine."""
    group: str
    key: str
    edge: float = 0.0

    @classmethod
    def of(cls, name: str) -> _Path:
        source, _, rest = name.partition("/")
        index, slash, rest_of_engine = rest.partition("/")
        if rest.startswith(MARK):
            return cls(int(source), None, "snapshot", "", rest)
        if not slash or not index.isdigit():
            return cls(int(source), None, "value", "", rest)
        group, slash, key = rest_of_engine.partition("/")
        if not slash:
            return cls(int(source), int(index), "value", "", group)
        if group != "h":
            return cls(int(source), int(index), "text", group, key)
        histogram, _, part = key.partition("/")
        if part.startswith("b/"):
            return cls(int(source), int(index), "bucket", histogram, part, float(part[2:]))
        return cls(int(source), int(index), "sum", histogram, part)


class _Parts:
    """One engine while its values are gathered."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.groups: dict[str, dict[str, Any]] = {"finished": {}, "waiting_by_reason": {}, "cache_config": {}}
        self.sums: dict[str, dict[str, float]] = {}
        self.buckets: dict[str, list[tuple[float, float]]] = {}

    def take(self, path: _Path, value: Any) -> None:
        if path.kind == "value":
            self.values[path.key] = value
        elif path.kind == "bucket":
            self.buckets.setdefault(path.group, []).append((path.edge, float(value)))
        elif path.kind == "sum":
            self.sums.setdefault(path.group, {})[path.key] = float(value)
        elif path.group in self.groups:
            self.groups[path.group][path.key] = value

    def finish(self, index: int) -> VllmEngine:
        values, groups = self.values, self.groups
        usage = values.get("usage_ratio")
        counts = {name: int(values[name]) for name in _COUNTS if name in values}
        return VllmEngine(
            index=index,
            model=values.get("model"),
            replica=str(values.get("replica", "")),
            generation=Generation(values.get("generation", "V1")),
            usage_ratio=None if usage is None else float(usage),
            usage_source=str(values.get("usage_source", "")),
            is_asleep=bool(values.get("asleep")),
            finished={key: int(value) for key, value in groups["finished"].items()},
            waiting_by_reason={key: int(value) for key, value in groups["waiting_by_reason"].items()},
            cache_config={key: str(value) for key, value in groups["cache_config"].items()},
            histograms={name: self._histogram(name) for name in self.sums},
            missing=tuple(name for name in _EXPECTED if name not in values),
            **counts,
        )

    def _histogram(self, name: str) -> HistogramReading:
        buckets = sorted(self.buckets.get(name, ()))
        sums = self.sums[name]
        return HistogramReading(
            name=name,
            edges=tuple(edge for edge, _ in buckets),
            counts=tuple(value for _, value in buckets),
            count=sums.get("count", 0.0),
            total=sums.get("total", 0.0),
        )


def _flatten(scrape: VllmScrape, *, prefix: str, buckets: bool) -> Iterator[tuple[str, Any]]:
    if scrape.start_seconds is not None:
        yield f"{prefix}start", scrape.start_seconds
    if scrape.is_multiprocess:
        yield f"{prefix}multiprocess", 1
    for engine in scrape.engines:
        at = f"{prefix}{engine.index}/"
        yield f"{at}generation", engine.generation.value
        yield f"{at}model", engine.model
        if engine.replica:
            yield f"{at}replica", engine.replica
        yield f"{at}asleep", int(engine.is_asleep)
        for name in _COUNTS:
            value = getattr(engine, name)
            if value is not None:
                yield at + name, value
        if engine.usage_ratio is not None:
            yield f"{at}usage_ratio", engine.usage_ratio
            yield f"{at}usage_source", engine.usage_source
        for kind in ("finished", "waiting_by_reason", "cache_config"):
            for label, number in getattr(engine, kind).items():
                yield f"{at}{kind}/{label}", number
        for name, histogram in engine.histograms.items():
            yield f"{at}h/{name}/count", int(histogram.count)
            yield f"{at}h/{name}/total", _compact(histogram.total)
            if buckets:
                for edge, count in zip(histogram.edges, histogram.counts, strict=True):
                    yield f"{at}h/{name}/b/{edge!r}", int(count)


def _compact(value: float) -> int | float:
    return int(value) if value.is_integer() else round(value, 6)
