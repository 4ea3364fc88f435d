"""A server on loopback over a small model, and clients of it."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

import urllib3

from kvledger.runtime import Engine
from kvledger.runtime.driver import Driver
from kvledger.runtime.serve import make_app

from .small_models import small_model

TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
POOL = urllib3.PoolManager(retries=False)


@contextmanager
def serving(*, blocks=64, options=None, tallies=None, tokenizer=None):
    """Start a server on loopback; yields its address, its engine and its driver."""
    import uvicorn

    memory = blocks * 4 * TOKEN_BYTES
    engine = Engine(small_model("llama"), memory, block_size=4, options=options, tokenizer=tokenizer)
    with socket.socket() as listening, Driver(engine) as driver:
        listening.bind(("127.0.0.1", 0))
        app = make_app(engine, driver, model_name="small", tallies=tallies)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", engine, driver
        finally:
            server.should_exit = True
            thread.join()
    engine.close()


def ask(address, path, **body):
    """Return the status and the body of an answer, greedy unless asked otherwise."""
    answer = POOL.request("POST", f"{address}{path}", body=json.dumps({"temperature": 0, **body}))
    return answer.status, json.loads(answer.data)


def complete(address, **body):
    """Return the status and the body of a completion."""
    return ask(address, "/v1/completions", **body)


def stream(address, path, **body):
    """Return the events of a stream; its last line says that it is done."""
    body = json.dumps({"temperature": 0, "stream": True, **body})
    answer = POOL.request("POST", f"{address}{path}", body=body)
    lines = [line.removeprefix("data: ") for line in answer.data.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]
