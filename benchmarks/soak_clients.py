"""Clients of a server that complete, stream, leave early and send what cannot be served; see `benchmarks.soak`."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

VOCABULARY = 97
SHARED = ([7] * 40, list(range(20, 60)))
PATIENCE_SECONDS = 300
"""A client that waits longer counts its request as lost."""


@dataclass
class Report:
    """What came of the traffic; memory is sampled every ten seconds: seconds since the begin, and bytes."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, outcome: str) -> None:
        with self.lock:
            self.outcomes[outcome] += 1

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    def fit_growth(self, *, after: float) -> float:
        """Return the slope of resident memory from ``after`` seconds on, by least squares (bytes an hour)."""
        points = [(at / 3600, held) for at, held in self.memory if at >= after]
        if len(points) < 3:
            return 0.0
        mean_at = sum(at for at, _ in points) / len(points)
        mean_held = sum(held for _, held in points) / len(points)
        above = sum((at - mean_at) * (held - mean_held) for at, held in points)
        return above / sum((at - mean_at) ** 2 for at, _ in points)


def draw_prompt(draw: random.Random) -> list[int]:
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 50))]
    return draw.choice(SHARED)[: draw.randint(1, 40)] + prompt if draw.random() < 0.5 else prompt


WRONG_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[1, 2]",
    b"\xff\xfe\x00",
    b'{"prompt": []}',
    b'{"prompt": [97]}',
    b'{"prompt": [-1]}',
    b'{"prompt": [1, "a"]}',
    b'{"prompt": "no tokenizer"}',
    b'{"prompt": [5], "max_tokens": -3}',
    b'{"prompt": [5], "max_tokens": "many"}',
    b'{"prompt": [5], "n": 0}',
    b'{"prompt": [5], "n": 4000}',
    b'{"prompt": [5], "temperature": 1e400}',
    b'{"prompt": [5], "logit_bias": {"7": 2}}',
    b'{"prompt": [5], "stop": "x"}',
    b'{"prompt": [5], "stream": "yes"}',
    json.dumps({"prompt": [5] * 5000}).encode(),
    json.dumps({"prompt": [[5]] * 300}).encode(),
    b"[" * 100_000,
)


class Client:
    """One client of the server after the other, on a thread of its own."""

    def __init__(self, port: int, report: Report, draw: random.Random) -> None:
        self.port, self.report, self.draw = port, report, draw

    def run(self, until: float) -> None:
        kinds = (self.complete, self.stream, self.leave, self.leave_stream, self.send_half, self.send_wrong, self.look)
        while time.monotonic() < until:
            kind = self.draw.choices(kinds, weights=(10, 5, 2, 3, 1, 4, 1))[0]
            try:
                kind()
            except Exception as error:  # whatever a client sees that it should not is a fault of the server
                self.report.fault(f"served: {kind.__name__}: {type(error).__name__}: {error}")
            time.sleep(self.draw.choice([0, 0, 0.01, 0.05]))
            if self.draw.random() < 0.002:
                time.sleep(2)

    def draw_body(self, **more: object) -> bytes:
        prompt = draw_prompt(self.draw)
        body = {
            "prompt": [prompt, draw_prompt(self.draw)] if self.draw.random() < 0.1 else prompt,
            "max_tokens": self.draw.randint(1, 40),
            "temperature": self.draw.choice([0, 1]),
            "top_p": self.draw.choice([1, 0.9]),
            "seed": self.draw.randrange(1000),
            "n": self.draw.choice([1] * 8 + [2, 4]),
            "stop_token_ids": [self.draw.randrange(VOCABULARY)],
            **more,
        }
        return json.dumps(body).encode()

    @contextmanager
    def ask(self, body: bytes) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("POST", "/v1/completions", body)
            yield connection.getresponse()
        finally:
            connection.close()

    def complete(self) -> None:
        with self.ask(self.draw_body()) as response:
            answer = json.loads(response.read())
        if response.status == 200 and all(c["finish_reason"] in ("stop", "length") for c in answer["choices"]):
            self.report.count("served: answered")
        elif response.status == 500 and "the model failed" in answer["error"]["message"]:
            self.report.count("served: ended with the model's error")
        else:
            self.report.fault(f"served: {response.status} {answer}")

    def stream(self) -> None:
        with self.ask(self.draw_body(stream=True)) as response:
            events = [line[6:].strip() for line in response if line.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            self.report.fault(f"served: a stream ends with {events[-1:]}")
        elif b"the model failed" in b"".join(events):
            self.report.count("served: ended with the model's error")
        elif b'"error"' in b"".join(events):
            self.report.fault("served: a stream ends with an error that has no reason")
        else:
            self.report.count("served: streamed to the end")

    def leave(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            body = self.draw_body(max_tokens=60, ignore_eos=True, stop_token_ids=[])
            connection.sendall(_head(len(body)) + body)
            time.sleep(self.draw.random() * 0.1)
        self.report.count("served: left before the answer")

    def leave_stream(self) -> None:
        body = self.draw_body(stream=True, max_tokens=60, ignore_eos=True, stop_token_ids=[])
        with self.ask(body) as response:
            for _ in range(self.draw.randint(1, 12)):
                response.readline()
        self.report.count("served: left within the stream")

    def send_half(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as connection:
            body = self.draw_body()
            connection.sendall(_head(len(body)) + body[: len(body) // 2])
        self.report.count("served: left within the request")

    def send_wrong(self) -> None:
        huge = self.draw.random() < 0.01
        body = b'{"prompt": "' + b"x" * (9 * 2**20) + b'"}' if huge else self.draw.choice(WRONG_BODIES)
        with self.ask(body) as response:
            answer = json.loads(response.read())
        if 400 <= response.status < 500 and answer["error"]["message"]:
            self.report.count("served: refused with a reason")
        else:
            self.report.fault(f"served: {response.status} {answer} to {body[:60]!r}")

    def look(self) -> None:
        path = self.draw.choice(["/metrics", "/ledger", "/health", "/v1/models"])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            self.report.fault(f"served: {path} {response.status}")
        if path == "/ledger":
            sheet = json.loads(text)
            accounts = ("used", "cached", "reserved", "internal", "external", "free", "unattributed")
            if sum(sheet[name] for name in accounts) != sheet["capacity"]:
                self.report.fault(f"served: the books do not balance: {sheet}")
        self.report.count("served: looked at")


def _head(length: int) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
