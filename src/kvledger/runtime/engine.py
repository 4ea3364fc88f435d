"""The engine: a Transformers model served from block tables, all running requests in one forward a step."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvledger.errors import Error, UsageError
from kvledger.ledger import Ledger
from kvledger.runtime.answers import Answer, Ending, Result, Step, Token
from kvledger.runtime.assembly import assemble
from kvledger.runtime.options import Generation, Options, Reservation
from kvledger.runtime.prompts import Prompt, PromptReader
from kvledger.runtime.request import Request, Writing
from kvledger.runtime.sampling import draw_token, find_likelihood, forbid_tokens
from kvledger.runtime.scheduler import Schedule, Tally
from kvledger.runtime.sequence import RequestId, Sequence
from kvledger.runtime.settings import require_whole
from kvledger.units import parse_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["Engine"]

_MOST_BYTES = 2**60
_MOST_BLOCK_TOKENS = 2**20


class Engine:
    """Serves a Hugging Face Transformers model from a paged KV cache.

    Args:
        model: A causal language model of Transformers, in evaluation mode, on its device.
        kv_memory: What the blocks may take, such as ``"512MiB"`` or a number of bytes.
        block_size: Tokens of a block.
        tokenizer: Turns prompts that are text into tokens, and tokens into text.
        options: The scheduler's limits and what the cache does.

    Raises:
        UsageError: A setting cannot be used with this model.
        CapacityError: The memory is too small, or is not there.
        ModelError: The model cannot be paged; what stands in the way is named.
        MissingExtra: torch or transformers is not installed.
    """

    def __init__(
        self,
        model: Any,
        kv_memory: int | str,
        *,
        block_size: int = 16,
        tokenizer: Any = None,
        options: Options | None = None,
    ) -> None:
        self.options = options or Options()
        if not isinstance(self.options, Options):
            raise UsageError(f"options is a `{type(options).__name__}`, not `Options`")
        memory_bytes = parse_bytes(kv_memory) if isinstance(kv_memory, str) else kv_memory
        require_whole("kv_memory", memory_bytes, 0, _MOST_BYTES)
        require_whole("block_size", block_size, 1, _MOST_BLOCK_TOKENS)
        parts = assemble(model, memory_bytes, block_size=block_size, options=self.options)
        self.layout = parts.layout
        self.pages = parts.pages
        self.scheduler = parts.scheduler
        self.runner = parts.runner
        self.tokenizer = tokenizer
        self._reader = PromptReader(tokenizer, check=self.runner.check_tokens, max_model_len=self.max_model_len)
        self._detach = parts.detach
        self._requests: dict[RequestId, Request] = {}
        self._next = 0
        self._is_closed = False

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that is served, prompt and answer together."""
        return self.scheduler.max_model_len

    @property
    def tally(self) -> Tally:
        """What was counted since the engine was made: preemptions, swaps, tokens found in the prefix cache."""
        return self.scheduler.tally

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        return self.scheduler.is_idle

    def ledger(self) -> Ledger:
        """Return where every byte of the KV cache is now; the accounts sum to the bytes of the tensors."""
        return self.scheduler.ledger()

    def check(self) -> None:
        """Recount pool, tables and tensors.

        Raises:
            UnbalancedLedger: Something does not add up; a fault of kvledger.
        """
        from kvledger.runtime.audit import audit

        audit(self.scheduler, self.pages)

    def read(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt, as `submit` does itself; any thread may call this at any time.

        Raises:
            UsageError: The prompt is empty, or holds what is no token, or needs a tokenizer or a chat template.
            CapacityError: The prompt is longer than what the engine serves.
        """
        return self._reader.read(prompt)

    def submit(self, prompt: Prompt, generation: Generation | None = None) -> RequestId:
        """Let a request join the queue, and return its number (mutates).

        Raises:
            UsageError: The prompt is empty, holds what is no token, or cannot be served with these options.
            CapacityError: The prompt is longer than what the engine serves.
        """
        self._check_open()
        generation = Generation() if generation is None else generation
        if not isinstance(generation, Generation):
            raise UsageError(f"what is asked is a `{type(generation).__name__}`, not a `Generation`")
        self._check_generation(generation)
        tokens = self.read(prompt)
        room = self.max_model_len - len(tokens)
        request = Request(
            id=RequestId(self._next),
            prompt=tokens,
            generation=generation,
            stop_ids=self._find_stop_ids(generation),
            tokenizer=self.tokenizer,
        )
        self._next += 1
        sequence = Sequence(
            request=request.id,
            tokens=list(tokens),
            prompt_tokens=len(tokens),
            most_tokens=len(tokens) + min(generation.max_tokens or room, room),
            siblings=generation.samples - 1,
        )
        request.begin(sequence)
        self._requests[request.id] = request
        self.scheduler.add(sequence)
        return request.id

    def step(self) -> Step:
        """Compute one step of every request that has its turn (mutates). With nothing to do, nothing is computed."""
        self._check_open()
        begun = perf_counter()
        schedule = self.scheduler.schedule()
        running, waiting = len(self.scheduler.running), len(self.scheduler.waiting)
        tokens: list[Token] = []
        decodes = 0
        if schedule.sequences:
            decodes = sum(s.generated > 0 and n == 1 for s, n in zip(schedule.sequences, schedule.counts, strict=True))
            tokens = self._compute(schedule)
        return Step(
            ledger=schedule.ledger,
            tokens=tuple(tokens),
            prefill_tokens=schedule.tokens - decodes,
            decode_sequences=decodes,
            running=running,
            waiting=waiting,
            preempted=schedule.preempted,
            refused=schedule.refused,
            seconds=perf_counter() - begun,
        )

    def cancel(self, request: RequestId) -> list[Token]:
        """Give a request up and free what it holds at once (mutates); return the ends of its answers."""
        if request not in self._requests:
            return []
        return self._end_all(self._requests[request], Ending.CANCELLED, None)

    def take(self, request: RequestId) -> Result | None:
        """Hand the answers of a request over and forget it (mutates); None while it is being written.

        Raises:
            UsageError: There is no such request, or it was taken before.
        """
        known = self._requests.get(request)
        if known is None:
            raise UsageError(f"request {request} is not known", hint="a result is handed over once")
        if not known.is_done:
            return None
        del self._requests[request]
        return Result(request=request, answers=tuple(known.answers[i] for i in sorted(known.answers)))

    def generate(self, prompts: Iterable[Prompt], generation: Generation | None = None) -> list[Result]:
        """Answer prompts, all that fit at the same time, and return the results in their order (mutates).

        A prompt that is refused has its error in its result; the others are answered.
        """
        self._check_open()
        if isinstance(prompts, str):
            raise UsageError("the prompts are one text", hint="give a list of prompts: generate([text])")
        results: list[Result | None] = []
        asked: list[RequestId | None] = []
        for prompt in prompts:
            try:
                asked.append(self.submit(prompt, generation))
                results.append(None)
            except Error as error:
                asked.append(None)
                results.append(Result(request=None, answers=(), error=error))
        waiting = {number for number in asked if number is not None}
        while any(not self._requests[number].is_done for number in waiting):
            self.step()
        return [result or self._take(number) for result, number in zip(results, asked, strict=True)]

    def close(self) -> None:
        """Give the model its own attention back (mutates); what still runs is cancelled. Closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for request in list(self._requests):
            self.cancel(request)
        self.runner.close()
        self._detach()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the engine is closed", hint="make a new one")

    def _take(self, number: RequestId | None) -> Result:
        assert number is not None
        result = self.take(number)
        assert result is not None
        return result

    def _find_stop_ids(self, generation: Generation) -> frozenset[int]:
        """Return the tokens that end an answer; a tokenizer may end turns otherwise than its model's configuration."""
        end = getattr(self.tokenizer, "eos_token_id", None)
        own = frozenset() if end is None or generation.ignore_eos else frozenset([int(end)])
        return self.runner.stop_ids(generation) | own

    def _check_generation(self, generation: Generation) -> None:
        if generation.samples > 1 and self.options.reservation is not Reservation.BLOCKS:
            raise UsageError(
                f"the request asks for {generation.samples} samples of one prompt, and extents are not shared",
                hint="ask for each sample as a request of its own, or reserve blocks",
            )
        if generation.samples > self.options.max_num_seqs:
            raise UsageError(f"{generation.samples} samples are more than max_num_seqs, {self.options.max_num_seqs}")
        if generation.stop and self.tokenizer is None:
            raise UsageError("stop strings need a tokenizer", hint="give stop_token_ids, or a tokenizer to the engine")

    def _compute(self, schedule: Schedule) -> list[Token]:
        """Send a step through the model, and write its tokens; when that fails, only what took part in it ends."""
        try:
            logits, places = self.runner.run(schedule)
        except Exception as cause:  # whatever a model raises ends its requests, not the engine
            error = cause if isinstance(cause, Error) else Error(f"the model failed: {type(cause).__name__}: {cause}")
            error.__cause__ = None if error is cause else cause
            return self._fail({s.request for s in schedule.sequences}, error)
        tokens: list[Token] = []
        best, values = self.runner.find_likeliest(logits)
        for row, place in enumerate(places):
            sequence = schedule.sequences[place]
            request = self._requests[sequence.request]
            if not values[row]:
                tokens += self._fail({request.id}, Error("the model's logits are not numbers"))
                continue
            for writing in self._writers(request, sequence):
                tokens.append(_write_next(request, writing, logits[row], best[row]))
                if writing.sequence.sample in request.answers and writing.sequence is not sequence:
                    self.scheduler.end(writing.sequence)
            if sequence.sample in request.answers:
                self.scheduler.end(sequence)
        return tokens

    def _writers(self, request: Request, sequence: Sequence) -> list[Writing]:
        """Return the answers that a sequence's logits are for: its own, and those forked from it now."""
        writers = [request.writing[sequence.sample]]
        for sample in range(1, 1 + sequence.siblings):
            child = Sequence(
                request=request.id,
                sample=sample,
                tokens=list(sequence.tokens),
                prompt_tokens=sequence.prompt_tokens,
                most_tokens=sequence.most_tokens,
                cached_tokens=sequence.cached_tokens,
            )
            self.scheduler.fork(sequence, child)
            writers.append(request.begin(child))
        return writers

    def _fail(self, requests: set[RequestId], error: Error) -> list[Token]:
        """End requests whose blocks may hold anything."""
        ended: list[Token] = []
        for number in sorted(requests):
            request = self._requests[number]
            for writing in request.writing.values():
                if writing.sequence.slot >= 0:
                    self.scheduler.tables.disown(writing.sequence)
            ended += self._end_all(request, Ending.ERROR, error)
        return ended

    def _end_all(self, request: Request, ending: Ending, error: Error | None) -> list[Token]:
        ended = []
        for writing in list(request.writing.values()):
            sequence = writing.sequence
            unborn = range(1, 1 + sequence.siblings)
            self.scheduler.end(sequence)
            request.end(writing, ending, error)
            for sample in (sequence.sample, *unborn):
                if sample not in request.answers:
                    request.answers[sample] = _empty_answer(request.answers[sequence.sample], sample)
                ended.append(Token(request=request.id, sample=sample, token_id=None, ending=ending, error=error))
        return ended


def _write_next(request: Request, writing: Writing, logits: torch.Tensor, likeliest: int) -> Token:
    """Choose the next token of an answer from its logits, (vocabulary,), and write it (mutates)."""
    generation, possible = request.generation, logits
    if forbidden := request.find_forbidden(writing):
        possible = forbid_tokens(logits, forbidden)
        likeliest = int(possible.argmax())
    token = draw_token(possible, generation, writing.drawer) if generation.temperature else likeliest
    likelihood = None if generation.logprobs is None else find_likelihood(logits, token, generation.logprobs)
    return request.write(writing, token, likelihood)


def _empty_answer(like: Answer, sample: int) -> Answer:
    from dataclasses import replace

    return replace(like, sample=sample, token_ids=(), text="", likelihoods=())
