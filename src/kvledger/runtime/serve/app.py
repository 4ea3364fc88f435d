"""The endpoints: completions, chats, models, health, metrics, and the ledger itself."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import kvledger
from kvledger.errors import Error, MissingExtra, UsageError
from kvledger.runtime.driver import Driver
from kvledger.runtime.engine import Engine
from kvledger.runtime.serve.answering import collect, events, whole
from kvledger.runtime.serve.exposition import Exposition, take_instant
from kvledger.runtime.serve.refusing import refuse, tell_nobody, unknown_model
from kvledger.runtime.serve.requests import MOST_BYTES, Asked, ChatRequest, CompletionRequest, read_request
from kvledger.runtime.serve.shapes import ChatShape, CompletionShape, Shape
from kvledger.runtime.serve.stream import Answers
from kvledger.runtime.serve.tallies import Tallies

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["make_app"]


def make_app(engine: Engine, driver: Driver, *, model_name: str, tallies: Tallies | None = None) -> Starlette:
    """Return the application over an engine that ``driver`` steps.

    Raises:
        MissingExtra: Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra.for_package("starlette", extra="serve") from None
    server = _Server(engine, driver, model_name, tallies or Tallies())
    return Starlette(
        routes=[
            Route("/v1/completions", server.complete, methods=["POST"]),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/v1/models/{name:path}", server.model),
            Route("/health", server.health),
            Route("/version", server.version),
            Route("/metrics", server.metrics),
            Route("/ledger", server.ledger),
        ],
        exception_handlers={HTTPException: server.refuse, ClientDisconnect: server.gone, Error: server.fail},
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
        asked = read_request(await _read_body(request), CompletionRequest)
        answers = await self._queue(asked)
        shape = CompletionShape(asked, self._engine.tokenizer, model=self._model_name)
        return await _respond(request, asked, answers, shape)

    async def chat(self, request: Request) -> Response:
        """Answer ``/v1/chat/completions``."""
        asked = read_request(await _read_body(request), ChatRequest)
        answers = await self._queue(asked)
        return await _respond(request, asked, answers, ChatShape(asked, self._engine.tokenizer, model=self._model_name))

    async def _queue(self, asked: Asked) -> list[Answers]:
        """Let all prompts join the queue, or none."""
        if asked.model not in ("", self._model_name):
            raise unknown_model(asked.model, self._model_name)
        generation = asked.generation()
        answers = [Answers(self._driver, self._tallies, prompt, generation) for prompt in asked.prompts()]
        try:
            for answer in answers:
                await answer.wait_until_queued()
        except BaseException:
            for answer in answers:
                answer.give_up()
            raise
        return answers

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Answer what is not here, and methods that an endpoint does not have."""
        told = UsageError(
            f"{request.method} {request.url.path[:100]} is not served here",
            hint="there are POST /v1/completions and /v1/chat/completions, and GET /v1/models, /health, /version, "
            "/metrics and /ledger",
        )
        return refuse(told, status=getattr(error, "status_code", 500), headers=getattr(error, "headers", None))

    async def fail(self, _request: Request, error: Exception) -> Response:
        """Answer what cannot be served, and that the engine has stopped."""
        assert isinstance(error, Error)
        return refuse(error)

    async def gone(self, _request: Request, _error: Exception) -> Response:
        """Answer a client that has gone within its request."""
        return tell_nobody()

    async def models(self, _request: Request) -> Response:
        """Answer ``/v1/models``."""
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Answer ``/v1/models/NAME``."""
        from starlette.responses import JSONResponse

        name = request.path_params["name"]
        if name != self._model_name:
            raise unknown_model(name, self._model_name)
        return JSONResponse(self._model())

    def _model(self) -> dict[str, str | int]:
        return {
            "id": self._model_name,
            "object": "model",
            "created": self._begun,
            "owned_by": "kvledger",
            "max_model_len": self._engine.max_model_len,
        }

    async def health(self, _request: Request) -> Response:
        """Answer ``/health``: the engine's thread answers, or it does not."""
        from starlette.responses import Response

        await asyncio.wrap_future(self._driver.call(lambda _engine: None))
        return Response(status_code=200)

    async def version(self, _request: Request) -> Response:
        """Answer ``/version``."""
        from starlette.responses import JSONResponse

        return JSONResponse({"version": kvledger.__version__})

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


async def _respond(request: Request, asked: Asked, answers: list[Answers], shape: Shape) -> Response:
    """Answer when all answers have ended, or token by token; a client that goes away frees its blocks."""
    from starlette.responses import JSONResponse, StreamingResponse

    if asked.stream:
        return StreamingResponse(events(answers, asked, shape), media_type="text/event-stream")
    collected = asyncio.ensure_future(collect(answers))
    gone = asyncio.ensure_future(_wait_until_gone(request))
    await asyncio.wait({collected, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not collected.done():
        collected.cancel()
        for answer in answers:
            answer.give_up()
        return tell_nobody()
    try:
        return JSONResponse(whole(collected.result(), shape, asked.n))
    except Error as fault:
        return refuse(fault, status=500)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise UsageError(f"the body is longer than {MOST_BYTES} bytes", hint="send a shorter prompt")
    return bytes(body)


async def _wait_until_gone(request: Request) -> None:
    """Wait until the client hangs up: after the body, nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
