"""Bytes to a trace: look, tell the format, read."""

from __future__ import annotations

from typing import BinaryIO

from kvledger.traces.columns import parse_mapping
from kvledger.traces.formats import ALL
from kvledger.traces.formats.tables import read_mapped
from kvledger.traces.head import look
from kvledger.traces.record import Trace
from kvledger.traces.registry import ReadOptions, detect
from kvledger.traces.stream import TraceInput

__all__ = ["read_trace"]


def read_trace(
    raw: BinaryIO, *, name: str = "the input", columns: str | None = None, options: ReadOptions | None = None
) -> Trace:
    """Read a trace from bytes, whatever its format.

    Args:
        raw: The bytes as stored; gzip and zstd are undone.
        name: What messages call the source.
        columns: A column mapping, which replaces the detection of the format.
        options: Identity, seed, session starts and files beside the source.

    Raises:
        SourceError: The bytes cannot be read.
        TraceError: They are no trace, or hold no request.
    """
    options = options or ReadOptions()
    mapping = parse_mapping(columns) if columns is not None else None
    source = TraceInput(raw, name=name)
    head = look(source)
    if mapping is not None:
        return read_mapped(source, head, mapping, identity=options.identity)
    return detect(head, ALL, source=name).read(source, head, options)
