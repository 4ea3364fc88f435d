"""An engine in a thread of its own, for callers in an event loop or in other threads.

The engine belongs to that thread alone; what others want of it waits in a queue and is done between two steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from kvledger.errors import Error, UsageError
from kvledger.runtime.answers import Ending, Result, Token
from kvledger.runtime.engine import Engine, Prompt
from kvledger.runtime.options import Generation
from kvledger.runtime.sequence import RequestId

__all__ = ["Driver"]

T = TypeVar("T")
Deliver = Callable[[Token], None]


@dataclass(frozen=True, slots=True)
class _Wish:
    """Something to do with the engine, and where its answer goes."""

    function: Callable[[Engine], Any]
    answer: Future[Any]

    def fulfil(self, engine: Engine) -> None:
        if self.answer.set_running_or_notify_cancel():
            try:
                self.answer.set_result(self.function(engine))
            except BaseException as error:
                self.answer.set_exception(error)


class Driver:
    """Steps an engine as long as it has work. Use it as a context manager, or `close` it.

    Every method may be called from any thread, and `stream` from any event loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wishes: SimpleQueue[_Wish] = SimpleQueue()
        self._gate = threading.Lock()
        self._deliver: dict[RequestId, Deliver] = {}
        self._results: dict[RequestId, Future[Result]] = {}
        self._is_closing = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvledger-engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Driver:
        """Return the driver itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Let a function have the engine between two steps; return where its answer will be."""
        wish = _Wish(function, Future())
        with self._gate:
            if self._is_closing or self._fault is not None:
                wish.answer.set_exception(self._refusal())
            else:
                self._wishes.put(wish)
        return wish.answer

    def submit(
        self, prompt: Prompt, generation: Generation | None = None, *, deliver: Deliver | None = None
    ) -> tuple[Future[RequestId], Future[Result]]:
        """Let a request join the queue; return where its number and its result will be.

        ``deliver`` gets every token in the engine's thread, and must not wait for anything.
        """
        result: Future[Result] = Future()

        def join(engine: Engine) -> RequestId:
            request = engine.submit(prompt, generation)
            self._results[request] = result
            if deliver is not None:
                self._deliver[request] = deliver
            return request

        return self.call(join), result

    def cancel(self, request: RequestId) -> Future[None]:
        """Give a request up; its result, and the ends of its answers, come as for any other."""
        return self.call(lambda engine: self._hand_out(engine.cancel(request)))

    async def stream(self, prompt: Prompt, generation: Generation | None = None) -> AsyncIterator[Token]:
        """Yield the tokens of a request as they come. Leaving the loop early cancels it.

        Raises:
            UsageError: The prompt or what is asked cannot be served.
            CapacityError: The prompt is longer than what the engine serves.
        """
        loop = asyncio.get_running_loop()
        tokens: asyncio.Queue[Token] = asyncio.Queue()
        number, result = self.submit(
            prompt, generation, deliver=lambda token: _send(loop, lambda: tokens.put_nowait(token))
        )
        try:
            await asyncio.wrap_future(number)
            left = (generation or Generation()).samples
            while left:
                token = await tokens.get()
                if result.done() and (fault := result.exception()) is not None:
                    raise fault
                left -= token.ending is not None
                yield token
        finally:
            if not result.done():
                number.add_done_callback(self._cancel_when_known)

    def close(self) -> None:
        """Cancel what is there, and let the thread end. The engine stays open."""
        with self._gate:
            if not self._is_closing and self._fault is None:
                self._wishes.put(_Wish(self._cancel_all, Future()))
            self._is_closing = True
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _cancel_when_known(self, number: Future[RequestId]) -> None:
        if not number.cancelled() and number.exception() is None:
            self.cancel(number.result())

    def _cancel_all(self, engine: Engine) -> None:
        for request in list(self._results):
            self._hand_out(engine.cancel(request))

    def _refusal(self) -> Error:
        if self._fault is not None:
            return Error(f"the engine has stopped: {self._fault}")
        return UsageError("the driver of the engine is closed")

    def _run(self) -> None:
        try:
            while not (self._is_closing and self._wishes.empty()):
                if self._engine.is_idle or not self._wishes.empty():
                    self._wishes.get().fulfil(self._engine)
                else:
                    self._hand_out(list(self._engine.step().tokens))
        except BaseException as fault:
            with self._gate:
                self._fault = fault
            self._give_up(self._refusal())

    def _hand_out(self, tokens: list[Token]) -> None:
        """Deliver tokens, and the results of requests that have ended."""
        for token in tokens:
            deliver = self._deliver.get(token.request)
            if deliver is not None:
                deliver(token)
        for request in {token.request for token in tokens if token.ending is not None}:
            result = self._engine.take(request) if request in self._results else None
            if result is not None:
                self._deliver.pop(request, None)
                self._results.pop(request).set_result(result)

    def _give_up(self, error: Error) -> None:
        """Tell everybody who waits that nothing more comes."""
        while not self._wishes.empty():
            self._wishes.get().answer.set_exception(error)
        for request, result in self._results.items():
            result.set_exception(error)
            deliver = self._deliver.get(request)
            if deliver is not None:
                deliver(Token(request=request, sample=0, token_id=None, ending=Ending.ERROR, error=error))
        self._results.clear()


def _send(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    """Do something in an event loop, unless it has ended."""
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        if not loop.is_closed():
            raise
