"""Live ``transformers serve`` on loopback, with kvledger's ``/metrics``, against tokens that the client counted itself.

Needs ``KVLEDGER_TRANSFORMERS_PYTHON``: a Python with ``transformers[serving]`` 5.24, torch and prometheus-client.
"""

import asyncio
import json
import os
import random
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvledger.cli import measure as measure_module
from kvledger.measure.pool_meter import PoolMeter
from kvledger.sources.endpoints import Endpoint
from kvledger.sources.http import Access, parse_address
from tests.live.tiny_transformers import HEAD_SIZE, KV_HEADS, LAYERS, WORDS

pytestmark = pytest.mark.live

BLOCK, BLOCKS, STEP = 16, 256, 2
"""A step under way has its token in the pool before the client has received it, and one may be on its way."""
TOKEN_BYTES = LAYERS * KV_HEADS * HEAD_SIZE * 2 * 4
SOURCE = Path(__file__).parents[2] / "src"
PAGED = ["--continuous-batching", "--cb-block-size", str(BLOCK), "--cb-num-blocks", str(BLOCKS)]


@contextmanager
def serving(folder, *start):
    """Make a model, start a server of it on this port, and end it; yield port and model."""
    python = os.environ.get("KVLEDGER_TRANSFORMERS_PYTHON")
    if not python:
        pytest.skip("needs transformers[serving]: set KVLEDGER_TRANSFORMERS_PYTHON to a Python that has it")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "PYTHONPATH": str(SOURCE)}
    model = folder / "tiny"
    maker = Path(__file__).with_name("tiny_transformers.py")
    subprocess.run([python, maker, model], env=environment, check=True, capture_output=True, timeout=300)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as stream:
        command = [python, *start, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, cwd=folder)
        try:
            deadline = time.time() + 300
            while b"startup complete" not in log.read_bytes():
                assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
                assert time.time() < deadline, log.read_text("utf-8", "replace")[-2000:]
                time.sleep(0.2)
            yield port, str(model)
        finally:
            process.terminate()
            process.wait(60)


def measured_server(folder, *flags):
    return serving(folder, "-m", "kvledger.live.transformers_serve", *flags)


@dataclass
class Request:
    """What the client knows of one request."""

    words: list
    received: int = 0
    is_open: bool = True

    def tokens(self):
        """Tokens in the pool: the one sampled last is stored when the next step computes it."""
        return len(self.words) + max(0, self.received - 1) if self.is_open and self.received else 0


async def chat(port, model, request, output_tokens):
    """Send one request and count the words of its stream, each of them one token."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": " ".join(request.words)}],
        "max_tokens": output_tokens,
        "stream": True,
    }
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        + f"Content-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    await writer.drain()
    while line := await reader.readline():
        assert not line.startswith(b"HTTP/1.1") or b" 200 " in line, line
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            request.received += event["choices"][0]["delta"].get("content", "").count("w")
            if usage := event.get("usage"):
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(request.words), output_tokens)
    request.is_open = False
    writer.close()


def address(port):
    return Endpoint(address=parse_address(f"http://127.0.0.1:{port}", default_path="/metrics"), access=Access())


async def drive(port, model, work):
    """Run these requests together; return samples of the server with what the client knew before and after each."""
    generator = random.Random(3)
    requests = [
        (Request(generator.choices([f"w{i}" for i in range(WORDS)], k=words)), tokens) for words, tokens in work
    ]
    tasks = [asyncio.create_task(chat(port, model, request, tokens)) for request, tokens in requests]
    endpoint, out = address(port), []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.01)
        before, began = [one.tokens() for one, _ in requests], time.time()
        answer = await asyncio.to_thread(endpoint.take)
        out.append((began, answer.snapshots, before, [one.tokens() for one, _ in requests]))
    await asyncio.gather(*tasks)
    await asyncio.sleep(0.3)
    return requests, [*out, (time.time(), (await asyncio.to_thread(endpoint.take)).snapshots, [0], [0])]


def test_the_pool_is_what_the_client_counted(tmp_path):
    work = [(300, 80), (47, 120), (130, 60)]
    with measured_server(tmp_path, *PAGED) as (port, model):
        early = CliRunner().invoke(measure_module.command, [f"http://127.0.0.1:{port}"])
        requests, samples = asyncio.run(drive(port, model, work))
        found = CliRunner().invoke(measure_module.command, [f"http://127.0.0.1:{port}", "--json"])
    assert "the pool is made at the first request" in early.output
    meter, compared = PoolMeter(), 0
    for seconds, snapshots, before, after in samples:
        for moment in meter.take(snapshots, seconds=seconds):
            if moment.sheet is None:
                assert moment.problem == "the pool is made at the first request"
                continue
            ledger = moment.sheet.ledger.check()
            assert ledger.capacity == (BLOCKS + 2) * BLOCK * TOKEN_BYTES
            if moment.running == len(work) and all(before) and all(after):
                tokens = ledger.used / TOKEN_BYTES
                assert sum(before) <= tokens <= sum(after) + STEP * len(requests)
                assert moment.snapshot.live_tokens.value == tokens
                assert ledger.internal < len(requests) * BLOCK * TOKEN_BYTES
                compared += 1
    assert compared >= 10
    kept = sum((words + tokens - 1) // BLOCK for words, tokens in work)
    ledger = json.loads(found.stdout)["sources"][0]["pools"][0]["last"]["ledger"]["accounts_bytes"]
    assert ledger["cached"] == kept * BLOCK * TOKEN_BYTES
    assert (ledger["used"], ledger["internal"]) == (0, 0)
    assert ledger["unattributed"] == 2 * BLOCK * TOKEN_BYTES


def test_without_continuous_batching_there_is_no_pool(tmp_path):
    with measured_server(tmp_path) as (port, _):
        found = CliRunner().invoke(measure_module.command, [f"http://127.0.0.1:{port}"])
    assert "a cache of its own, and there is no pool" in found.output


def test_the_server_as_transformers_starts_it_tells_nothing(tmp_path):
    with serving(tmp_path, "-m", "transformers.cli.transformers", "serve", *PAGED) as (port, _):
        found = CliRunner().invoke(measure_module.command, [f"http://127.0.0.1:{port}"])
    assert "tells nothing of its cache" in str(found.exception)
