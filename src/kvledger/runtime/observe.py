"""Watching a `generate()` loop that exists already: the ledger of the cache it fills, forward by forward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from kvledger.errors import ModelError
from kvledger.ledger import Account, Ledger, LedgerIntegral
from kvledger.runtime.books import Row, find_cache, find_tensors, take_ledger
from kvledger.units import counted, format_bytes

__all__ = ["Observation", "Observer", "observe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The cache after one forward. ``seconds`` have passed since the forward before; the first counts its own."""

    ledger: Ledger
    rows: int
    running: int
    seconds: float


@dataclass(slots=True)
class Observer:
    """What has been seen of a model's forwards; close it, or leave its `with` block, to take the hooks off again.

    ``observations`` has one entry for each forward that filled a cache; ``unseen`` counts the others, by reason.
    """

    observations: list[Observation] = field(default_factory=list)
    unseen: dict[str, int] = field(default_factory=dict)
    _stop: Callable[[], None] | None = None

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model; what was seen stays (mutates)."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    @property
    def peak(self) -> Observation | None:
        """The forward after which the cache was largest."""
        return max(self.observations, key=lambda seen: seen.ledger.capacity, default=None)

    def mean_ratio(self) -> dict[Account, float]:
        """Return the share of each account in what the cache held (0-1), weighted by time."""
        whole = LedgerIntegral()
        for seen in self.observations:
            whole.add(seen.ledger, seconds=seen.seconds)
        return whole.mean_ratio()

    def __str__(self) -> str:
        peak = self.peak
        if peak is None:
            return "\n".join(["No forward has filled a cache.", *self._excuses()])
        ratios = self.mean_ratio()
        lines = [
            f"Measured on the tensors of {counted(len(self.observations), 'forward')}; the cache grew to "
            f"{format_bytes(peak.ledger.capacity)} for {counted(peak.rows, 'row')}.",
            "",
            f"{'account':<14}{'at its largest':>16}{'mean':>9}",
        ]
        lines += [
            f"{account:<14}{format_bytes(peak.ledger[account]):>16}{ratios[account]:>9.1%}"
            for account in Account
            if peak.ledger[account] or ratios[account]
        ]
        return "\n".join([*lines, *self._excuses()])

    def _excuses(self) -> list[str]:
        return [f"Not seen: {counted(count, 'forward')}, {reason}." for reason, count in self.unseen.items()]


def observe(model: Any) -> Observer:
    """Watch what the cache of a Transformers model holds while somebody's own loop calls it; nothing is changed.

    Works with `generate()`, static and dynamic caches, ragged batches padded on the left, and hand-written loops that
    pass `attention_mask` or `position_ids`, several loops at once included: each observation is of the cache of its
    forward. A row counts as ended once an end-of-sequence token of the model's `generation_config` is fed to it, until
    it is fed different tokens again; an end that the loop decides in another way is not seen.

    Example::

        with observe(model) as seen:
            model.generate(**inputs)
        print(seen)
    """
    observer = Observer()
    watcher = _Watcher(observer, _find_end_ids(model))
    before = model.register_forward_pre_hook(watcher.begin, with_kwargs=True)
    after = model.register_forward_hook(watcher.end, with_kwargs=True)

    def stop() -> None:
        before.remove()
        after.remove()

    observer._stop = stop
    return observer


@dataclass(slots=True)
class _Loop:
    """What is remembered of a cache between its forwards: which rows have ended, and what they are fed since."""

    since: float
    ended: list[bool]
    fillers: list[int | None]

    def feed(self, fed: list[int], end_ids: frozenset[int]) -> None:
        """Take in the next token of every row (mutates).

        A row that has ended is fed the same token from then on; one that is fed another goes on: its loop does not end
        at the tokens that the model's own configuration names.
        """
        for row, token in enumerate(fed):
            if not self.ended[row]:
                self.ended[row], self.fillers[row] = token in end_ids, None
            elif self.fillers[row] is None:
                self.fillers[row] = token
            elif token != self.fillers[row]:
                self.ended[row] = False


class _Watcher:
    """The two hooks around a forward, and the loops that it serves: one for each cache, in any thread."""

    def __init__(self, observer: Observer, end_ids: frozenset[int]) -> None:
        self._observer = observer
        self._end_ids = end_ids
        self._loops: WeakKeyDictionary[Any, _Loop] = WeakKeyDictionary()
        self._here = threading.local()
        self._gate = threading.Lock()

    def begin(self, _module: Any, _args: Any, _kwargs: dict[str, Any]) -> None:
        self._here.begun = perf_counter()

    def end(self, _module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        cache = _find_cache(output, kwargs)
        with self._gate:
            if cache is None:
                self._miss(_excuse(output))
                return
            try:
                self._see(cache, args, kwargs)
            except ModelError as error:
                self._miss(error.message)
            except Exception as error:  # of a kind nobody foresaw: the loop that is watched must go on
                self._miss(f"whose `{type(cache).__name__}` could not be read: {type(error).__name__}: {error}"[:200])

    def _see(self, cache: Any, args: Any, kwargs: dict[str, Any]) -> None:
        find_tensors(cache)  # a layer of another kind is said before its length is asked for
        rows, loop = self._read_rows(cache, args, kwargs)
        ledger = take_ledger(cache, rows)
        now = perf_counter()
        running = sum(not row.ended for row in rows)
        self._observer.observations.append(
            Observation(ledger=ledger, rows=len(rows), running=running, seconds=now - loop.since)
        )
        loop.since = now

    def _miss(self, reason: str) -> None:
        self._observer.unseen[reason] = self._observer.unseen.get(reason, 0) + 1

    def _read_rows(self, cache: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Row], _Loop]:
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if tokens is None:
            tokens = kwargs.get("inputs_embeds")
        if tokens is None:
            raise ModelError("which were given neither tokens nor embeddings")
        count, fed = int(tokens.shape[0]), int(tokens.shape[1])
        length = int(cache.get_seq_length())
        loop = self._loops.get(cache)
        if loop is None or len(loop.ended) != count or length <= fed:
            begun = getattr(self._here, "begun", perf_counter())
            loop = self._loops[cache] = _Loop(begun, [False] * count, [None] * count)
        elif fed > 1:  # a prompt in chunks, or the next turn of a chat: what had ended goes on
            loop.ended = [False] * count
        elif tokens.dim() == 2:
            loop.feed(tokens[:, 0].tolist(), self._end_ids)
        lengths = _own_lengths(kwargs, count, length)
        return [Row(tokens=n, ended=ended) for n, ended in zip(lengths, loop.ended, strict=True)], loop


def _find_cache(output: Any, kwargs: dict[str, Any]) -> Any:
    """Return the cache of a forward: what it returned as such, or among a tuple, or was given; None: none is known."""
    found = [find_cache(output), *(output if isinstance(output, tuple) else ())]
    found += [kwargs.get("cache"), kwargs.get("past_key_values")]
    return next((one for one in found if hasattr(one, "layers") and hasattr(one, "get_seq_length")), None)


def _excuse(output: Any) -> str:
    cache = find_cache(output)
    if cache is None:
        return "which returned no cache of Transformers' own classes"
    return f"whose cache is a `{type(cache).__name__}`, which is not observed"


def _own_lengths(kwargs: dict[str, Any], count: int, length: int) -> list[int]:
    """Return the tokens of each row without its padding: by its mask, else its last position, else the cache's."""
    mask: Any = kwargs.get("attention_mask")
    if getattr(mask, "ndim", 0) == 2 and mask.shape[0] == count:
        return [min(length, int(n)) for n in (mask != 0).sum(dim=1).tolist()]
    positions: Any = kwargs.get("position_ids")
    if getattr(positions, "ndim", 0) == 2:
        last = [min(length, int(n) + 1) for n in positions[:, -1].tolist()]
        return last * count if len(last) == 1 else last
    return [length] * count


def _find_end_ids(model: Any) -> frozenset[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ends is None:
        return frozenset()
    return frozenset(int(end) for end in (ends if isinstance(ends, (list, tuple)) else [ends]))
