"""Open traces: a file, a folder, standard input, or the description of a synthetic workload."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kvledger.errors import SourceError, UsageError
from kvledger.traces import ReadOptions, SessionStarts, Trace, read_folder, read_trace, synthesise
from kvledger.traces.synthetic import PREFIX

__all__ = ["load_trace"]

_MAX_FILES = 2000


def load_trace(
    spec: str,
    *,
    columns: str | None = None,
    seed: int = 0,
    identity: bool = True,
    stdin: BinaryIO | None = None,
    session_starts: str = "rate:0.1",
) -> Trace:
    """Load a trace from a path, a folder, ``-`` for standard input, or ``synthetic:NAME[,key=value...]``.

    Args:
        spec: Where the trace is.
        columns: A column mapping such as ``arrival=t:ms,prompt=in,output=out``; replaces format detection.
        seed: For synthetic workloads and for formats whose arrivals are modelled.
        identity: False skips content ids, which is cheaper.
        stdin: What ``-`` reads; the process's own by default.
        session_starts: ``zero``, ``every:SECONDS`` or ``rate:PER_SECOND``, for traces without a common clock.

    Raises:
        SourceError: It cannot be opened or read.
        TraceError: It is no trace, or holds no request.
        UsageError: The mapping or the description cannot be understood.
    """
    if spec.startswith(PREFIX):
        return synthesise(spec, seed=seed, identity=identity)
    options = ReadOptions(identity=identity, seed=seed, session_starts=SessionStarts.parse(session_starts))
    if spec == "-":
        return read_trace(stdin or sys.stdin.buffer, name="standard input", columns=columns, options=options)
    path = Path(spec)
    if _is_folder(path):
        return _load_folder(path, columns, options)
    with _open(path) as raw:
        return read_trace(raw, name=f"`{path.name}`", columns=columns, options=options)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _load_folder(path: Path, columns: str | None, options: ReadOptions) -> Trace:
    if columns is not None:
        raise UsageError("--columns belongs to a file, not to a folder", hint="give the trace's file itself")
    try:
        paths = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError as error:
        raise SourceError(f"folder `{path.name}` cannot be read: {error.strerror}") from error
    if len(paths) > _MAX_FILES:
        raise SourceError(f"folder `{path.name}` has {len(paths):,} files, more than {_MAX_FILES:,}")
    files: dict[str, Callable[[], BinaryIO]] = {entry.name: partial(_open, entry) for entry in paths}
    return read_folder(files, name=f"folder `{path.name}`", options=options)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise SourceError(
            f"`{path.name}` cannot be opened: {error.strerror}", hint="give a file, a folder, `-` or `synthetic:NAME`"
        ) from error
    except ValueError as error:
        raise SourceError(f"`{path.name[:80]!r}` is not a file name") from error
