"""A request in an engine: its answers while they are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from kvledger.errors import Error
from kvledger.runtime.answers import Answer, Ending, Likelihood, Token
from kvledger.runtime.options import Generation
from kvledger.runtime.sampling import Drawer
from kvledger.runtime.sequence import RequestId, Sequence
from kvledger.runtime.text import TextStream

__all__ = ["Request", "Writing"]


@dataclass(slots=True, kw_only=True, eq=False)
class Writing:
    """One answer that is being written."""

    sequence: Sequence
    stream: TextStream
    drawer: Drawer
    first_token_at: float | None = None
    likelihoods: list[Likelihood] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """What was asked, the answers being written by sample, and those that have ended."""

    id: RequestId
    prompt: list[int]
    generation: Generation
    stop_ids: frozenset[int]
    tokenizer: Any
    asked_at: float = field(default_factory=perf_counter)
    writing: dict[int, Writing] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether every answer has ended."""
        return len(self.answers) == self.generation.samples

    def begin(self, sequence: Sequence) -> Writing:
        """Begin to write the answer of a sequence (mutates)."""
        writing = Writing(
            sequence=sequence,
            stream=TextStream(
                self.tokenizer, self.generation.stop, prompt=self.prompt, min_tokens=self.generation.min_tokens
            ),
            drawer=Drawer(self.generation.seed, sequence.sample),
        )
        self.writing[sequence.sample] = writing
        return writing

    def find_forbidden(self, writing: Writing) -> frozenset[int]:
        """Return the tokens that must not come next: what would end an answer that has to be longer."""
        is_short = writing.sequence.generated < self.generation.min_tokens
        return self.stop_ids if is_short else frozenset()

    def write(self, writing: Writing, token: int, likelihood: Likelihood | None = None) -> Token:
        """Add a token to an answer (mutates); it ends when something the request asked for says so."""
        sequence = writing.sequence
        if likelihood is not None:
            writing.likelihoods.append(likelihood)
        if writing.first_token_at is None:
            writing.first_token_at = perf_counter()
        sequence.tokens.append(token)
        ending, text = None, ""
        if token in self.stop_ids:
            ending = Ending.STOP
        else:
            text = writing.stream.push(token)
            if writing.stream.is_stopped:
                ending = Ending.STOP
            elif len(sequence.tokens) >= sequence.most_tokens:
                ending = Ending.LENGTH
        if ending is not None:
            text += writing.stream.finish()
            if writing.stream.is_stopped:
                ending = Ending.STOP
            self.end(writing, ending)
        return Token(
            request=self.id,
            sample=sequence.sample,
            token_id=token,
            text=text,
            ending=ending,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            likelihood=likelihood,
        )

    def end(self, writing: Writing, ending: Ending, error: Error | None = None) -> None:
        """Turn what was written into an answer (mutates)."""
        sequence = writing.sequence
        now = perf_counter()
        first = writing.first_token_at
        self.answers[sequence.sample] = Answer(
            sample=sequence.sample,
            token_ids=tuple(sequence.tokens[sequence.prompt_tokens :]),
            text=writing.stream.text,
            ending=ending,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            preemptions=sequence.preemptions,
            first_token_seconds=None if first is None else first - self.asked_at,
            seconds=now - self.asked_at,
            error=error,
            likelihoods=tuple(writing.likelihoods),
        )
        del self.writing[sequence.sample]
