"""Open traces: a file, a folder, standard input, or the description of a synthetic workload."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kvledger.errors import SourceError, TraceError, UsageError
from kvledger.traces import ReadOptions, SessionStarts, Trace, read_folder, read_trace, synthesise, with_content
from kvledger.traces.formats.llmservingsim import RUN_FORMAT, workload_of_run
from kvledger.traces.synthetic import PREFIX
from kvledger.units import counted

__all__ = ["load_trace"]

_MAX_FILES = 2000
_LEVELS = 4


def load_trace(
    spec: str,
    *,
    columns: str | None = None,
    seed: int = 0,
    identity: bool = True,
    stdin: BinaryIO | None = None,
    session_starts: str = "rate:0.1",
    content: str | None = None,
) -> Trace:
    """Load a trace from a path, a folder, ``-`` for standard input, or ``synthetic:NAME[,key=value...]``.

    Args:
        spec: Where the trace is.
        columns: A column mapping such as ``arrival=t:ms,prompt=in,output=out``; replaces format detection.
        seed: For synthetic workloads and for formats whose arrivals are modelled.
        identity: False skips content ids, which is cheaper.
        stdin: What ``-`` reads; the process's own by default.
        session_starts: ``zero``, ``every:SECONDS`` or ``rate:PER_SECOND``, for traces without a common clock.
        content: Another trace of the same requests, which knows their content. A recorded run of LLMServingSim finds
            the workload it names by itself, when that lies in its folder or up to four above.

    Raises:
        SourceError: It cannot be opened or read.
        TraceError: It is no trace, holds no request, or the content is that of other requests.
        UsageError: The mapping or the description cannot be understood.
    """
    if not spec.strip():
        raise UsageError("the trace is empty", hint="give a file, a folder, `-` or synthetic:NAME")
    if content is not None:
        if not identity:
            raise UsageError(
                "--content tells what requests share, and nothing asks for it", hint="add --prefix-caching on"
            )
        known = load_trace(content, seed=seed, session_starts=session_starts)
        trace = load_trace(spec, columns=columns, seed=seed, identity=False, stdin=stdin, session_starts=session_starts)
        named = "standard input" if content == "-" else f"`{Path(content).name}`"
        return with_content(trace, known, origin=named)
    if spec.startswith(PREFIX):
        return synthesise(spec, seed=seed, identity=identity)
    options = ReadOptions(identity=identity, seed=seed, session_starts=SessionStarts.parse(session_starts))
    if spec == "-":
        return read_trace(stdin or sys.stdin.buffer, name="standard input", columns=columns, options=options)
    path = Path(spec)
    if _is_folder(path):
        trace, folder = _load_folder(path, columns, options), path
    else:
        with _open(path) as raw:
            trace = read_trace(raw, name=f"`{path.name}`", columns=columns, options=options)
        folder = path.parent
    if identity and trace.format.name == RUN_FORMAT.name:
        return _with_its_workload(trace, folder)
    return trace


def _with_its_workload(trace: Trace, folder: Path) -> Trace:
    """Give a recorded run the token ids of the workload that its ``meta.json`` names, when it lies near."""
    meta = folder / "meta.json"
    if not meta.is_file():
        return trace
    with _open(meta) as raw:
        name = workload_of_run(raw)
    if name is None:
        return trace
    above = list(folder.resolve().parents)[:_LEVELS]
    for place in (folder, *above, *(parent / "workloads" for parent in above)):
        for candidate in (place / name, place / f"{name}.gz"):
            if candidate.is_file():
                where = "beside it" if place == folder else f"in `{place.name}` above it"
                return _tried(trace, candidate, where)
    return trace


def _tried(trace: Trace, workload: Path, where: str) -> Trace:
    """Take the content of a workload nobody named; when it does not fit, say so and go on without."""
    try:
        with _open(workload) as raw:
            known = read_trace(raw, name=f"`{workload.name}`")
            return with_content(trace, known, origin=f"`{workload.name}` {where}, which its `meta.json` names")
    except (TraceError, SourceError) as error:
        return replace(trace, notes=(*trace.notes, f"`{workload.name}` beside the run was left out: {error.message}"))


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
        raise SourceError(f"folder `{path.name}` has {counted(len(paths), 'file')}, more than {_MAX_FILES:,}")
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
