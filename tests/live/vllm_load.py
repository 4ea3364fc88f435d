"""A client that loads a vLLM server and counts every token itself: the truth the laws are compared with.

One event loop sends all requests and all scrapes, so what the client knows at an instant is one consistent count.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

VOCABULARY = 500
NOTICED_SECONDS = 3.0
"""A server notices by then that a client has gone, also on a loaded machine."""


@dataclass
class Request:
    """One request as the client sees it."""

    prompt: list[int]
    output_tokens: int
    abort_after: int | None = None
    received: int = 0


@dataclass
class Client:
    """Sends requests, and knows at any instant which of them are open and how long they are."""

    host: str
    port: int
    model: str
    live: dict[int, Request] = field(default_factory=dict)
    sent: int = 0
    finished: int = 0
    aborted: int = 0
    gone: list[tuple[float, int]] = field(default_factory=list)
    """When a request left this client, and how long it was: the server may notice later."""

    def lengths(self):
        """Return prompt plus received tokens of every open request that has received one, by request."""
        return {key: len(r.prompt) + r.received for key, r in self.live.items() if r.received}

    def pending(self):
        """Return the prompt lengths of open requests that have received nothing yet, by request."""
        return {key: len(r.prompt) for key, r in self.live.items() if not r.received}

    async def run(self, request: Request):
        """Send one request, read its stream to the end or leave it after ``abort_after`` tokens."""
        body = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "detokenize": False,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        key, self.sent = self.sent, self.sent + 1
        self.live[key] = request
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=2**22)
        try:
            writer.write(_post("/v1/completions", body))
            await writer.drain()
            if request.abort_after == 0:
                await asyncio.sleep(random.random() * 0.1)
                self.aborted += 1
                return
            while line := await reader.readline():
                if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                    raise RuntimeError(line)
                if not line.startswith(b"data: {"):
                    if line.startswith(b"data: [DONE]"):
                        break
                    continue
                usage = json.loads(line[6:]).get("usage")
                if usage:
                    request.received = usage["completion_tokens"]
                if request.received >= request.output_tokens:
                    self.live.pop(key, None)
                if request.abort_after is not None and request.received >= request.abort_after:
                    self.aborted += 1
                    return
            self.finished += 1
        finally:
            self.live.pop(key, None)
            self.gone.append((time.time(), len(request.prompt) + request.received))
            writer.close()

    async def get(self, path: str) -> str:
        """Return the body of one GET."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=2**22)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()


def _post(path, body):
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + payload


def prompt_of(generator, tokens, shared=()):
    """Return ``tokens`` random token ids that start with ``shared``."""
    return [*shared, *(generator.randrange(3, VOCABULARY) for _ in range(tokens - len(shared)))]


async def scrape(client: Client, phase: str):
    """Scrape once; return the text with what the client knew just before and just after."""
    before, aborted = (client.lengths(), client.pending()), client.aborted
    began = time.time()
    text = await client.get("/metrics")
    return {
        "phase": phase,
        "seconds": began,
        "text": text,
        "before": before[0],
        "after": client.lengths(),
        "pending_before": before[1],
        "pending_after": client.pending(),
        "aborted_before": aborted,
        "aborted_after": client.aborted,
        "gone": [length for left, length in client.gone if left > began - NOTICED_SECONDS],
    }


async def drive(client: Client, requests, *, gap_seconds, samples, every_seconds, phase, drain=True):
    """Send ``requests`` with random gaps, scrape meanwhile, and wait for the end when ``drain``.

    ``samples`` are the fewest scrapes; they go on while a request is open.
    """
    generator = random.Random(phase)
    out, tasks = [], []

    async def send():
        for request in requests:
            tasks.append(asyncio.create_task(client.run(request)))
            await asyncio.sleep(generator.expovariate(1 / gap_seconds) if gap_seconds else 0)

    sender = asyncio.create_task(send())
    while len(out) < samples or (len(out) < 10 * samples and not (sender.done() and all(t.done() for t in tasks))):
        await asyncio.sleep(every_seconds)
        out.append(await scrape(client, phase))
    await sender
    if drain:
        await asyncio.gather(*tasks)
        for _ in range(50):
            await asyncio.sleep(0.2)
            last = await scrape(client, phase + "/after")
            if idle(last["text"]):
                break
        out.append(last)
    return out


def idle(text):
    """Tell whether nothing runs or waits."""
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
    ]
    return bool(values) and not any(values)
