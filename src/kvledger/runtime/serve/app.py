"""The endpoints: completions, models, health, metrics, and the ledger itself."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvledger.errors import CapacityError, Error, MissingExtra, UsageError
from kvledger.runtime.answers import Ending, Token
from kvledger.runtime.driver import Driver
from kvledger.runtime.engine import Engine
from kvledger.runtime.options import Generation
from kvledger.runtime.serve.exposition import Exposition, take_instant
from kvledger.runtime.serve.requests import MOST_BYTES, CompletionRequest, read_request
from kvledger.runtime.serve.stream import Answers
from kvledger.runtime.serve.tallies import Tallies

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["make_app"]

_FINISH = {Ending.STOP: "stop", Ending.LENGTH: "length", Ending.CANCELLED: "abort", Ending.ERROR: "error"}


def make_app(engine: Engine, driver: Driver, *, model_name: str, tallies: Tallies | None = None) -> Starlette:
    """Return the application over an engine that ``driver`` steps.

    Raises:
        MissingExtra: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra.for_package("starlette", extra="serve") from None
    server = _Server(engine, driver, model_name, tallies or Tallies())
    return Starlette(
        routes=[
            Route("/v1/completions", server.complete, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/health", server.health),
            Route("/metrics", server.metrics),
            Route("/ledger", server.ledger),
        ],
        exception_handlers={HTTPException: server.refuse, Error: server.fail},
    )


class _Server:
    def __init__(self, engine: Engine, driver: Driver, model_name: str, tallies: Tallies) -> None:
        self._engine = engine
        self._driver = driver
        self._model_name = model_name
        self._tallies = tallies
        self._begun = int(time.time())

    async def complete(self, request: Request) -> Response:
        """Answer ``/v1/completions``."""
        from starlette.requests import ClientDisconnect
        from starlette.responses import JSONResponse, StreamingResponse

        try:
            asked = read_request(await _read_body(request))
            if asked.model not in ("", self._model_name):
                return JSONResponse({"error": _error(self._unknown_model(asked.model))}, status_code=404)
            prompts, generation = asked.prompts(), asked.generation()
            answers = await self._queue(prompts, generation)
        except Error as error:
            return JSONResponse({"error": _error(error)}, status_code=400)
        except ClientDisconnect:
            return _tell_nobody()
        if asked.stream:
            return StreamingResponse(self._events(answers, asked, generation), media_type="text/event-stream")
        collected = asyncio.ensure_future(_collect(answers))
        gone = asyncio.ensure_future(_wait_until_gone(request))
        await asyncio.wait({collected, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not collected.done():
            collected.cancel()
            for answer in answers:
                answer.give_up()
            return _tell_nobody()
        choices, usage, fault = _choices(collected.result(), generation)
        if fault is not None:
            return JSONResponse({"error": _error(fault)}, status_code=500)
        return JSONResponse({**self._head(), "choices": choices, "usage": usage})

    def _unknown_model(self, name: str) -> UsageError:
        return UsageError(
            f"the model `{name[:100]}` is not served here",
            hint=f"leave `model` out, or give its name, `{self._model_name}`",
        )

    async def _queue(self, prompts: list[str | list[int]], generation: Generation) -> list[Answers]:
        """Let all prompts join the queue, or none."""
        answers = [Answers(self._driver, self._tallies, prompt, generation) for prompt in prompts]
        try:
            for answer in answers:
                await answer.wait_until_queued()
        except Error:
            for answer in answers:
                answer.give_up()
            raise
        return answers

    async def _events(
        self, answers: list[Answers], asked: CompletionRequest, generation: Generation
    ) -> AsyncIterator[str]:
        head = self._head()
        finished = False
        try:
            async for number, token in _merge(answers):
                choice = {
                    "index": number * generation.samples + token.sample,
                    "text": token.text,
                    "token_ids": [] if token.token_id is None else [token.token_id],
                    "logprobs": None,
                    "finish_reason": _FINISH[token.ending] if token.ending is not None else None,
                }
                fault = {} if token.error is None else {"error": _error(token.error)}
                yield f"data: {json.dumps({**head, 'choices': [choice], **fault})}\n\n"
            if (asked.stream_options or {}).get("include_usage"):
                usage = _usage([answer.usage() for answer in answers])
                yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
            finished = True
        finally:
            if not finished:
                for answer in answers:
                    answer.give_up()

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model_name,
        }

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Answer what is not here, and methods that an endpoint does not have."""
        from starlette.responses import JSONResponse

        status = getattr(error, "status_code", 500)
        told = UsageError(
            f"{request.method} {request.url.path[:100]} is not served here",
            hint="there are POST /v1/completions, and GET /v1/models, /health, /metrics and /ledger",
        )
        return JSONResponse({"error": _error(told)}, status_code=status, headers=getattr(error, "headers", None))

    async def fail(self, _request: Request, error: Exception) -> Response:
        """Answer when the engine has stopped."""
        from starlette.responses import JSONResponse

        assert isinstance(error, Error)
        return JSONResponse({"error": _error(error)}, status_code=503)

    async def models(self, _request: Request) -> Response:
        """Answer ``/v1/models``."""
        from starlette.responses import JSONResponse

        model = {
            "id": self._model_name,
            "object": "model",
            "created": self._begun,
            "owned_by": "kvledger",
            "max_model_len": self._engine.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        """Answer ``/health``: the engine's thread answers, or it does not."""
        from starlette.responses import Response

        await asyncio.wrap_future(self._driver.call(lambda _engine: None))
        return Response(status_code=200)

    async def metrics(self, _request: Request) -> Response:
        """Answer ``/metrics``."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from starlette.responses import Response

        instant = await asyncio.wrap_future(
            self._driver.call(lambda engine: take_instant(engine, self._tallies, model_name=self._model_name))
        )
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Exposition(instant))
        ProcessCollector(registry=registry)
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def ledger(self, _request: Request) -> Response:
        """Answer ``/ledger``: the balance sheet, from the block tables themselves (bytes)."""
        from starlette.responses import JSONResponse

        ledger = await asyncio.wrap_future(self._driver.call(lambda engine: engine.ledger()))
        return JSONResponse({"accuracy": "measured", **asdict(ledger)})


def _tell_nobody() -> Response:
    """Return what a client that has gone would have been told."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": {"message": "the client has gone", "type": "abort"}}, status_code=499)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise UsageError(f"the body is longer than {MOST_BYTES} bytes", hint="send a shorter prompt")
    return bytes(body)


async def _wait_until_gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.1)


async def _collect(answers: list[Answers]) -> list[tuple[Answers, list[Token]]]:
    return [(answer, [token async for token in answer]) for answer in answers]


async def _merge(answers: list[Answers]) -> AsyncIterator[tuple[int, Token]]:
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


def _choices(
    found: list[tuple[Answers, list[Token]]], generation: Generation
) -> tuple[list[dict[str, Any]], dict[str, int], Error | None]:
    choices, usages = [], []
    for number, (answer, tokens) in enumerate(found):
        for sample in range(generation.samples):
            own = [token for token in tokens if token.sample == sample]
            ending = next((token.ending for token in own if token.ending is not None), Ending.ERROR)
            fault = next((token.error for token in own if token.error is not None), None)
            if fault is not None:
                return [], {}, fault
            choices.append(
                {
                    "index": number * generation.samples + sample,
                    "text": "".join(token.text for token in own),
                    "token_ids": [token.token_id for token in own if token.token_id is not None],
                    "logprobs": None,
                    "finish_reason": _FINISH[ending],
                }
            )
        usages.append(answer.usage())
    return choices, _usage(usages), None


def _usage(usages: list[tuple[int, int]]) -> dict[str, int]:
    prompt, completion = (sum(column) for column in zip(*usages, strict=True))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _error(error: Error) -> dict[str, Any]:
    kind = "invalid_request_error" if isinstance(error, UsageError | CapacityError) else "server_error"
    hint = f"; {error.hint}" if error.hint else ""
    return {"message": f"{error.message}{hint}", "type": kind, "code": error.code}
