"""Lines of logs as records: colours, carriers and wrapping removed, so that every engine's reader sees the message.

A record is what the engine wrote with one call. Around it stand a carrier (Docker, Kubernetes, journald), colours and
progress bars; one record may be wrapped over several physical lines, and two may be glued onto one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kvledger.engines.carrier import Carrier
from kvledger.engines.clock import LineClock

__all__ = ["MAX_LINE", "MAX_LINES", "Record", "RecordReader", "split_text"]

MAX_LINE = 16_384
"""Characters of one line that are read; the rest is cut."""
_MAX_RAW = 65_536
"""Characters of one line with what carries it."""
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
    starts: tuple[tuple[int, int], ...] = ()
    """(offset in ``text``, physical line) of each piece but the first."""
    tight: Record | None = None
    """The same joined without spaces where a piece has full width (cut in the middle of a word)."""
    is_cut: bool = False
    """Whether the widths of the pieces speak for the tight joining."""

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
    carried: float | None
    """The carrier's time."""
    has_header: bool
    pieces: list[tuple[int, str]] = field(default_factory=list)
    length: int = 0


@dataclass(slots=True)
class RecordReader:
    """Turns physical lines into records and counts what it cut.

    Args:
        begins: Phrases with which a message of the engine begins, for logs whose lines carry no level or time.
        wanted: Phrases of which a record must hold one; None takes all records.
        own_headers: Whether the engine's own lines carry a level or time; then ``begins`` does not end a record that
            began with one, because a wrapped line may go on with such a phrase.
    """

    begins: re.Pattern[str]
    wanted: re.Pattern[str] | None = None
    own_headers: bool = True
    lines: int = 0
    cut_lines: int = 0
    ended_early: bool = False
    _carrier: Carrier = field(default_factory=Carrier)
    _clock: LineClock = field(default_factory=LineClock)
    _width: int = 0
    """Length of the longest piece that went on, and how many had it."""
    _width_count: int = 0

    def read(self, lines: str | Iterable[str]) -> Iterator[Record]:
        """Yield the records of a text or of an iterable of lines, in order."""
        current: _Open | None = None
        for raw in split_text(lines) if isinstance(lines, str) else lines:
            if self.lines >= MAX_LINES:
                self.ended_early = True
                break
            self.lines += 1
            unpacked = self._carrier.unpack(raw[:_MAX_RAW].rstrip("\r\n"))
            if unpacked is None:
                continue
            body, carried = unpacked
            if len(body) > MAX_LINE or len(raw) > _MAX_RAW:
                body = body[:MAX_LINE]
                self.cut_lines += 1
            for part in _split_glued(body):
                if current and self._continues(current, part):
                    current.pieces.append((self.lines, part))
                    current.length += len(part)
                    continue
                if current and (record := self._close(current)) is not None:
                    yield record
                header = _HEADER.match(part) is not None
                current = _Open(line=self.lines, carried=carried, has_header=header)
                current.pieces.append((self.lines, part))
                current.length = len(part)
        if current and (record := self._close(current)) is not None:
            yield record

    def _close(self, opened: _Open) -> Record | None:
        """Finish a record; None when nothing in it is wanted."""
        pieces, wanted = opened.pieces, self.wanted
        first = pieces[0][1]
        if len(pieces) == 1:
            if wanted is not None and not wanted.search(first):
                return None
            return self._describe(opened, Record(text=first.rstrip(), line=opened.line))
        widths = {len(piece) for _, piece in pieces[:-1]}
        if max(widths) > self._width:
            self._width, self._width_count = max(widths), 0
        self._width_count += sum(len(piece) == self._width for _, piece in pieces[:-1])
        record, tight = _join(pieces, max(widths))
        if wanted is not None and not wanted.search(record.text) and not wanted.search(tight.text):
            return None
        is_cut = widths == {self._width} and self._width_count > 1
        return self._describe(opened, replace(record, tight=self._describe(opened, tight), is_cut=is_cut))

    def _describe(self, opened: _Open, record: Record) -> Record:
        """Add time and origin."""
        seconds = self._clock.read(record.text)
        origin, pid = _find_origin(record.text)
        return replace(record, origin=origin, pid=pid, seconds=opened.carried if seconds is None else seconds)

    def _continues(self, current: _Open, part: str) -> bool:
        """Return whether a line goes on with the record: it has no header, nor a beginning where none has a header."""
        return (
            len(current.pieces) < _MAX_PIECES
            and current.length + len(part) < MAX_LINE
            and _HEADER.match(part) is None
            and ((current.has_header and self.own_headers) or self.begins.match(part) is None)
        )


def _split_glued(line: str) -> list[str]:
    """Return the records that stand on one physical line; blank ones are left out."""
    parts, start = [], 0
    for match in _GLUE.finditer(line):
        if line[start : match.start()].strip():
            parts.append(line[start : match.start()])
            start = match.start()
    rest = line[start:] if start else line
    if rest and not rest.isspace():
        parts.append(rest)
    return parts


def _join(pieces: list[tuple[int, str]], width: int) -> tuple[Record, Record]:
    """Join pieces with a space between them, and without one after a piece of full width."""
    line, text = pieces[0]
    tight, before = text, text
    starts, tight_starts = [], []
    for number, piece in pieces[1:]:
        full = len(before) == width
        text = text.rstrip() if full and _cuts_number(before, piece) else text.rstrip() + " "
        tight = tight if full else tight.rstrip() + " "
        starts.append((len(text), number))
        tight_starts.append((len(tight), number))
        text += piece.lstrip()
        tight += piece
        before = piece
    return (
        Record(text=text.rstrip(), line=line, starts=tuple(starts)),
        Record(text=tight.rstrip(), line=line, starts=tuple(tight_starts)),
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
