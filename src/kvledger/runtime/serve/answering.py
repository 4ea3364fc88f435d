"""From the tokens of several prompts to one response: whole, or as events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kvledger.runtime.answers import Token
from kvledger.runtime.serve.refusing import describe
from kvledger.runtime.serve.requests import Asked
from kvledger.runtime.serve.shapes import Shape
from kvledger.runtime.serve.stream import Answers

__all__ = ["collect", "events", "whole"]


class _Usage:
    """What the tokens told so far have used; a prompt counts once, however many answers it has."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion_tokens = 0

    def count(self, number: int, token: Token) -> None:
        """Count a token of the answers to a prompt (mutates)."""
        if token.token_id is not None:
            self._prompts.setdefault(number, (token.prompt_tokens, token.cached_tokens))
            self._completion_tokens += 1

    def record(self) -> dict[str, Any]:
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in self._prompts.values())},
        }


async def collect(answers: Sequence[Answers]) -> list[list[Token]]:
    """Wait for all tokens of all prompts."""
    return [[token async for token in answer] for answer in answers]


def whole(found: Sequence[Sequence[Token]], shape: Shape, samples: int) -> dict[str, Any]:
    """Return the response to prompts whose answers have ended.

    Raises:
        Error: An answer has failed.
    """
    choices, usage = [], _Usage()
    for number, tokens in enumerate(found):
        for token in tokens:
            usage.count(number, token)
        fault = next((token.error for token in tokens if token.error is not None), None)
        if fault is not None:
            raise fault
        for sample in range(samples):
            own = [token for token in tokens if token.sample == sample]
            choices.append(shape.whole(number * samples + sample, own))
    return {**shape.head, "choices": choices, "usage": usage.record()}


async def events(answers: Sequence[Answers], asked: Asked, shape: Shape) -> AsyncIterator[str]:
    """Yield the events of a stream; when nobody listens any more, the requests are given up."""
    with_usage, each_time = asked.wants("include_usage"), asked.wants("continuous_usage_stats")
    begun: set[int] = set()
    usage = _Usage()
    finished = False
    try:
        async for number, token in _merge(answers):
            usage.count(number, token)
            index = number * asked.n + token.sample
            choices = [] if index in begun else shape.begin(index)
            begun.add(index)
            choices.append(shape.piece(index, token))
            for choice in choices:
                event: dict[str, Any] = {**shape.piece_head, "choices": [choice]}
                if with_usage or each_time:
                    event["usage"] = usage.record() if each_time else None
                if token.error is not None:
                    event["error"] = describe(token.error)
                yield _event(event)
        if with_usage:
            yield _event({**shape.piece_head, "choices": [], "usage": usage.record()})
        yield "data: [DONE]\n\n"
        finished = True
    finally:
        if not finished:
            for answer in answers:
                answer.give_up()


def _event(what: dict[str, Any]) -> str:
    return f"data: {json.dumps(what)}\n\n"


async def _merge(answers: Sequence[Answers]) -> AsyncIterator[tuple[int, Token]]:
    """Yield the tokens of several prompts as they come."""
    queue: asyncio.Queue[tuple[int, Token | None]] = asyncio.Queue()

    async def pass_on(number: int, answer: Answers) -> None:
        async for token in answer:
            queue.put_nowait((number, token))
        queue.put_nowait((number, None))

    tasks = [asyncio.ensure_future(pass_on(number, answer)) for number, answer in enumerate(answers)]
    left = len(tasks)
    try:
        while left:
            number, token = await queue.get()
            if token is None:
                left -= 1
            else:
                yield number, token
    finally:
        for task in tasks:
            task.cancel()
