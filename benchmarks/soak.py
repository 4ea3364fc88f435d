"""Random traffic for as long as one likes, and what is left of it: ``python -m benchmarks.soak --minutes 60``.

Two small random models are served at the same time. One sits behind the HTTP server, with a prefix cache, forks and
preemption by recompute; clients on eight threads complete, stream, leave early, and send what cannot be served. The
other, with sliding windows and preemption by swap, is stepped by hand, with cancellations and a model that fails now
and then. Pool, tables and tensors are recounted after every step of both. At the end every request must have ended
with a result or a clear error, every block must be free, and resident memory must not have grown.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

from benchmarks.soak_clients import PATIENCE_SECONDS, VOCABULARY, Client, Report, draw_prompt
from kvledger.errors import Error
from kvledger.runtime import Driver, Ending, Engine, Generation, Options, Preemption
from kvledger.runtime.serve import make_app

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LONGEST = 110
CLIENTS = 8


class CheckedEngine(Engine):
    """An engine that recounts itself after every step, and whose model fails now and then."""

    steps = 0
    checked_cancels = 0

    def fail_sometimes(self, draw: random.Random, chance: float) -> None:
        run = self.runner.run

        def run_or_fail(schedule):
            if draw.random() < chance:
                raise RuntimeError("out of memory, say")
            return run(schedule)

        self.runner.run = run_or_fail  # type: ignore[method-assign]

    def step(self):
        done = super().step()
        self.check()
        self.steps += 1
        return done

    def cancel(self, request):
        ended = super().cancel(request)
        self.check()
        self.checked_cancels += 1
        return ended


def make_model(config):
    model = AutoModelForCausalLM.from_config(config).eval()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return model


def make_engines(seed: int) -> tuple[CheckedEngine, CheckedEngine]:
    """Return the engine that is served, and the one that is stepped by hand; both hold few requests."""
    limits = {"max_model_len": LONGEST, "max_num_seqs": 12, "max_num_batched_tokens": 48}
    served = CheckedEngine(
        make_model(LlamaConfig(**SIZES, num_hidden_layers=2)),
        60_000,
        block_size=4,
        options=Options(**limits, watermark_ratio=0.02),
    )
    windows = Gemma3TextConfig(**SIZES, num_hidden_layers=7, head_dim=8, sliding_window=8, sliding_window_pattern=3)
    swapping = Options(**limits, preemption=Preemption.SWAP, swap_bytes=60_000)
    stepped = CheckedEngine(make_model(windows), 160_000, block_size=4, options=swapping)
    served.fail_sometimes(random.Random(seed), 0.001)
    stepped.fail_sometimes(random.Random(seed + 1), 0.003)
    return served, stepped


class Stepping:
    """The engine that is stepped by hand, and the requests that are open in it."""

    def __init__(self, engine: CheckedEngine, report: Report, draw: random.Random) -> None:
        self.engine, self.report, self.draw = engine, report, draw
        self.open: dict[Any, int] = {}

    def run(self, until: float) -> None:
        while time.monotonic() < until or not self.engine.is_idle:
            if time.monotonic() < until:
                for _ in range(self.draw.choice([0, 0, 0, 1, 1, 2, 6])):
                    self.arrive()
                if self.draw.random() < 0.001:
                    self.drain()
            if self.open and self.draw.random() < 0.05:
                self.collect(self.engine.cancel(self.draw.choice(list(self.open))))
            self.collect(self.engine.step().tokens)

    def drain(self) -> None:
        """Let everything end, and wait for a moment."""
        while not self.engine.is_idle:
            self.collect(self.engine.step().tokens)
        time.sleep(self.draw.random())

    def arrive(self) -> None:
        if len(self.open) > 60:  # a longer queue only makes its last requests wait
            return
        wrong = self.draw.random() < 0.04
        prompt = self.draw.choice([[], [VOCABULARY], [-5], [1] * 500, "no tokenizer"]) if wrong else None
        generation = Generation(
            max_tokens=self.draw.randint(1, 40),
            temperature=self.draw.choice([0.0, 1.0]),
            top_p=self.draw.choice([1.0, 0.9]),
            seed=self.draw.randrange(1000),
            samples=self.draw.choice([1] * 8 + [2, 4]),
            stop_token_ids=(self.draw.randrange(VOCABULARY),),
            ignore_eos=True,
        )
        self.report.count("stepped: submitted")
        try:
            number = self.engine.submit(draw_prompt(self.draw) if prompt is None else prompt, generation)
        except Error as error:
            if not (wrong and error.message):
                self.report.fault(f"stepped: refused with `{error}`")
            self.report.count("stepped: refused with a reason")
        else:
            self.open[number] = generation.samples

    def collect(self, tokens) -> None:
        for number in {token.request for token in tokens if token.ending}:
            result = self.engine.take(number)
            if result is None:
                continue
            samples = self.open.pop(number)
            if len(result.answers) != samples:
                self.report.fault(f"stepped: {len(result.answers)} of {samples} answers")
            for answer in result.answers:
                if (answer.ending is Ending.ERROR) != (answer.error is not None):
                    self.report.fault(f"stepped: `{answer.ending}` with the error {answer.error}")
                self.report.count(f"stepped: answer, {answer.ending}")
            self.report.count("stepped: request ended")


@contextmanager
def serving(engine: Engine) -> Iterator[tuple[int, Driver]]:
    """Serve an engine on loopback; yields the port."""
    import uvicorn

    with socket.socket() as listening, Driver(engine) as driver:
        listening.bind(("127.0.0.1", 0))
        app = make_app(engine, driver, model_name="small")
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listening.getsockname()[1], driver
        finally:
            server.should_exit = True
            thread.join()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watch_memory(report: Report, begun: float, stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        report.memory.append((time.monotonic() - begun, resident_bytes()))


def find_remains(name: str, engine: CheckedEngine) -> Iterator[str]:
    """Say what an idle engine still holds that it should not; its prefix cache is given up."""
    engine.check()
    if not engine.is_idle or engine._requests:
        yield f"{name}: {len(engine._requests)} requests are left"
    if engine.ledger().held or engine.pages.swapped_bytes:
        yield f"{name}: {engine.ledger().held} bytes of blocks and {engine.pages.swapped_bytes} swapped are left"
    engine.scheduler.tables.drop_cached()
    engine.check()
    if engine.ledger().free != engine.pages.nbytes:
        yield f"{name}: {engine.ledger().free} of {engine.pages.nbytes} bytes are free"


def run(minutes: float, seed: int) -> tuple[Report, dict[str, Any]]:
    """Let traffic come for so many minutes, and return what came of it, and figures about both engines."""
    report, stop = Report(), threading.Event()
    served, stepped = make_engines(seed)
    threads_before = threading.active_count()
    begun = time.monotonic()
    until = begun + 60 * minutes
    watching = threading.Thread(target=watch_memory, args=(report, begun, stop, min(10, minutes * 2)))
    watching.start()
    stepping = Stepping(stepped, report, random.Random(seed))
    with serving(served) as (port, driver):
        clients = [Client(port, report, random.Random(seed + 10 + i)) for i in range(CLIENTS)]
        threads = [threading.Thread(target=client.run, args=(until,)) for client in clients]
        for thread in threads:
            thread.start()
        stepping.run(until)
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not driver.call(lambda engine: engine.is_idle).result() and time.monotonic() < deadline:
            time.sleep(0.1)
        report.faults += driver.call(lambda engine: list(find_remains("served", engine))).result()
    stop.set()
    watching.join()
    report.faults += find_remains("stepped", stepped)
    if stepping.open:
        report.fault(f"stepped: {len(stepping.open)} requests are lost")
    served.close()
    stepped.close()
    gc.collect()
    if threading.active_count() > threads_before:
        report.fault(f"{threading.active_count() - threads_before} threads are left")
    figures = {
        name: {"steps_checked": engine.steps, "cancels_checked": engine.checked_cancels, **asdict(engine.tally)}
        for name, engine in (("served", served), ("stepped", stepped))
    }
    return report, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.process_time()
    report, figures = run(arguments.minutes, arguments.seed)
    settled = arguments.minutes * 60 / 6
    held = [size for at, size in report.memory if at >= settled]
    print(
        json.dumps(
            {
                "minutes": arguments.minutes,
                "cpu_seconds": round(time.process_time() - begun),
                "outcomes": dict(sorted(report.outcomes.items())),
                "engines": figures,
                "resident_bytes": {
                    "after_a_sixth": held[0],
                    "least": min(held),
                    "most": max(held),
                    "last": held[-1],
                    "slope_bytes_an_hour": round(report.fit_growth(after=settled)),
                },
                "memory": [(round(at), size) for at, size in report.memory],
                "faults": report.faults[:20],
            },
            indent=1,
        )
    )
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
