"""What a sweep has done so far: a file that grows by one line a cell, so that a killed sweep can go on.

The first line says of which sweep it is; every other one is a finished cell. A line that was cut off is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from types import TracebackType

import msgspec

from kvledger.errors import UsageError
from kvledger.sweep.job import JobResult

__all__ = ["Journal", "Progress"]

_SCHEMA = "kvledger.sweep.journal"
_LINE_BYTES = 2**24


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    schema_version: int
    plan: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal holds: the plan it belongs to, and the finished cells."""

    plan: str
    results: list[JobResult]


class Journal:
    """The open journal of one sweep; a second sweep cannot open it at the same time (where the system has locks)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: BufferedRandom | None = None

    def __enter__(self) -> Journal:
        """Open the file, creating it, and keep others out.

        Raises:
            UsageError: It cannot be written, or another sweep is at work on it.
        """
        try:
            self._stream = self.path.open("a+b")
        except OSError as error:
            raise UsageError(
                f"`{self.path.name}`, which keeps finished cells, cannot be written: {error.strerror}",
                hint="choose another place with --output",
            ) from error
        self._lock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file; what it holds stays."""
        if self._stream is not None:
            self._stream.close()

    def _lock(self) -> None:
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(self._open, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._open.close()
                raise UsageError(
                    f"another sweep is at work on `{self.path.name}`", hint="wait for it, or write to another file"
                ) from error

    @property
    def _open(self) -> BufferedRandom:
        assert self._stream is not None
        return self._stream

    def read(self) -> Progress | None:
        """Return what was done before, and cut off a half-written end; None when nothing was begun.

        Raises:
            UsageError: The file is no journal of this version.
        """
        stream = self._open
        stream.seek(0)
        first = stream.readline(_LINE_BYTES)
        if not first.endswith(b"\n"):
            stream.truncate(0)
            return None
        try:
            head = msgspec.json.decode(first, type=_Head)
        except msgspec.DecodeError:
            head = None
        if head is None or head.schema != _SCHEMA or head.schema_version != 1:
            raise UsageError(
                f"`{self.path.name}` exists and is no journal of a sweep of this version",
                hint="remove it, or write the results to another file",
            )
        results, whole = [], stream.tell()
        while (line := stream.readline(_LINE_BYTES)).endswith(b"\n"):
            try:
                results.append(msgspec.json.decode(line, type=JobResult))
            except msgspec.DecodeError:
                break
            whole = stream.tell()
        stream.truncate(whole)
        return Progress(plan=head.plan, results=results)

    def begin(self, plan: str, results: Iterable[JobResult]) -> None:
        """Start anew with what is already known."""
        self._open.truncate(0)
        head = _Head(schema=_SCHEMA, schema_version=1, plan=plan)
        self._open.write(msgspec.json.encode(head) + b"\n")
        for result in results:
            self._open.write(msgspec.json.encode(result) + b"\n")
        self._open.flush()

    def add(self, result: JobResult) -> None:
        """Keep one finished cell; it is there even when this process is killed the next moment."""
        self._open.write(msgspec.json.encode(result) + b"\n")
        self._open.flush()

    def remove(self) -> None:
        """Delete the file: the results are elsewhere now."""
        with suppress(OSError):
            self.path.unlink()
