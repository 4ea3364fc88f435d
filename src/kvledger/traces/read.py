"""Bytes to a trace: look, tell the format, read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import BinaryIO

from kvledger.errors import SourceError, TraceError
from kvledger.traces.columns import parse_mapping
from kvledger.traces.formats import ALL, servegen
from kvledger.traces.formats.tables import read_mapped
from kvledger.traces.head import look
from kvledger.traces.record import Trace
from kvledger.traces.registry import Given, Reader, ReadOptions, detect
from kvledger.traces.stream import TraceInput

__all__ = ["read_folder", "read_trace"]


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
    return detect(head, ALL, source=name).read(Given(source=source, head=head, options=options))


def read_folder(
    files: Mapping[str, Callable[[], BinaryIO]], *, name: str = "the folder", options: ReadOptions | None = None
) -> Trace:
    """Read the one trace that a folder holds, with the files beside it that belong to it.

    Args:
        files: Openers by file name.
        name: What messages call the folder.
        options: As for :func:`read_trace`; ``siblings`` is filled here.

    Raises:
        TraceError: There is no trace, or more than one.
    """
    options = options or ReadOptions()
    if any(servegen.is_member(file) for file in files):
        return servegen.read_files(files, name=name, options=options)
    found = {file: reader for file, opener in files.items() if (reader := _peek(file, opener)) is not None}
    if not found:
        raise TraceError(f"none of the {len(files):,} files of {name} is a trace", hint="give the trace's file itself")
    first, reader = next(iter(found.items()))
    if len(found) > 1 and not (reader.joins and len({r.format.name for r in found.values()}) == 1):
        listed = ", ".join(f"`{file}` ({r.format.name})" for file, r in list(found.items())[:10])
        raise TraceError(f"{name} holds {len(found)} traces: {listed}", hint="give one of these files")
    siblings = {file: opener for file, opener in files.items() if file != first}
    with files[first]() as raw:
        return read_trace(raw, name=f"`{first}`", options=replace(options, siblings=siblings))


def _peek(file: str, opener: Callable[[], BinaryIO]) -> Reader | None:
    """Tell a file's format, or None when it is no trace."""
    with opener() as raw:
        try:
            return detect(look(TraceInput(raw, name=f"`{file}`")), ALL, source=f"`{file}`")
        except SourceError:
            return None
