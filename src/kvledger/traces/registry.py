"""All formats, in the order in which they are tried on the beginning of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from kvledger.errors import TraceError
from kvledger.traces.columns import guess_mapping
from kvledger.traces.head import Head, require_header
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.sessions import SessionStarts
from kvledger.traces.stream import TraceInput

__all__ = ["Given", "ReadOptions", "Reader", "detect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the caller wants, and what lies beside the source.

    ``identity`` False skips content ids, which is cheaper. ``seed`` and ``session_starts`` matter to formats whose
    arrivals are modelled. ``siblings``: openers of the other files of the folder, by name.
    """

    identity: bool = True
    seed: int = 0
    session_starts: SessionStarts = field(default_factory=SessionStarts)
    siblings: Mapping[str, Callable[[], BinaryIO]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a reader works on."""

    source: TraceInput
    head: Head
    options: ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One format: whether a beginning is of this format, and how the source is read.

    ``joins``: several files of a folder together are one trace of this format.
    """

    format: TraceFormat
    matches: Callable[[Head], bool]
    read: Callable[[Given], Trace]
    joins: bool = False


def detect(head: Head, readers: Iterable[Reader], *, source: str) -> Reader:
    """Return the first format whose content this is.

    Raises:
        TraceError: None is.
    """
    for reader in readers:
        if reader.matches(head):
            return reader
    if head.names:
        require_header(head, source=source)
        guess_mapping(head.names, source=source)  # raises, with the columns found and expected
    first = head.lines[0][:40] if head.lines else ""
    raise TraceError(
        f"{source} ({head.shape.value}) is no trace and no request log that is known; it begins with {first!r}",
        hint="the formats are listed in docs/traces.md; a CSV with "
        "arrival_seconds,prompt_tokens,output_tokens always works",
    )
