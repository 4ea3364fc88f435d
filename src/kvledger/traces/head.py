"""The beginning of a source, looked at once: enough to tell formats apart by their content."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kvledger.errors import SourceError, TraceError
from kvledger.measure.recording import MAGIC
from kvledger.traces.stream import HEAD_BYTES, TraceInput

__all__ = ["Head", "Shape", "look", "require_header", "top_level_keys"]

_SAMPLE_LINES = 100
_DELIMITERS = (",", "\t", ";")
_JSON_START = re.compile(rb"\s*(\{|\[\s*[\{\]])")


class Shape(StrEnum):
    """How the bytes are laid out, before any meaning."""

    CSV = "delimited text"
    JSON_LINES = "JSON lines"
    JSON_DOCUMENT = "one JSON document"
    JSON_ARRAY = "a JSON array"
    PARQUET = "Parquet"
    TAR = "tar archive"
    RECORDING = "recording of a server"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the first 256 KiB show.

    ``columns``: names in the first line of delimited text, or of a Parquet file. ``keys``: names in the first JSON
    object, as far as it can be seen. ``first``: that object, when all of it is there. ``lines``: the first lines.
    """

    shape: Shape
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    quoted: bool = False
    blank_lines: int = 0
    keys: frozenset[str] = frozenset()
    first: Mapping[str, object] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    metadata: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names or JSON keys, whichever the source has."""
        return self.columns or tuple(sorted(self.keys))

    def has(self, *names: str) -> bool:
        """Whether every one of these names is a column or a key."""
        return set(names) <= (self.keys or set(self.columns))


def look(source: TraceInput) -> Head:
    """Look at the beginning of a source without consuming it.

    Raises:
        SourceError: The source is empty or is no text, Parquet or tar.
    """
    data = source.head(HEAD_BYTES)
    if not data.strip():
        raise SourceError(f"{source.name} is empty", hint="give a file with at least one request")
    if data.startswith(b"PAR1"):
        return _parquet(source)
    if data[257:262] == b"ustar":
        return Head(shape=Shape.TAR)
    if data.startswith(MAGIC):
        return Head(shape=Shape.RECORDING)
    if _is_binary(data):
        raise SourceError(
            f"{source.name} is neither text nor Parquet, gzip, zstd or tar: its first bytes are {data[:8].hex(' ')}",
            hint="give a trace as CSV, JSON lines or Parquet, or a request log; see docs/traces.md",
        )
    complete = len(data) < HEAD_BYTES
    if _JSON_START.match(data):
        return _json(data, complete=complete)
    return _text(data, complete=complete)


def _is_binary(data: bytes) -> bool:
    if b"\x00" in data:
        return True
    sample = data[:65536]
    bad = sample.decode("utf-8", errors="replace").count("\ufffd")
    controls = sum(sample.count(bytes([c])) for c in (*range(1, 9), *range(14, 27), *range(28, 32)))
    return bad * 5 > len(sample) or controls * 20 > len(sample)


def _parquet(source: TraceInput) -> Head:
    try:
        schema = pq.ParquetFile(source.random_access()).schema_arrow
        names = tuple(schema.names)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{source.name} is not a readable Parquet file: {error}") from error
    return Head(shape=Shape.PARQUET, columns=names, metadata=dict(schema.metadata or {}))


def _json(data: bytes, *, complete: bool) -> Head:
    start = data.lstrip()
    lines = [line for line in start.split(b"\n")[:_SAMPLE_LINES] if line.strip()]
    shown = _lines(data, complete)
    if start.startswith(b"["):
        keys = frozenset(top_level_keys(start[1:].lstrip()))
        return Head(shape=Shape.JSON_ARRAY, keys=keys, lines=shown)
    first = next((found for line in lines[:20] if (found := _object(line))), {})
    if first:
        braced = sum(line.lstrip().startswith(b"{") for line in lines)
        shape = Shape.JSON_LINES if 2 * braced >= len(lines) else Shape.TEXT  # else a log with JSON between its lines
        return Head(shape=shape, keys=frozenset(first), first=first, lines=shown)
    document = _object(start) if complete else {}
    is_document = bool(document) or complete or (len(lines) > 1 and lines[0].strip() == b"{")
    shape = Shape.JSON_DOCUMENT if is_document else Shape.JSON_LINES  # one line alone may be longer than the head
    return Head(shape=shape, keys=frozenset(document) or frozenset(top_level_keys(start)), first=document, lines=shown)


def _object(line: bytes) -> dict[str, object]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def top_level_keys(data: bytes) -> list[str]:
    """Find the keys at depth one of a JSON object of which only the beginning may be there."""
    keys, depth, i, expect = [], 0, 0, False
    while i < len(data):
        char = data[i : i + 1]
        if char == b'"':
            end = i + 1
            while end < len(data) and data[end : end + 1] != b'"':
                end += 2 if data[end : end + 1] == b"\\" else 1
            if depth == 1 and expect and data[end + 1 : end + 20].lstrip().startswith(b":"):
                keys.append(data[i + 1 : end].decode("utf-8", errors="replace"))
                expect = False
            i = end
        elif char in b"{[":
            depth += 1
            expect = depth == 1
        elif char in b"}]":
            depth -= 1
            if depth <= 0:
                break
        elif char == b"," and depth == 1:
            expect = True
        i += 1
    return keys


def _lines(data: bytes, complete: bool) -> tuple[str, ...]:
    lines = data.decode("utf-8", errors="replace").splitlines()
    if not complete and len(lines) > 1:
        lines.pop()
    return tuple(lines[:200])


def _text(data: bytes, *, complete: bool) -> Head:
    lines = _lines(data, complete)
    blank = next((number for number, line in enumerate(lines) if line.strip()), 0)
    header = lines[blank] if lines else ""
    delimiter = max(_DELIMITERS, key=header.count)
    names = tuple(name.strip() for name in next(csv.reader([header[:20_000]], delimiter=delimiter), []))
    is_table = len(names) > 1 and all(names) and len(header) < 10_000 and not any(c in header for c in "{}[]=")
    if not is_table:
        return Head(shape=Shape.TEXT, lines=lines)
    return Head(
        shape=Shape.CSV, columns=names, delimiter=delimiter, quoted=b'"' in data, lines=lines, blank_lines=blank
    )


def require_header(head: Head, *, source: str) -> None:
    """Refuse delimited text whose first row is numbers instead of names.

    Raises:
        TraceError: The first row has no names.
    """
    if head.shape is Shape.CSV and not any(name[:1].isalpha() or name[:1] == "_" for name in head.columns):
        raise TraceError(
            f"the first row of {source} has no column names: {', '.join(head.columns[:6])}",
            hint="put a first row such as `arrival_seconds,prompt_tokens,output_tokens` on top",
        )
