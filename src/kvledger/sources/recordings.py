"""Recording files: appended to by one process, read by any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kvledger.errors import SourceError, UsageError
from kvledger.measure.recording import MAGIC, FrameReader, FrameWriter, RecordedSample

__all__ = ["Recorder", "is_recording", "read_recording"]

_MAX_BYTES = 4 * 2**30


class Recorder:
    """Appends samples to a file, each with one write: a killed process loses at most the sample it was writing."""

    def __init__(self, path: str) -> None:
        self._writer = FrameWriter()
        self._path = target = Path(path)
        _refuse(target)
        try:
            self._unused = not target.exists()
            if target.exists() and target.stat().st_size:
                good = _find_end(target)
                self._stream = target.open("r+b", buffering=0)
                self._stream.truncate(good)
                self._stream.seek(good)
            else:
                self._stream = target.open("wb", buffering=0)
                self._stream.write(MAGIC)
        except OSError as error:
            raise UsageError(
                f"`{target.name}` cannot be written: {error.strerror}", hint="choose another place"
            ) from error

    def write(self, sample: RecordedSample) -> None:
        """Append one sample.

        Raises:
            SourceError: The disk refuses.
        """
        frame = memoryview(self._writer.write(sample))
        try:
            while frame:
                frame = frame[self._stream.write(frame) :]
            self._unused = False
        except OSError as error:
            raise SourceError(f"the recording cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; a new one that got no sample is taken away again."""
        if self._unused:
            self._stream.close()
            self._path.unlink(missing_ok=True)
            return
        os.fsync(self._stream.fileno())
        self._stream.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refuse(target: Path) -> None:
    """Raise when a file cannot be appended to: no folder, or it holds something else."""
    try:
        if not target.parent.is_dir():
            raise UsageError(
                f"`{target.name}` cannot be written: the folder of {target.name} does not exist",
                hint="create it, or choose another place",
            )
        if target.is_file() and target.stat().st_size and not is_recording(target):
            raise UsageError(
                f"`{target.name}` exists and is no recording, so nothing can be appended to it",
                hint="choose another file",
            )
    except OSError as error:
        raise UsageError(f"`{target.name}` cannot be written: {error.strerror}", hint="choose another place") from error


def is_recording(path: Path) -> bool:
    """Tell whether a file begins as a recording does."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_recording(path: Path) -> Iterator[RecordedSample]:
    """Yield the samples of a recording; a torn last sample is left out.

    Raises:
        SourceError: It cannot be read, or is damaged.
    """
    yield from FrameReader().read(_read(path))


def _find_end(path: Path) -> int:
    reader = FrameReader()
    for _ in reader.read(_read(path)):
        pass
    return reader.good_bytes


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"`{path.name}` has more than {_MAX_BYTES:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"`{path.name}` cannot be read: {error.strerror}", hint="check the path") from error
