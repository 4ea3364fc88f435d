"""What an engine gives back: tokens as they come, and whole answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvledger.errors import Error
from kvledger.ledger import Ledger
from kvledger.runtime.sequence import RequestId

__all__ = ["Answer", "Ending", "Likelihood", "Result", "Step", "Token"]


class Ending(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or `max_model_len` was reached."""
    CANCELLED = "cancelled"
    """The caller gave it up."""
    ERROR = "error"
    """It could not go on; see the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """How likely a token was by the model's own logits, before temperature and whatever else a request asks for.

    ``logprob`` is the natural logarithm of its chance, ``rank`` its place among all tokens (1: the likeliest), and
    ``top`` the likeliest tokens with their logarithms, likeliest first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One step of an answer: the token that came, the text that is now certain, and whether it was the last.

    ``token_id`` is None where an answer ends without a token. ``text`` is empty without a tokenizer. ``prompt_tokens``
    and ``cached_tokens`` are those of its answer. ``likelihood`` is there when `Generation.logprobs` asked for it.
    """

    request: RequestId
    sample: int
    token_id: int | None
    text: str = ""
    ending: Ending | None = None
    error: Error | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    likelihood: Likelihood | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. ``cached_tokens`` of its prompt were in the prefix cache; times are seconds since it was asked."""

    sample: int
    token_ids: tuple[int, ...]
    text: str
    ending: Ending
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    first_token_seconds: float | None
    seconds: float
    error: Error | None = None
    likelihoods: tuple[Likelihood, ...] = ()
    """Of its tokens, when `Generation.logprobs` asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All answers to one prompt, in the order of their samples, and the error that refused it, if any."""

    request: RequestId | None
    answers: tuple[Answer, ...]
    error: Error | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first answer."""
        return self.answers[0].token_ids if self.answers else ()

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.answers[0].text if self.answers else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did. The ledger is that of the step, counting the tokens it wrote."""

    ledger: Ledger
    tokens: tuple[Token, ...]
    prefill_tokens: int
    decode_sequences: int
    running: int
    waiting: int
    preempted: int
    refused: bool
    """Whether memory was short: the first that waits was refused, or a request gave way."""
    seconds: float
