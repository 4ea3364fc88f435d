"""Bytes of a trace: decompressed by their magic numbers, bounded, with a beginning that can be looked at."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa

from kvledger.errors import SourceError
from kvledger.units import counted

__all__ = ["HEAD_BYTES", "Limits", "TraceInput"]

HEAD_BYTES = 256 * 1024
_CHUNK_BYTES = 1 << 20
_CODECS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
_FOREIGN = (
    (b"BZh", "bzip2", "bzip2 -dc FILE | kvledger trace -"),
    (b"\xfd7zXZ\x00", "xz", "xz -dc FILE | kvledger trace -"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc FILE | kvledger trace -"),
    (b"PK\x03\x04", "zip", "unzip -p FILE | kvledger trace -"),
    (b"SQLite format 3\x00", "SQLite", "export the table as CSV first"),
    (b"\xff\xfe", "UTF-16", "iconv -f utf-16 -t utf-8 FILE | kvledger trace -"),
    (b"\xfe\xff", "UTF-16", "iconv -f utf-16 -t utf-8 FILE | kvledger trace -"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that no honest trace reaches; they stop decompression bombs and endless lines.

    ``ratio`` counts all layers together and applies once ``ratio_from_bytes`` have come out.
    """

    layers: int = 2
    decompressed_bytes: int = 1 << 37
    ratio: int = 1200
    ratio_from_bytes: int = 1 << 28
    line_bytes: int = 1 << 26
    document_bytes: int = 1 << 28
    file_bytes: int = 1 << 31


class _Counter(io.RawIOBase):
    """Count the bytes that a stream gives, for the ratio."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self.count_bytes += len(data or b"")
        return data or b""

    def readable(self) -> bool:
        return True


class TraceInput(io.RawIOBase):
    """Read a trace's bytes, decompressed (gzip, zstd, at most two layers) and without a byte order mark.

    Args:
        raw: The bytes as stored.
        name: What messages call the source.
    """

    def __init__(self, raw: BinaryIO, *, name: str, limits: Limits | None = None) -> None:
        self.name = name
        self.limits = limits or Limits()
        self.codecs: tuple[str, ...] = ()
        self._raw = raw
        self._counter = _Counter(raw)
        self._stream: Any = self._counter
        self._buffer = b""
        self._out_bytes = 0
        self._unwrap()

    def _unwrap(self) -> None:
        while True:
            self._buffer = b""
            self._fill(4)
            codec = next((codec for magic, codec in _CODECS if self._buffer.startswith(magic)), None)
            if codec is None:
                break
            if len(self.codecs) == self.limits.layers:
                raise SourceError(
                    f"{self.name} is compressed more than {counted(self.limits.layers, 'time')} over",
                    hint="decompress it once by hand and look at what is inside",
                )
            self.codecs = (*self.codecs, codec)
            inner = _Joined(self._buffer, self._stream)
            self._stream = pa.CompressedInputStream(pa.PythonFile(inner, mode="r"), codec)
        self._fill(16)
        if self._buffer.startswith(b"\xef\xbb\xbf"):
            self._buffer = self._buffer[3:]
        for magic, kind, hint in _FOREIGN:
            if self._buffer.startswith(magic):
                raise SourceError(f"{self.name} is a {kind} file, which is not read here", hint=hint)

    def _pull(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except (OSError, pa.ArrowException, EOFError) as error:
            if not self.codecs:
                raise SourceError(f"{self.name} cannot be read: {error}") from error
            raise SourceError(
                f"{self.name} is damaged: the {self.codecs[-1]} data end early or are not valid "
                f"after {self._out_bytes:,} bytes",
                hint="copy or download the file again",
            ) from error
        self._out_bytes += len(data)
        self._check_bounds()
        return data

    def _check_bounds(self) -> None:
        if not self.codecs:
            return
        given, limits = max(1, self._counter.count_bytes), self.limits
        too_dense = self._out_bytes > limits.ratio_from_bytes and self._out_bytes > limits.ratio * given
        if too_dense or self._out_bytes > limits.decompressed_bytes:
            raise SourceError(
                f"{self.name} grows to more than {self._out_bytes:,} bytes from {given:,}: no trace is that regular",
                hint="if the file is honest, decompress it first and give the plain file",
            )

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            data = self._pull(max(size - len(self._buffer), 4096))
            if not data:
                return
            self._buffer += data

    def head(self, size: int = HEAD_BYTES) -> bytes:
        """Return the first bytes without consuming them."""
        self._fill(size)
        return self._buffer[:size]

    def read(self, size: int = -1) -> bytes:
        """Read and consume up to ``size`` bytes (all that is left when negative)."""
        if size is None or size < 0:
            return self.read_document()
        if self._buffer:
            data, self._buffer = self._buffer[:size], self._buffer[size:]
            return data
        return self._pull(size)

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, as buffered readers want it."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        """Say yes: this is a stream to read."""
        return True

    def random_access(self) -> BinaryIO:
        """Return the same bytes as a file that can seek, reading them into memory when they cannot."""
        if not self.codecs and self._raw.seekable():
            self._raw.seek(0)
            return self._raw
        self._buffer = self._read_all(self.limits.file_bytes)  # kept, so that the next call finds it again
        return io.BytesIO(self._buffer)

    def read_document(self) -> bytes:
        """Read everything that is left, for a format that cannot be read as a stream.

        Raises:
            SourceError: It is more than 256 MiB.
        """
        return self._read_all(self.limits.document_bytes)

    def _read_all(self, limit_bytes: int) -> bytes:
        parts = [self._buffer]
        total, self._buffer = len(self._buffer), b""
        while data := self._pull(_CHUNK_BYTES):
            parts.append(data)
            total += len(data)
            if total > limit_bytes:
                raise SourceError(
                    f"{self.name} cannot be read as a stream and has more than {limit_bytes:,} bytes",
                    hint="write one JSON object a line, or give the plain file by its name",
                )
        return b"".join(parts)

    def lines(self) -> Iterator[bytes]:
        r"""Yield the lines without their ends (``\n``, ``\r\n``), skipping blank ones.

        Raises:
            SourceError: A line is longer than the limit.
        """
        parts: list[bytes] = []
        held = 0
        while data := self.read(_CHUNK_BYTES):
            first, *more = data.split(b"\n")
            parts.append(first)
            held += len(first)
            if held > self.limits.line_bytes:
                raise SourceError(
                    f"{self.name} has a line of more than {self.limits.line_bytes:,} bytes",
                    hint="a trace has one request (or session) a line; is this one JSON document, or no trace at all?",
                )
            if not more:
                continue
            *whole, last = more
            for piece in (b"".join(parts), *whole):
                if (line := piece.rstrip(b"\r")) and not line.isspace():
                    yield line
            parts, held = [last], len(last)
        line = b"".join(parts).rstrip(b"\r")
        if line and not line.isspace():
            yield line


class _Joined(io.RawIOBase):
    """The bytes already looked at, then the rest of the stream."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first = first
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if self._first:
            if size is None or size < 0:
                size = len(self._first)
            data, self._first = self._first[:size], self._first[size:]
            return data
        return cast(bytes, self._rest.read(size))

    def readable(self) -> bool:
        return True
