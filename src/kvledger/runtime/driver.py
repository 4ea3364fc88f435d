"""An engine in a thread of its own, for callers in an event loop or in other threads.

The engine belongs to that thread alone; what others want of it waits in a queue and is done between two steps. Prompts
are turned into tokens in a second thread, so that a long text holds up nobody who is being answered. Text is made of
tokens in the engine's thread: that takes some microseconds a token, and stop strings need it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from kvledger.errors import CapacityError, Error, UsageError
from kvledger.runtime.answers import Ending, Result, Token
from kvledger.runtime.engine import Engine
from kvledger.runtime.options import Generation
from kvledger.runtime.prompts import Prompt
from kvledger.runtime.sequence import RequestId

__all__ = ["Driver"]

T = TypeVar("T")
Deliver = Callable[[Token], None]
_MOST_UNREAD = 2**26
"""Characters and tokens of prompts that may wait to be read."""


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

    def refuse(self, error: BaseException) -> None:
        """Answer with an error, unless nobody waits any more."""
        with suppress(InvalidStateError):
            self.answer.set_exception(error)


class Driver:
    """Steps an engine as long as it has work. Use it as a context manager, or `close` it.

    Every method may be called from any thread, and `stream` from any event loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wishes: SimpleQueue[_Wish] = SimpleQueue()
        self._gate = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "kvledger-reader")
        self._unread = 0
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
        self._wish(wish)
        return wish.answer

    def submit(
        self, prompt: Prompt, generation: Generation | None = None, *, deliver: Deliver | None = None
    ) -> tuple[Future[RequestId], Future[Result]]:
        """Let a request join the queue; return where its number and its result will be. Both raise what refuses it.

        Requests join in the order in which they are submitted. ``deliver`` gets every token in the engine's thread, and
        must not wait for anything. A `CapacityError` with ``retry_after_seconds`` among its attributes says that too
        many prompts wait to be read.
        """
        result: Future[Result] = Future()
        number: Future[RequestId] = Future()
        number.add_done_callback(lambda done: _refuse_too(done, result))

        def join(engine: Engine, tokens: list[int]) -> RequestId:
            request = engine.submit(tokens, generation)
            self._results[request] = result
            if deliver is not None:
                self._deliver[request] = deliver
            return request

        def pass_on(reading: Future[list[int]]) -> None:
            wish = _Wish(lambda engine: join(engine, reading.result()), number)
            fault = self._refusal() if reading.cancelled() else reading.exception()
            if fault is None:
                self._wish(wish)
            else:
                wish.refuse(fault)

        self._read(prompt).add_done_callback(pass_on)
        return number, result

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
        self._reader.shutdown(wait=False, cancel_futures=True)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wish(self, wish: _Wish) -> None:
        with self._gate:
            is_open = not self._is_closing and self._fault is None
            if is_open:
                self._wishes.put(wish)
        if not is_open:
            wish.refuse(self._refusal())

    def _read(self, prompt: Prompt) -> Future[list[int]]:
        """Turn a prompt into tokens in the reader's thread, after those given before."""
        size = len(prompt) if hasattr(prompt, "__len__") else 0
        reading: Future[list[int]] = Future()
        with self._gate:
            waiting = self._unread
            if waiting and waiting + size > _MOST_UNREAD:
                reading.set_exception(
                    CapacityError(
                        f"prompts of {waiting} characters and tokens wait to be read, and with these {size} they would "
                        f"be more than {_MOST_UNREAD}",
                        hint="try again in a second",
                        retry_after_seconds=1,
                    )
                )
                return reading
            if self._is_closing or self._fault is not None:
                reading.set_exception(self._refusal())
                return reading
            self._unread += size
            reading = self._reader.submit(self._engine.read, prompt)
        reading.add_done_callback(lambda _: self._count_read(size))
        return reading

    def _count_read(self, size: int) -> None:
        with self._gate:
            self._unread -= size

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
                try:
                    deliver(token)
                except Exception as fault:  # of the caller's own: nobody else's answer may end with it
                    self._drop(token.request, fault)
        for request in {token.request for token in tokens if token.ending is not None}:
            result = self._engine.take(request) if request in self._results else None
            if result is not None:
                self._deliver.pop(request, None)
                with suppress(InvalidStateError):  # the caller has cancelled it
                    self._results.pop(request).set_result(result)

    def _drop(self, request: RequestId, fault: Exception) -> None:
        """Give up a request whose tokens cannot be delivered."""
        self._engine.cancel(request)
        self._engine.take(request)
        del self._deliver[request]
        with suppress(InvalidStateError):
            self._results.pop(request).set_exception(fault)

    def _give_up(self, error: Error) -> None:
        """Tell everybody who waits that nothing more comes."""
        while not self._wishes.empty():
            self._wishes.get().refuse(error)
        for request, result in self._results.items():
            with suppress(InvalidStateError):
                result.set_exception(error)
            deliver = self._deliver.get(request)
            if deliver is not None:
                deliver(Token(request=request, sample=0, token_id=None, ending=Ending.ERROR, error=error))
        self._results.clear()


def _refuse_too(number: Future[RequestId], result: Future[Result]) -> None:
    """Let a result that will never come raise what refused the request."""
    if number.cancelled():
        result.cancel()
    elif (fault := number.exception()) is not None:
        with suppress(InvalidStateError):
            result.set_exception(fault)


def _send(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    """Do something in an event loop, unless it has ended."""
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        if not loop.is_closed():
            raise
