"""Agent sessions as kv-cache-tester publishes them: one session a line (or a file), sub-agents nested inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvledger.ledger import Accuracy
from kvledger.replay.workload import HashKind
from kvledger.traces.batch import IdentityKind
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape, look
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.rows import RowBuffer
from kvledger.traces.stream import TraceInput
from kvledger.units import counted

__all__ = ["READER"]

FORMAT = TraceFormat(
    name="agent-sessions",
    sentence="kv-cache-tester agent sessions: seconds from each session's start, lengths, block ids local to a session",
)
_MAX_BLOCK_TOKENS = 1 << 20


class _Request(msgspec.Struct):
    t: float = 0.0
    type: str = ""
    prompt: float | None = msgspec.field(name="in", default=None)
    out: float | None = None
    hash_ids: list[int] | None = None
    requests: list[_Request] | None = None


class _Session(msgspec.Struct):
    requests: list[_Request]
    block_size: int = 64
    hash_id_scope: str = "local"


def _matches(head: Head) -> bool:
    return head.shape in (Shape.JSON_LINES, Shape.JSON_DOCUMENT) and head.has("hash_id_scope", "requests", "block_size")


def _flat(requests: list[_Request], base_seconds: float = 0.0) -> Iterator[tuple[float, _Request]]:
    """Yield every request with its time in the session, those of sub-agents from the sub-agent's start on."""
    for request in requests:
        if request.requests is not None:
            yield from _flat(request.requests, base_seconds + request.t)
        else:
            yield base_seconds + request.t, request


class _Sessions:
    """Collect sessions; ids of each get a range of their own."""

    def __init__(self, builder: WorkloadBuilder, options: ReadOptions) -> None:
        self._builder = builder
        self._identity = options.identity
        self._rows = RowBuffer(builder, sessions=True, identified=options.identity)
        self._starts = options.session_starts.starts(seed=options.seed)
        self._next_id = 0
        self.count = 0
        self.block_tokens = 0

    def add(self, session: _Session) -> None:
        if not 1 <= session.block_size <= _MAX_BLOCK_TOKENS or self.block_tokens not in (0, session.block_size):
            self._builder.drop(f"session with another block size ({session.block_size})", len(session.requests))
            return
        self.block_tokens = session.block_size
        start = next(self._starts)
        flat = sorted(_flat(session.requests), key=lambda pair: pair[0])
        base = self._next_id if session.hash_id_scope != "global" else 0
        ids = [request.hash_ids or [] for _, request in flat] if self._identity else []
        places = _placed(ids, base) if self._identity else []
        if self._identity:
            self._next_id = max([base, *(int(place.max()) + 1 for place in places if len(place))])
        for number, (seconds, request) in enumerate(flat):
            self._rows.add(request.prompt, request.out, arrival_seconds=start + seconds, session=self.count)
            if self._identity:
                self._rows.identify(self._completed(places[number], request))
        self.count += 1

    def _completed(self, ids: NDArray[np.int64], request: _Request) -> list[int]:
        """Give the tokens without an id (the trace names full blocks only) ids that occur nowhere else."""
        blocks = -(-int(request.prompt or 0) // self.block_tokens)
        missing = max(0, min(blocks - len(ids), 1 << 20))
        fresh = range(self._next_id, self._next_id + missing)
        self._next_id += missing
        return [*ids[:blocks].tolist(), *fresh]

    def flush(self) -> None:
        self._rows.flush()


def _placed(ids: list[list[int]], base: int) -> list[NDArray[np.int64]]:
    """Move a session's ids to a range that starts at ``base``."""
    counts = [len(row) for row in ids]
    flat = np.array([value for row in ids for value in row], dtype=np.int64)
    if len(flat):
        low, high = int(flat.min()), int(flat.max())
        flat = np.unique(flat, return_inverse=True)[1] if high - low > 8 * len(flat) else flat - low
    return np.split(flat.astype(np.int64) + base, np.cumsum(counts)[:-1])


def _read(given: Given) -> Trace:
    builder = WorkloadBuilder(FORMAT, source=given.source.name)
    sessions = _Sessions(builder, given.options)
    _add_all(given.source, given.head, sessions, builder)
    for name, opener in given.options.siblings.items():
        _add_sibling(name, opener, sessions, builder)
    sessions.flush()
    if given.options.identity:
        builder.identity = IdentityKind.hashes(sessions.block_tokens or 64, HashKind.CHAIN)
    builder.interleaved = True
    builder.accuracy = TraceAccuracy(arrivals=Accuracy.MODELLED)
    builder.note(given.options.session_starts.sentence)
    builder.note(f"{counted(sessions.count, 'session')}; their block ids never match across sessions")
    return builder.build()


def _add_sibling(name: str, opener: Callable[[], object], sessions: _Sessions, builder: WorkloadBuilder) -> None:
    with opener() as raw:  # type: ignore[attr-defined]
        source = TraceInput(raw, name=name)
        head = look(source)
        if _matches(head):
            _add_all(source, head, sessions, builder)


def _add_all(source: TraceInput, head: Head, sessions: _Sessions, builder: WorkloadBuilder) -> None:
    decoder = msgspec.json.Decoder(_Session)
    lines = [source.read_document()] if head.shape is Shape.JSON_DOCUMENT else source.lines()
    for line in lines:
        try:
            session = decoder.decode(line)
            sessions.add(session)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
            builder.drop("line is not an agent session")


READER = Reader(format=FORMAT, matches=_matches, read=_read, joins=True)
