"""RAGPulse: a university's RAG service, with content ids for the parts of every prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

import msgspec

from kvledger.errors import SourceError
from kvledger.replay.workload import HashKind
from kvledger.traces.batch import IdentityKind
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape, look
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.rows import RowBuffer
from kvledger.traces.stream import TraceInput

__all__ = ["READER"]

FORMAT = TraceFormat(
    name="ragpulse", sentence="RAGPulse trace: seconds, lengths, sessions, content ids of prompt components"
)
_DAY_SECONDS = 86_400.0
_HOUR_SECONDS = 3600.0
_FRESH = 1 << 40
"""First of the ids given to what has none: template tokens occur once each."""


class _Parts(msgspec.Struct):
    sys_prompt: list[int] = []
    passages_ids: list[int] = []
    history: list[int] = []
    web_search: list[int] = []
    user_input: list[int] = []


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: _Parts
    session_id: str = ""


def _matches(head: Head) -> bool:
    parts = head.first.get("hash_ids")
    return head.shape is Shape.JSON_LINES and isinstance(parts, dict) and "passages_ids" in parts


class _Unrolled:
    """A clock that restarts at 0: a later pass goes on at the next full day, so that times of day stay."""

    def __init__(self) -> None:
        self.offset_seconds = 0.0
        self.restarts = 0
        self._latest_seconds = 0.0

    def seconds(self, shown: float) -> float:
        if shown < 0.1 * self._latest_seconds and self._latest_seconds - shown > _HOUR_SECONDS:
            self.offset_seconds += math.ceil(self._latest_seconds / _DAY_SECONDS) * _DAY_SECONDS
            self.restarts += 1
            self._latest_seconds = 0.0
        self._latest_seconds = max(self._latest_seconds, shown)
        return self.offset_seconds + shown


def _lengths(options: ReadOptions) -> dict[int, int]:
    """Read how long each component is from the files beside the trace (known by their fields)."""
    lengths: dict[int, int] = {}
    for name, opener in options.siblings.items():
        with opener() as raw:
            try:
                source = TraceInput(raw, name=name)
                head = look(source)
            except SourceError:
                continue
            key = next((key for key in head.keys if key.endswith("_id")), None)
            if head.shape is not Shape.JSON_LINES or key is None or not head.has("token_length"):
                continue
            for line in source.lines():
                try:
                    row = msgspec.json.decode(line)
                    lengths[int(row[key])] = max(0, min(int(row["token_length"]), 1 << 20))
                except (msgspec.DecodeError, KeyError, TypeError, ValueError, UnicodeDecodeError):
                    continue
    return lengths


def _read(given: Given) -> Trace:
    lengths = _lengths(given.options) if given.options.identity else {}
    kind = IdentityKind.hashes(512, HashKind.CONTENT) if lengths else None
    builder = WorkloadBuilder(FORMAT, source=given.source.name, identity=kind)
    rows = RowBuffer(builder, sessions=True, identified=kind is not None)
    clock, sessions = _Unrolled(), dict[str, int]()
    decoder = msgspec.json.Decoder(_Row, strict=False)
    for number, line in enumerate(given.source.lines()):
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
            builder.drop("line is not a RAGPulse row")
            continue
        session = sessions.setdefault(row.session_id, len(sessions)) if row.session_id else -1
        seconds = clock.seconds(row.timestamp)
        rows.add(row.input_length, row.output_length, arrival_seconds=seconds, session=session)
        if clock.restarts:
            builder.adjusted["clock had restarted: moved behind the pass before"] += 1
        if kind is not None:
            rows.identify(*_identity(row, lengths, fresh=_FRESH + number))
    rows.flush()
    _explain(builder, given.options, known=bool(lengths), restarts=clock.restarts)
    return builder.build()


def _identity(row: _Row, lengths: Mapping[int, int], *, fresh: int) -> tuple[list[int], list[int]]:
    """Return the row's ids and their lengths, which sum to the prompt; the rest of the prompt is one fresh id."""
    parts = row.hash_ids
    ids = [*chain(parts.sys_prompt, parts.passages_ids, parts.history, parts.web_search, parts.user_input)]
    sizes = [lengths.get(part, 0) for part in ids]
    rest = row.input_length - sum(sizes)
    if rest < 0 or 0 in sizes:
        return [fresh], [max(0, min(row.input_length, 1 << 30))]
    return ([*ids, fresh], [*sizes, rest]) if rest else (ids, sizes)


def _explain(builder: WorkloadBuilder, options: ReadOptions, *, known: bool, restarts: int) -> None:
    if restarts:
        builder.note(f"the clock restarts {restarts} time(s): later passes go on at the next full day")
    if known:
        builder.note("ids name content at any position: only a leading run of known ids can be reused")
        builder.note(
            "template tokens (6 to 12 a prompt) have no id and are counted as unique, at the end of the prompt"
        )
    elif options.identity:
        builder.note(
            "content ids are left out: their lengths are in the files beside this one; give the folder to read both"
        )


READER = Reader(format=FORMAT, matches=_matches, read=_read)
