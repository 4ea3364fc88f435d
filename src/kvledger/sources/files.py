"""Open traces: a file, a folder, standard input, or the description of a synthetic workload."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from kvledger.errors import SourceError
from kvledger.traces import ReadOptions, SessionStarts, Trace, read_trace, synthesise
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
    if path.is_dir():
        raise SourceError(f"`{path.name}` is a folder")
    with _open(path) as raw:
        return read_trace(raw, name=f"`{path.name}`", columns=columns, options=options)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise SourceError(f"`{path.name}` cannot be opened: {error.strerror}") from error
