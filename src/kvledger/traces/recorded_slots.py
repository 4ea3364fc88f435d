"""Requests of a recorded llama.cpp server, one by one: each slot says which request it works on, and how far it is.

A slot that has ended its request keeps prompt + output - 1 tokens (the token sampled last is not stored), so a request
that was seen at work and then at rest has exact lengths. One whose slot was given away, shifted or cleared between two
samples has the output that was seen last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvledger.engines.facts import SlotReading

__all__ = ["SlotHistory", "SlotRequest"]

_MOST_REQUESTS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """One request that has ended; times are the middle between the samples around them."""

    source: int
    arrival_seconds: float
    end_seconds: float
    prompt_tokens: int
    output_tokens: int
    declared_tokens: int | None
    is_exact: bool


@dataclass(slots=True)
class _Open:
    """The request a slot works on, as last seen."""

    task: int
    began: float
    seen: float
    prompt_tokens: int = 0
    decoded_tokens: int = 0
    declared_tokens: int | None = None


@dataclass(slots=True)
class SlotHistory:
    """Follows the slots of one server; :meth:`take` mutates."""

    source: int
    requests: list[SlotRequest] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    restarts_open: int = 0
    """Requests that were lost when the server was started again."""
    _open: dict[int, _Open] = field(default_factory=dict)
    _rested: dict[int, int] = field(default_factory=dict)
    """The last request of each slot that rests."""
    _tasks: dict[int, int] = field(default_factory=dict)
    _seconds: float | None = None

    def take(self, slots: Sequence[SlotReading], seconds: float) -> None:
        """Look at one sample; samples of a clock set back are left out."""
        if self._seconds is not None and seconds < self._seconds:
            return
        before = seconds if self._seconds is None else (self._seconds + seconds) / 2
        is_first = self._seconds is None
        tasks = {slot.slot_id: slot.task_id for slot in slots if slot.task_id is not None}
        if any(tasks.get(slot, -1) < task for slot, task in self._tasks.items()):  # numbers only grow
            self.restarts_open += len(self._open)
            self._open, self._rested, is_first = {}, {}, True
        for slot in slots:
            self._take(slot, seconds, before, is_first=is_first)
        self._tasks, self._seconds = tasks, seconds

    def under_way(self) -> int:
        """Return the requests that were at work in the last sample."""
        return len(self._open)

    def _take(self, slot: SlotReading, seconds: float, before: float, *, is_first: bool) -> None:
        opened = self._open.get(slot.slot_id)
        if slot.task_id is None:
            return
        if opened is not None and opened.task != slot.task_id:
            self._end(slot.slot_id, opened, before, tokens=None)
            opened = None
        if slot.is_processing:
            self._rested.pop(slot.slot_id, None)
            if opened is None:
                opened = self._open[slot.slot_id] = _Open(task=slot.task_id, began=before, seen=seconds)
            _note(opened, slot, seconds)
        elif opened is not None:
            self._end(slot.slot_id, opened, before, tokens=None if slot.tokens is None else int(slot.tokens.value))
            self._rested[slot.slot_id] = slot.task_id
        elif self._rested.get(slot.slot_id) != slot.task_id:
            self._rested[slot.slot_id] = slot.task_id
            if not is_first:
                self.dropped["began and ended between two samples: lengths not told apart"] += 1

    def _end(self, slot_id: int, opened: _Open, seconds: float, *, tokens: int | None) -> None:
        del self._open[slot_id]
        if not opened.prompt_tokens:
            self.dropped["prompt not told by this build"] += 1
            return
        if not opened.decoded_tokens:
            self.dropped["left before its first token, or its prompt was not seen whole"] += 1
            return
        stored = -1 if tokens is None else tokens - opened.prompt_tokens + 1
        is_exact = stored >= opened.decoded_tokens
        if len(self.requests) < _MOST_REQUESTS:
            self.requests.append(
                SlotRequest(
                    source=self.source,
                    arrival_seconds=opened.began,
                    end_seconds=max(seconds, opened.began),
                    prompt_tokens=opened.prompt_tokens,
                    output_tokens=stored if is_exact else opened.decoded_tokens,
                    declared_tokens=opened.declared_tokens,
                    is_exact=is_exact,
                )
            )


def _note(opened: _Open, slot: SlotReading, seconds: float) -> None:
    opened.seen = seconds
    if slot.decoded_tokens is not None:
        opened.decoded_tokens = max(opened.decoded_tokens, int(slot.decoded_tokens.value))
    if slot.prompt_tokens is not None:
        opened.prompt_tokens = max(opened.prompt_tokens, int(slot.prompt_tokens.value))
    if slot.declared_tokens is not None:
        opened.declared_tokens = int(slot.declared_tokens.value)
