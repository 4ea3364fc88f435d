"""Reading an engine's log: rules find lines, and a builder collects what they say into records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvledger.engines.facts import (
    Engine,
    EngineLog,
    MemoryItem,
    Notice,
    NoticeKind,
    PeriodicSample,
    PoolFacts,
    StartupFacts,
)
from kvledger.engines.logline import Record, RecordReader
from kvledger.engines.quantity import Fact, Quantity, exact, printed, printed_bytes, whole

__all__ = ["Hit", "LogBuilder", "Rule", "named_values", "read_engine_log"]

T = TypeVar("T")

_MAX_HITS = 64
_MAX_TEXT = 400
_MAX_WORD = 300
_MAX_ITEMS = 100_000
_MAX_SAMPLES = 1_000_000
_MAX_STARTS = 10_000
_ENGINE = re.compile(r"(?:\bEngine (\d{1,4}):|DP(\d{1,4}))")


@dataclass(frozen=True, slots=True)
class Hit:
    """One match of a rule: groups by name, read as numbers with their line and origin."""

    match: re.Match[str]
    record: Record
    line: int
    origin: str
    engine_index: int

    def text(self, name: str) -> str | None:
        """Return a group's text, or None when it did not take part."""
        found: str | None = self.match[name]
        return None if found is None else found[:_MAX_WORD]

    def word(self, name: str) -> Fact[str] | None:
        """Return a group as a word."""
        found = self.text(name)
        return None if found is None else Fact(value=found, line=self.line, origin=self.origin)

    def whole(self, name: str) -> Quantity | None:
        """Return a group as a whole number."""
        found = self.match[name]
        return None if found is None else whole(found, line=self.line, origin=self.origin)

    def integer(self, name: str) -> int | None:
        """Return a group as a plain integer."""
        found = self.whole(name)
        return None if found is None else int(found.value)

    def bytes(self, name: str, unit_bytes: int, *, decimals: int | None = None) -> Quantity | None:
        """Return a group as a size with the interval of its rounding."""
        found = self.match[name]
        if found is None:
            return None
        return printed_bytes(found, unit_bytes, decimals=decimals, line=self.line, origin=self.origin)

    def number(self, name: str, factor: float = 1.0, *, decimals: int | None = None) -> Quantity | None:
        """Return a group as a rounded decimal."""
        found = self.match[name]
        if found is None:
            return None
        return printed(found, factor=factor, decimals=decimals, line=self.line, origin=self.origin)

    def count(self, value: float) -> Quantity | None:
        """Return a computed number as read on this line."""
        return exact(value, line=self.line, origin=self.origin)


Action = Callable[["LogBuilder", Hit], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A literal that a line must hold, the pattern that reads it, and what is done with a match."""

    anchor: str
    pattern: re.Pattern[str]
    act: Action
    fields: re.Pattern[str] | None = None
    """What a match should hold much of: it chooses between two ways to join a wrapped record."""


@dataclass(slots=True)
class LogBuilder:
    """Collects the facts of starts and the samples between them."""

    engine: Engine
    startups: list[StartupFacts] = field(default_factory=list)
    samples: list[PeriodicSample] = field(default_factory=list)
    _facts: StartupFacts | None = None
    _pools: dict[tuple[str, str, int], PoolFacts] = field(default_factory=dict)
    _memory: list[MemoryItem] = field(default_factory=list)
    _notices: list[Notice] = field(default_factory=list)
    _options: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    scratch: dict[str, object] = field(default_factory=dict)
    """What the rules of one engine remember within one start."""

    def open_start(self, line: int) -> StartupFacts:
        """Return the start that is being read, beginning one if there is none."""
        if self._facts is None:
            self._facts = StartupFacts(engine=self.engine, first_line=line)
        return self._facts

    def begin_start(self, hit: Hit) -> None:
        """Begin a new start when the present one has printed a pool, an error or another process's banner."""
        self.close_start()
        self.open_start(hit.line)

    def close_start(self) -> None:
        """Finish the start that is being read."""
        if self._facts is None:
            return
        if len(self.startups) < _MAX_STARTS:
            self.startups.append(
                replace(
                    self._facts,
                    pools=tuple(self._pools.values()),
                    memory=tuple(self._memory),
                    notices=tuple(self._notices),
                    options=dict(self._options),
                )
            )
        else:
            self.dropped += 1
        self._facts = None
        self._pools, self._memory, self._notices, self._options, self.scratch = {}, [], [], {}, {}

    @property
    def has_size(self) -> bool:
        """Whether the present start has printed the size of a pool or an error."""
        return bool(self._pools) or any(notice.is_error for notice in self._notices)

    def set(self, hit: Hit, **values: object) -> None:
        """Set facts of the start; None changes nothing, a later line replaces an earlier one."""
        present = {name: value for name, value in values.items() if value is not None}
        self._facts = _changed(self.open_start(hit.line), present)

    def get(self, name: str) -> object:
        """Return a fact of the present start, or None."""
        return getattr(self._facts, name, None)

    def pool(self, hit: Hit, name: str = "kv", origin: str | None = None, /, **values: object) -> None:
        """Set fields of the pool of that name on the rank of this line."""
        self.open_start(hit.line)
        key = (hit.origin if origin is None else origin, name, hit.engine_index)
        if key not in self._pools:
            if len(self._pools) >= _MAX_ITEMS:
                return
            self._pools[key] = PoolFacts(name=name, origin=key[0], engine_index=key[2], line=hit.line)
        present = {field_name: value for field_name, value in values.items() if value is not None}
        self._pools[key] = _changed(self._pools[key], present)

    def rename_pool(self, hit: Hit, old: str, new: str) -> None:
        """Give the pool of this rank another name, when a later line tells what it is."""
        pool = self._pools.pop((hit.origin, old, hit.engine_index), None)
        if pool is not None:
            self._pools[hit.origin, new, hit.engine_index] = replace(pool, name=new)

    def find_pool(self, hit: Hit, name: str = "kv", *, origin: str | None = None) -> PoolFacts | None:
        """Return the pool of that name on the rank of this line."""
        return self._pools.get((hit.origin if origin is None else origin, name, hit.engine_index))

    @property
    def pools(self) -> list[PoolFacts]:
        """The pools of the present start in order."""
        return list(self._pools.values())

    def memory(self, hit: Hit, **sizes: Quantity | None) -> None:
        """Add bytes outside the pool; an underscore in a name stands for a hyphen."""
        self.open_start(hit.line)
        for name, size in sizes.items():
            if size is not None and len(self._memory) < _MAX_ITEMS:
                self._memory.append(MemoryItem(name=name.replace("_", "-"), size_bytes=size))

    def notice(self, hit: Hit, kind: NoticeKind, **values: object) -> None:
        """Add a warning or an error."""
        self.open_start(hit.line)
        if len(self._notices) < _MAX_ITEMS:
            notice = Notice(kind=kind, line=hit.line, origin=hit.origin, text=hit.match[0][:_MAX_TEXT])
            self._notices.append(_changed(notice, values))

    def option(self, hit: Hit, name: str, value: str) -> None:
        """Keep a flag as text."""
        self.open_start(hit.line)
        if len(self._options) < 1000:
            self._options[name[:_MAX_WORD]] = value[:_MAX_WORD]

    def find_option(self, name: str) -> str:
        """Return a flag of the present start as text, empty when it was not printed."""
        return self._options.get(name, "")

    def sample(self, hit: Hit, **values: object) -> None:
        """Add a periodic sample."""
        if len(self.samples) >= _MAX_SAMPLES:
            self.dropped += 1
            return
        base = PeriodicSample(
            engine=self.engine,
            line=hit.line,
            order=len(self.samples),
            seconds=hit.record.seconds,
            engine_index=hit.engine_index,
            origin=hit.origin,
        )
        self.samples.append(_changed(base, values))


def _changed(record: T, values: Mapping[str, object]) -> T:
    """Return the record with other values; names are checked by the record itself."""
    change: Callable[..., T] = replace
    return change(record, **values)


def named_values(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of whole ``name=value`` or ``'name': value`` pairs, to score how a wrapped record is joined."""
    choice = "|".join(map(re.escape, sorted(names)))
    return re.compile(
        rf"\b(?:{choice})['\"]?[=:] ?(?:Some\()?"
        r"(?:'[^'\s]{0,300}'|\"[^\"\s]{0,300}\"|[\w./+-]{1,300})(?=[,)}]|$)"
    )


def read_engine_log(
    lines: str | Iterable[str],
    *,
    engine: Engine,
    rules: Sequence[Rule],
    begins: re.Pattern[str],
    own_headers: bool = True,
) -> EngineLog:
    """Read a log with the rules of one engine.

    Args:
        lines: The text, or its lines in order (a stream may be handed in).
        engine: Whose log it is.
        rules: What to look for.
        begins: Phrases that begin a message in logs whose lines carry no level or time.
        own_headers: Whether the engine's own lines carry a level or time.
    """
    reader = RecordReader(begins, re.compile("|".join(re.escape(rule.anchor) for rule in rules)), own_headers)
    builder = LogBuilder(engine)
    for record in reader.read(lines):
        for rule in rules:
            joined, matches = _find(rule, record)
            for match in matches:
                named = _ENGINE.search(joined.origin + " " + joined.text[:160])
                index = int(named[1] or named[2]) if named else 0
                rule.act(builder, Hit(match, joined, joined.find_line(match.start()), joined.origin, index))
    builder.close_start()
    return EngineLog(
        engine=engine,
        startups=tuple(builder.startups),
        samples=tuple(builder.samples),
        lines=reader.lines,
        cut_lines=reader.cut_lines,
        ended_early=reader.ended_early,
        dropped=builder.dropped,
    )


def _find(rule: Rule, record: Record) -> tuple[Record, list[re.Match[str]]]:
    """Return the matches; of a wrapped record those in the joining that gives more, or that its widths speak for."""
    found = _search(rule, record.text)
    if record.tight is None:
        return record, found
    other = _search(rule, record.tight.text)
    loose, tight = _count_groups(rule, found), _count_groups(rule, other)
    return (record.tight, other) if tight > loose or (tight == loose and record.is_cut) else (record, found)


def _search(rule: Rule, text: str) -> list[re.Match[str]]:
    if rule.anchor not in text:
        return []
    found = []
    for match in rule.pattern.finditer(text):
        found.append(match)
        if len(found) >= _MAX_HITS:
            break
    return found


def _count_groups(rule: Rule, matches: list[re.Match[str]]) -> int:
    count = 0
    for match in matches:
        count += 1 + sum(group is not None for group in match.groups())
        if rule.fields is not None:
            count += sum(1 for _ in rule.fields.finditer(match[0]))
    return count
