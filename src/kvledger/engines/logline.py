"""Lines of logs as records: colours, carriers and wrapping removed, so that every engine's reader sees the message.

A record is what the engine wrote with one call. Around it stand a carrier (Docker, Kubernetes, journald), colours and
progress bars; one record may be wrapped over several physical lines, and two may be glued onto one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvledger.engines.carrier import Carrier
from kvledger.engines.clock import LineClock

__all__ = ["MAX_LINE", "MAX_LINES", "Record", "RecordReader", "split_text"]

MAX_LINE = 16_384
"""Characters of one line that are read; the rest is cut."""
MAX_LINES = 20_000_000
_MAX_PIECES = 24

_LEVEL = r"(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL|TRACE)"
_TAG = r"\([A-Za-z]\w{0,40}(?: [^()\n]{0,80})?\)"
_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d"
_HEADER = re.compile(
    rf"\s{{0,8}}(?:{_TAG}\s{{0,4}}){{0,3}}(?:"
    rf"{_LEVEL}(?:\s{{1,8}}\d\d-\d\d \d\d:\d\d:\d\d|\s{{0,8}}:|\s{{1,8}}\[)"
    rf"|\[?{_STAMP}|\[\d\d/\d\d/\d{{4}}-\d\d:\d\d:\d\d\]"
    r"|\[(?:TensorRT-LLM|TRT-LLM|TM|GIN|rank ?\d{1,4}|(?:(?:TP|DP|PP|EP)\d{1,5} ?){1,4})\]"
    r"|time=\S|[IWEDF]\d{4} \d\d:\d\d:\d\d"
    r"|\d{1,4}\.\d\d\.\d{3}\.\d{3} |Traceback \(|[A-Za-z_][\w.]{0,80}(?:Error|Exception): )"
)
# Where a second record may begin on the same physical line.
_GLUE = re.compile(
    rf"(?:{_TAG} ){{0,3}}{_LEVEL} \d\d-\d\d \d\d:\d\d:\d\d"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: (?:TP|DP|PP|EP)[^\]\n]{0,40})?\] "
)
_TAGS = re.compile(rf"\s{{0,8}}((?:{_TAG}\s{{0,4}}){{1,3}})")
_ONE_TAG = re.compile(r"\(([A-Za-z]\w{0,40})(?: ([^()\n]{0,80}))?\)")
_PID = re.compile(r"\bpid=(\d{1,12})")
_RANK = re.compile(r"\brank[= ](\d{1,6})")
_BRACKET_RANK = re.compile(
    rf"\[(?:{_STAMP}(?:[.,]\d{{1,9}})?\s{{1,4}})?((?:(?:TP|DP|PP|EP|CP|ATTN_TP|MOE_EP)\d{{1,5}}[ _]?){{1,6}})\]"
)
_RANK_TAG = re.compile(r"\[(?:RANK|rank) ?(\d{1,6})\]")
_NAMED = re.compile(r"(?:EngineCore|APIServer|Worker|ApiServer)\w*")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its message with single spaces where lines were wrapped."""

    text: str
    line: int
    """Physical line it begins on, from 1."""
    origin: str = ""
    """The rank or process of the tag before the message; see :attr:`PoolFacts.origin`."""
    seconds: float | None = None
    pid: str = ""
    tight: str | None = None
    """The same joined without spaces where a piece has full width (wrapped in the middle of a word)."""
    starts: tuple[tuple[int, int], ...] = ()
    """(offset in ``text``, physical line) of each piece but the first."""

    def find_line(self, offset: int) -> int:
        """Return the physical line on which the character at ``offset`` stands."""
        line = self.line
        for start, number in self.starts:
            if start <= offset:
                line = number
        return line


def split_text(text: str) -> Iterator[str]:
    r"""Yield the physical lines of a text; carriage returns end a line too (progress bars).

    >>> list(split_text("\ufeffa\r\nb\rc\n"))
    ['a', 'b', 'c']
    """
    start = 1 if text.startswith("\ufeff") else 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end].rstrip("\r")
        if "\r" in line:
            yield from line.split("\r")
        else:
            yield line
        start = end + 1


@dataclass(slots=True)
class _Open:
    """A record that may still grow."""

    line: int
    seconds: float | None
    has_header: bool
    pieces: list[tuple[int, str]] = field(default_factory=list)
    length: int = 0


@dataclass(slots=True)
class RecordReader:
    """Turns physical lines into records and counts what it cut.

    Args:
        begins: Phrases with which a message of the engine begins, for logs whose lines carry no level or time.
    """

    begins: re.Pattern[str]
    lines: int = 0
    cut_lines: int = 0
    ended_early: bool = False
    _carrier: Carrier = field(default_factory=Carrier)
    _clock: LineClock = field(default_factory=LineClock)

    def read(self, lines: str | Iterable[str]) -> Iterator[Record]:
        """Yield the records of a text or of an iterable of lines, in order."""
        current: _Open | None = None
        for raw in split_text(lines) if isinstance(lines, str) else lines:
            if self.lines >= MAX_LINES:
                self.ended_early = True
                break
            self.lines += 1
            if len(raw) > MAX_LINE:
                raw = raw[:MAX_LINE]
                self.cut_lines += 1
            unpacked = self._carrier.unpack(raw.rstrip("\r\n"))
            if unpacked is None:
                continue
            body, carried = unpacked
            for part in _split_glued(body):
                if current and self._continues(current, part):
                    current.pieces.append((self.lines, part))
                    current.length += len(part)
                    continue
                if current:
                    yield _close(current)
                seconds = self._clock.read(part)
                current = _Open(
                    line=self.lines,
                    seconds=carried if seconds is None else seconds,
                    has_header=_HEADER.match(part) is not None,
                )
                current.pieces.append((self.lines, part))
                current.length = len(part)
        if current:
            yield _close(current)

    def _continues(self, current: _Open, part: str) -> bool:
        """Return whether a line goes on with the record: it has no header, nor a beginning where none has a header."""
        return (
            len(current.pieces) < _MAX_PIECES
            and current.length + len(part) < MAX_LINE
            and _HEADER.match(part) is None
            and (current.has_header or self.begins.match(part) is None)
        )


def _split_glued(line: str) -> Iterator[str]:
    """Yield the records that stand on one physical line; blank ones are left out."""
    start = 0
    for match in _GLUE.finditer(line):
        if line[start : match.start()].strip():
            yield line[start : match.start()]
            start = match.start()
    if line[start:].strip():
        yield line[start:]


def _close(record: _Open) -> Record:
    """Join the pieces, with spaces and (where pieces have full width) without."""
    pieces = [piece for _, piece in record.pieces]
    first = pieces[0]
    origin, pid = _find_origin(first)
    if len(pieces) == 1:
        return Record(text=first.rstrip(), line=record.line, origin=origin, pid=pid, seconds=record.seconds)
    width = max(map(len, pieces[:-1]))
    text = tight = ""
    starts = []
    for (line, piece), before in zip(record.pieces, ["", *pieces[:-1]]):
        full = len(before) == width
        if text:
            text = text.rstrip() if full and _cuts_number(before, piece) else text.rstrip() + " "
            starts.append((len(text), line))
        text += piece.lstrip()
        tight = (tight if full else tight.rstrip() + " ") + piece if tight else piece
    return Record(
        text=text.rstrip(),
        line=record.line,
        origin=origin,
        pid=pid,
        seconds=record.seconds,
        tight=tight,
        starts=tuple(starts),
    )


def _cuts_number(before: str, after: str) -> bool:
    """Return whether a cut of full width goes through digits."""
    return after[:1].isdigit() and (before[-1:].isdigit() or before[-1:] == ".")


def _find_origin(text: str) -> tuple[str, str]:
    """Return the rank or process named before the message, and the process id."""
    tags = _TAGS.match(text)
    if tags is None:
        rank = _BRACKET_RANK.search(text[:160])
        if rank:
            return rank[1].strip(" _"), ""
        numbered = _RANK_TAG.search(text[:160])
        return (f"rank {numbered[1]}", "") if numbered else ("", "")
    names, pid = [], ""
    for name, rest in _ONE_TAG.findall(tags[1]):
        number, rank = _PID.search(rest), _RANK.search(rest)
        pid = number[1] if number else pid
        if rank:
            names.append(f"{name} rank={rank[1]}")
        elif _NAMED.fullmatch(name) or not number:
            names.append(name)
        else:
            names.append(f"{name} pid={number[1]}")
    return " ".join(names), pid
