"""ServeGen: statistics of each client of a service, from which a heterogeneous, bursty workload is synthesised."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvledger.errors import SourceError, TraceError
from kvledger.ledger import Accuracy
from kvledger.traces.batch import Batch
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.synthetic.arrivals import ArrivalLaw
from kvledger.units import counted

__all__ = ["READER", "is_member", "read_files"]

FORMAT = TraceFormat(
    name="servegen", sentence="ServeGen client statistics: a workload synthesised from rates and length laws"
)
WINDOW_SECONDS = 600.0
_MEMBER = re.compile(r"(?:^|/)chunk-(\d{1,6})-(trace\.csv|dataset\.json)$")
_PAIR = re.compile(r"(\d{1,9}): (\d(?:\.\d+)?(?:e-\d{1,3})?)(?=[,}])")
_MAX_MEMBER_BYTES = 64 << 20
_MAX_MEMBERS = 10_000
_MAX_REQUESTS = 20_000_000
_EXTRA = ("image_tokens", "audio_tokens", "video_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Law:
    """Lengths and their cumulative probabilities."""

    tokens: NDArray[np.int64]
    cumulative: NDArray[np.float64]

    def draw(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        index = np.searchsorted(self.cumulative, uniform * self.cumulative[-1], side="right")
        drawn: NDArray[np.int64] = self.tokens[np.minimum(index, len(self.tokens) - 1)]
        return drawn


@dataclass(slots=True)
class _Client:
    windows: NDArray[np.float64] | None = None
    """(windows, 3): start second, requests a second, coefficient of variation of the gaps."""
    laws: dict[float, tuple[list[_Law], list[_Law], _Law]] | None = None
    """Start second -> laws whose draws sum to the prompt, count laws beside them, law of outputs."""


def is_member(name: str) -> bool:
    """Whether a file's name is one of ServeGen's pairs."""
    return _MEMBER.search(name) is not None


def _matches(head: Head) -> bool:
    return head.shape is Shape.TAR


def _read(given: Given) -> Trace:
    clients: dict[int, _Client] = {}
    members = 0
    try:
        with tarfile.open(fileobj=io.BufferedReader(given.source, 1 << 20), mode="r|") as archive:
            for member in archive:
                members += 1
                match = _MEMBER.search(member.name)
                if members > _MAX_MEMBERS or member.size > _MAX_MEMBER_BYTES:
                    raise TraceError(f"{given.source.name} has too many or too large members for ServeGen's statistics")
                file = archive.extractfile(member) if match and member.isfile() else None
                if match and file is not None:
                    _add_member(clients, match, file.read())
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise SourceError(f"{given.source.name} is a damaged tar archive: {error}") from error
    return _synthesise(clients, given.source.name, given.options)


def read_files(files: Mapping[str, Callable[[], BinaryIO]], *, name: str, options: ReadOptions) -> Trace:
    """Read an unpacked folder of such pairs.

    Raises:
        TraceError: No client has both of its files.
    """
    clients: dict[int, _Client] = {}
    for file, opener in files.items():
        if match := _MEMBER.search(file):
            with opener() as raw:
                _add_member(clients, match, raw.read(_MAX_MEMBER_BYTES))
    return _synthesise(clients, name, options)


def _add_member(clients: dict[int, _Client], match: re.Match[str], data: bytes) -> None:
    """Take one file into the client it belongs to."""
    client = clients.setdefault(int(match[1]), _Client())
    if match[2] == "trace.csv":
        client.windows = _windows(data)
    else:
        client.laws = _laws(data)


def _windows(data: bytes) -> NDArray[np.float64]:
    rows = []
    for line in data.decode("utf-8", errors="replace").splitlines():
        parts = line.split(",")
        try:
            start, rate, cv = (float(part) for part in parts[:3])
        except ValueError:
            continue
        if 0 <= start < 1e9 and 0 < rate < 1e6 and 0 <= cv < 1e3:
            rows.append((start, rate, cv))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _law(text: Any) -> _Law | None:
    """Read ``{length: probability, ...}`` as the files write it: a string in Python's notation."""
    pairs = _PAIR.findall(text) if isinstance(text, str) else []
    if not pairs:
        return None
    weights = np.array([float(weight) for _, weight in pairs])
    if not weights.sum() > 0:
        return None
    return _Law(tokens=np.array([int(size) for size, _ in pairs], dtype=np.int64), cumulative=np.cumsum(weights))


def _laws(data: bytes) -> dict[float, tuple[list[_Law], list[_Law], _Law]]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    found = {}
    for start, window in document.items() if isinstance(document, dict) else ():
        if not isinstance(window, dict) or not start.isdigit() or len(start) > 9:
            continue
        prompts = [law for name in ("input_tokens", "text_tokens") if (law := _law(window.get(name)))]
        extras = [law for name in _EXTRA if (law := _law(window.get(name)))]
        output = _law(window.get("output_tokens"))
        if prompts and output is not None:
            found[float(start)] = (prompts, extras, output)
    return found


def _synthesise(clients: dict[int, _Client], source: str, options: ReadOptions) -> Trace:
    builder = WorkloadBuilder(FORMAT, source=source)
    used = 0
    for number in sorted(clients):
        client = clients[number]
        if client.windows is None or not client.laws:
            builder.note("clients without both of their files are left out")
            continue
        used += 1
        rng = np.random.Generator(np.random.PCG64([options.seed, number]))
        _add_client(client.windows, client.laws, rng, builder)
    modelled = Accuracy.MODELLED
    builder.interleaved = True
    builder.accuracy = TraceAccuracy(arrivals=modelled, prompts=modelled, outputs=modelled)
    builder.note(
        f"synthesised from the statistics of {counted(used, 'client')}, seed {options.seed}: gamma gaps of each "
        "600-s window"
    )
    return builder.build()


def _add_client(
    windows: NDArray[np.float64],
    laws: dict[float, tuple[list[_Law], list[_Law], _Law]],
    rng: np.random.Generator,
    builder: WorkloadBuilder,
) -> None:
    starts = np.array(sorted(laws))
    for start, rate, cv in windows:
        if builder.rows_read + rate * WINDOW_SECONDS > _MAX_REQUESTS:
            raise TraceError(f"{builder.source} describes more than {_MAX_REQUESTS:,} requests")
        arrivals = start + _window_arrivals(rate, min(cv, 20.0), rng)
        count = len(arrivals)
        prompts, extras, output = laws[starts[max(0, int(np.searchsorted(starts, start, side="right")) - 1)]]
        prompt = sum((law.draw(rng.random(count)) for law in (*prompts, *extras)), np.zeros(count, dtype=np.int64))
        builder.add(
            Batch(
                prompt_tokens=prompt.astype(np.float64),
                output_tokens=output.draw(rng.random(count)).astype(np.float64),
                arrival_seconds=arrivals,
            )
        )


def _window_arrivals(rate: float, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the arrivals of one window: gamma gaps with the window's rate and coefficient of variation.

    The window is laid at a random place of a longer series, so that its expected count is rate * 600 even where a
    client is rare. The coefficient of variation is taken to two digits.
    """
    law = ArrivalLaw(rate=rate, cv=float(f"{cv:.2g}") if cv else 1.0)
    before_seconds = WINDOW_SECONDS + 10 * (1 + cv**2) / rate
    expected = rate * (before_seconds + WINDOW_SECONDS)
    times = np.cumsum(law.gaps(rng.random(int(expected + 8 * (1 + cv) * np.sqrt(expected) + 20))))
    times -= (0.5 + 0.5 * rng.random()) * before_seconds
    inside: NDArray[np.float64] = times[(times >= 0) & (times < WINDOW_SECONDS)]
    return inside


READER = Reader(format=FORMAT, matches=_matches, read=_read)
