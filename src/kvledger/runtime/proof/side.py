"""One side of the proof: a way to hold the cache, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.errors import Error
from kvledger.ledger import Account, Ledger, LedgerIntegral

__all__ = ["Recorder", "Side", "Task", "Way"]

Progress = Callable[[int], None]


class Way(StrEnum):
    """How the keys and values of the requests are held."""

    GENERATE_STATIC = "generate-static"
    """Transformers' `generate` with a `StaticCache` of `max_model_len` tokens a row, batch after batch."""
    GENERATE_DYNAMIC = "generate-dynamic"
    """Transformers' `generate` with a `DynamicCache`, batch after batch, as many rows as surely fit."""
    GENERATE_BATCH = "generate-batch"
    """Transformers' own continuous batching, `generate_batch`."""
    MAX = "max"
    """The engine of kvledger with one extent of `max_model_len` tokens a request."""
    EXACT = "exact"
    """The engine of kvledger with one extent a request, exactly as long as it will get: no server knows that."""
    BLOCKS = "blocks"
    """The engine of kvledger with block tables."""

    @property
    def is_own(self) -> bool:
        """Whether it is Transformers' own loop."""
        return self in (Way.GENERATE_STATIC, Way.GENERATE_DYNAMIC, Way.GENERATE_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request: the tokens of its prompt, and how many it generates."""

    prompt: tuple[int, ...]
    output_tokens: int

    @property
    def stored_tokens(self) -> int:
        """Tokens whose keys and values are stored when it ends: the last one's never are."""
        return len(self.prompt) + self.output_tokens - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one way did, measured on the tensors that it really held.

    Ratios are of ``capacity_bytes`` and weighted by time; ``None`` where the ledger of a way cannot be seen. Saturated
    means: while at least one request waited, for memory or for its turn to be computed. Full means: while one waited
    for memory. ``answers`` has the tokens of each task; None where it failed.
    """

    way: Way
    capacity_bytes: int
    answers: tuple[tuple[int, ...] | None, ...] = ()
    mean_ratio: dict[Account, float] | None = None
    saturated_ratio: dict[Account, float] | None = None
    full_ratio: dict[Account, float] | None = None
    peak_running: int = 0
    mean_running: float = 0.0
    saturated_running: float = 0.0
    saturated_seconds: float = 0.0
    full_running: float = 0.0
    full_seconds: float = 0.0
    seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    preemptions: int = 0
    error: Error | None = None
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> dict[Account, float] | None:
        """Shares while a request waited for memory, all the time where none did; None where none are known."""
        return self.full_ratio or self.mean_ratio

    @property
    def running(self) -> float:
        """Requests that ran while one waited for memory; the mean over all the time where none did."""
        return self.full_running or self.mean_running

    @property
    def tokens_per_second(self) -> float:
        """Tokens generated in a second, from the first prompt to the last token."""
        generated = sum(len(answer) for answer in self.answers if answer is not None)
        return generated / self.seconds if self.seconds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens in a second of the steps that computed prompts; decoding in the same steps is not taken off."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens in a second of the steps that only decoded."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(slots=True)
class _Span:
    """Means over some of the steps, weighted by time."""

    ledgers: LedgerIntegral = field(default_factory=LedgerIntegral)
    running_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, ledger: Ledger | None, *, running: int, seconds: float) -> None:
        """Add a step (mutates)."""
        self.seconds += seconds
        self.running_seconds += running * seconds
        if ledger is not None:
            self.ledgers.add(ledger, seconds=seconds)

    @property
    def ratio(self) -> dict[Account, float] | None:
        """Mean shares of the capacity; None where no ledger was seen."""
        return self.ledgers.mean_ratio() if self.ledgers.seconds else None

    @property
    def running(self) -> float:
        """Mean of the requests that ran."""
        return self.running_seconds / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Recorder:
    """Adds steps up to a side."""

    whole: _Span = field(default_factory=_Span)
    saturated: _Span = field(default_factory=_Span)
    full: _Span = field(default_factory=_Span)
    peak_running: int = 0
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    def add(self, ledger: Ledger | None, *, running: int, waiting: int, refused: bool, seconds: float) -> None:
        """Add a step that left ``running`` and ``waiting`` requests (mutates); ``refused``: for want of memory."""
        self.peak_running = max(self.peak_running, running)
        self.whole.add(ledger, running=running, seconds=seconds)
        if waiting:
            self.saturated.add(ledger, running=running, seconds=seconds)
            if refused:
                self.full.add(ledger, running=running, seconds=seconds)

    def count(self, *, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        """Add the tokens of a step (mutates); its time counts as prefill when it computed prompts."""
        self.prefill_tokens += int(prefill_tokens)
        if prefill_tokens:
            self.prefill_seconds += seconds
        else:
            self.decode_tokens += int(decode_tokens)
            self.decode_seconds += seconds

    def side(self, way: Way, *, capacity_bytes: int, answers: list[tuple[int, ...] | None], seconds: float) -> Side:
        """Return the side; ``seconds`` from the first prompt to the last token."""
        return Side(
            way=way,
            capacity_bytes=capacity_bytes,
            answers=tuple(answers),
            mean_ratio=self.whole.ratio,
            saturated_ratio=self.saturated.ratio,
            full_ratio=self.full.ratio,
            peak_running=self.peak_running,
            mean_running=self.whole.running,
            saturated_running=self.saturated.running,
            saturated_seconds=self.saturated.seconds,
            full_running=self.full.running,
            full_seconds=self.full.seconds,
            seconds=seconds,
            prefill_tokens=self.prefill_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_tokens=self.decode_tokens,
            decode_seconds=self.decode_seconds,
        )
