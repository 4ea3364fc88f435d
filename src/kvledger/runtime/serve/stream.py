"""Following one request from a server's event loop, and counting it in the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from time import perf_counter

from kvledger.runtime.answers import Result, Token
from kvledger.runtime.driver import Driver
from kvledger.runtime.options import Generation
from kvledger.runtime.prompts import Prompt
from kvledger.runtime.sequence import RequestId
from kvledger.runtime.serve.tallies import Tallies

__all__ = ["Answers"]


class Answers:
    """The tokens of one request, in an event loop; iterate once. `give_up` frees its blocks at once."""

    def __init__(self, driver: Driver, tallies: Tallies, prompt: Prompt, generation: Generation) -> None:
        self._driver = driver
        self._tallies = tallies
        self._generation = generation
        self._tokens: asyncio.Queue[Token] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._begun = perf_counter()
        self._number: Future[RequestId]
        self._result: Future[Result]
        self._number, self._result = driver.submit(prompt, generation, deliver=self._deliver)

    async def wait_until_queued(self) -> None:
        """Wait until the engine has taken the request.

        Raises:
            UsageError: The prompt cannot be served.
            CapacityError: It is too long.
        """
        await asyncio.wrap_future(self._number)

    def give_up(self) -> None:
        """Cancel the request, now or as soon as the engine has taken it."""
        if not self._result.done():
            self._number.add_done_callback(self._cancel)

    def _cancel(self, number: Future[RequestId]) -> None:
        if not number.cancelled() and number.exception() is None:
            self._driver.cancel(number.result())

    async def __aiter__(self) -> AsyncIterator[Token]:
        """Yield every token until all answers have ended."""
        left = self._generation.samples
        while left:
            token = await self._tokens.get()
            left -= token.ending is not None
            yield token
            if self._result.done() and self._result.exception() is not None:
                return  # the engine has stopped, and said so once for all answers

    def _deliver(self, token: Token) -> None:
        """Count a token, and pass it on (in the engine's thread)."""
        self._tallies.take(token, now=perf_counter(), since=self._begun, max_tokens=self._generation.max_tokens or 0)
        try:
            self._loop.call_soon_threadsafe(self._tokens.put_nowait, token)
        except RuntimeError:  # the server has stopped while requests were running
            if not self._loop.is_closed():
                raise
