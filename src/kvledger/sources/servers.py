"""Sources of samples: servers that run, saved answers, recordings, and Prometheus servers, all as one stream."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kvledger.engines.recognise import TextKind, recognise
from kvledger.errors import Error, SourceError, UsageError
from kvledger.measure.recording import MAGIC, FrameReader, RecordedSample
from kvledger.sources.endpoints import Endpoint, decode_text, read_text, refuse_own
from kvledger.sources.http import Access, parse_address
from kvledger.sources.prometheus import Range, fetch_instances, read_api_answer
from kvledger.units import counted

__all__ = ["Feed", "Pace", "Window", "is_server", "open_feed"]

_MAX_FILE_BYTES = 4 * 2**30
_MAX_TEXT_BYTES = 64 * 2**20
_MAX_FILES = 100_000
_PROMETHEUS = "prometheus:"
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.-]{1,253}:\d{1,5}(/[^\s`]{0,80})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a running server is asked, and for how long; 0 seconds are one sample, None is for ever."""

    every_seconds: float = 1.0
    for_seconds: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which time of a Prometheus server is asked for."""

    since_seconds: float = 3600.0
    until_seconds: float = 0.0
    """Both before now."""
    step_seconds: float = 15.0
    selector: str = "{}"


@dataclass(slots=True, kw_only=True)
class Feed:
    """Samples in the order in which they come; ``names`` grows while they do."""

    samples: Iterator[RecordedSample]
    names: list[str]
    is_live: bool = False
    log: bytes | None = field(default=None, repr=False)
    """The text, when the source is a log and gives no samples."""


def is_server(spec: str) -> bool:
    """Tell whether a source is asked over the network."""
    return spec.startswith(("http://", "https://", "unix:", _PROMETHEUS))


def open_feed(
    specs: Sequence[str],
    *,
    access: Access,
    pace: Pace,
    window: Window,
    stdin: BinaryIO | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Feed:
    """Open a URL (several at once), a file, a folder, ``-`` or ``prometheus:http://host:9090``.

    Raises:
        UsageError: The sources cannot be used together.
        SourceError: One cannot be read; a server that fails later only leaves samples with an error.
    """
    for spec in specs:
        _refuse(spec)
    if len(specs) > 1 and not all(is_server(spec) and not spec.startswith(_PROMETHEUS) for spec in specs):
        raise UsageError("only servers can be measured together", hint="give one file, folder or Prometheus at a time")
    first = specs[0]
    if first.startswith(_PROMETHEUS):
        return _prometheus_feed(first.removeprefix(_PROMETHEUS), access, window, clock)
    if is_server(first):
        addresses = [parse_address(spec, default_path="/metrics") for spec in specs]
        endpoints = [Endpoint(address=address, access=access) for address in addresses]
        names = [f"server {n + 1}" for n in range(len(specs))] if len(specs) > 1 else ["server"]
        return Feed(samples=_poll(endpoints, pace, clock, sleep), names=names, is_live=True)
    if first == "-":
        return _read_stream(stdin or sys.stdin.buffer, "standard input", seconds=clock())
    path = Path(first)
    try:
        if path.is_dir():
            return _read_folder(path)
        with path.open("rb") as stream:
            return _read_stream(stream, path.name, seconds=path.stat().st_mtime)
    except OSError as error:
        raise SourceError(f"`{path.name[:80]}` cannot be read: {error.strerror}", hint=_hint_at(first)) from error
    except ValueError:
        raise SourceError(f"`{first[:80]!r}` is no file name") from None


def _hint_at(spec: str) -> str:
    """Say what to give instead of a name that is no file: what looks like a host and its port lacks its scheme."""
    if _HOST_AND_PORT.fullmatch(spec):
        return f"for a running server write `http://{spec}`"
    return "give a URL such as http://host:8000, a file, a folder or `-`"


def _refuse(spec: str) -> None:
    """Raise for what is neither a server that can be asked nor the name of a file."""
    if not spec.strip():
        raise UsageError("the source is empty", hint="give a URL such as http://host:8000, a file, a folder or `-`")
    scheme, mark, _ = spec.partition("://")
    if mark and scheme.isalnum() and not is_server(spec):
        raise UsageError(
            f"the scheme `{scheme[:40]}://` is not supported",
            hint="supported are http://, https://, unix:/path and prometheus:http://host:9090",
        )


def _poll(
    endpoints: list[Endpoint],
    pace: Pace,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[RecordedSample]:
    with ThreadPoolExecutor(max_workers=min(16, len(endpoints))) as pool:
        begin = due = clock()
        is_first = True
        while True:
            tasks = [pool.submit(_take, n, endpoint, clock) for n, endpoint in enumerate(endpoints)]
            results = [task.result() for task in tasks]
            if is_first and all(isinstance(result, Error) for result in results):
                raise next(result for result in results if isinstance(result, Error))
            for number, result in enumerate(results):
                yield (
                    RecordedSample(seconds=clock(), source=number, error=result.message)
                    if isinstance(result, Error)
                    else result
                )
            is_first = False
            if pace.for_seconds is not None and clock() + pace.every_seconds / 2 >= begin + pace.for_seconds:
                return
            due = max(due + pace.every_seconds, clock() - pace.every_seconds)
            sleep(max(0.0, due - clock()))


def _take(number: int, endpoint: Endpoint, clock: Callable[[], float]) -> RecordedSample | Error:
    try:
        began = clock()
        answer = endpoint.take()
    except Error as error:
        return error
    middle = (began + clock()) / 2
    return RecordedSample(seconds=middle, source=number, scrape=answer.scrape, snapshots=answer.snapshots)


def _prometheus_feed(url: str, access: Access, window: Window, clock: Callable[[], float]) -> Feed:
    now = clock()
    span = Range(
        start_seconds=now - window.since_seconds,
        end_seconds=now - window.until_seconds,
        step_seconds=window.step_seconds,
        selector=window.selector,
    )
    names: list[str] = []

    def samples() -> Iterator[RecordedSample]:
        for known, sample in fetch_instances(url, access, span):
            names[:] = known
            yield sample

    return Feed(samples=samples(), names=names)


def _read_stream(stream: BinaryIO, name: str, *, seconds: float) -> Feed:
    start = stream.read(len(MAGIC))
    limit = _MAX_FILE_BYTES if start == MAGIC else _MAX_TEXT_BYTES
    content = start + stream.read(limit - len(start) + 1)
    if len(content) > limit:
        raise SourceError(f"`{name}` has more than {limit:,} bytes", hint="give one scrape, or a recording")
    return _read_content(content, name, seconds=seconds)


def _read_content(content: bytes, name: str, *, seconds: float) -> Feed:
    if not content.strip():
        raise SourceError(f"`{name[:80]}` is empty", hint="give a saved /metrics text, a recording, or an engine's log")
    if content.startswith(MAGIC):
        return Feed(samples=FrameReader().read(content), names=[name])
    if content[:200].lstrip().startswith(b'{"status"'):
        names, samples = read_api_answer(content)
        return Feed(samples=iter(samples), names=names)
    text = decode_text(content)
    found = recognise(text)
    refuse_own(text, found)
    if found is None or found.kind is TextKind.LOG:
        return Feed(samples=iter(()), names=[name], log=content)
    answer = read_text(text)
    sample = RecordedSample(seconds=seconds, source=0, scrape=answer.scrape, snapshots=answer.snapshots)
    return Feed(samples=iter([sample]), names=[name])


def _read_folder(folder: Path) -> Feed:
    try:
        paths = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
        if len(paths) > _MAX_FILES:
            raise SourceError(f"the folder has {counted(len(paths), 'file')}, more than {_MAX_FILES:,}")
        stamped = sorted((path.stat().st_mtime, path.name, path) for path in paths)
    except OSError as error:
        raise SourceError(f"the folder cannot be read: {error.strerror}") from error
    if not stamped:
        raise SourceError("the folder is empty", hint="give a folder of saved /metrics texts, in the order of time")
    return Feed(samples=_folder_samples([(seconds, path) for seconds, _, path in stamped]), names=[folder.name])


def _folder_samples(files: list[tuple[float, Path]]) -> Iterator[RecordedSample]:
    read = 0
    for seconds, path in files:
        try:
            with path.open("rb") as stream:
                feed = _read_stream(stream, path.name, seconds=seconds)
            if feed.log is not None:
                raise SourceError(f"`{path.name}` is neither a saved answer nor a recording")
            for sample in feed.samples:
                read += 1
                yield sample
        except OSError as error:
            yield RecordedSample(seconds=seconds, source=0, error=str(error.strerror))
        except SourceError as error:
            yield RecordedSample(seconds=seconds, source=0, error=error.message)
    if not read:
        raise SourceError("no file of the folder is an answer of a server", hint="save /metrics texts into it")
