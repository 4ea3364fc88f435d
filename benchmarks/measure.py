"""What following a server costs: a scrape, an hour of them, a watching process, and the ledger inside the server."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from tests.measure.recorded import rows, without_end

from benchmarks.running import Benchmark
from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.live.view import WatchModel
from kvledger.live.vllm_state import read_pool, read_state
from kvledger.measure.inside import draw_inside
from kvledger.measure.meter import Meter
from kvledger.measure.recording import RecordedSample
from kvledger.sources.recordings import Recorder

HOUR = 36_000
"""Ten samples a second."""


def whole(text: str) -> str:
    """Return a recorded scrape with as much besides as a server prints: 64 KB, most of it buckets."""
    lines = [text]
    at = size = 0
    while size < 64_000 - len(text):
        lines.append(
            f'vllm:request_queue_time_seconds_bucket{{engine="0",le="{at / 7:.3f}",model_name="mid"}} {at}.0\n'
        )
        lines.append(f'vllm:request_inference_time_seconds_bucket{{engine="0",le="{at}.0",model_name="mid"}} {at}.0\n')
        size += len(lines[-1]) + len(lines[-2])
        at += 1
    return "".join(lines)


def one_scrape() -> float:
    """Seconds of processor time from a text of 64 KB to a ledger."""
    text, meter = whole(rows("async")[60]["text"]), Meter()
    assert 62_000 < len(text) < 66_000
    meter.take(read_vllm_metrics(text), seconds=0.0)
    began = time.process_time()
    for _ in range(20):
        (reading,) = meter.take(read_vllm_metrics(text), seconds=0.0)
        assert reading.sheet is not None
    return (time.process_time() - began) / 20


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def hour() -> float:
    """Megabytes by which a process grows that measures, shows and records for an hour, ten times a second."""
    code = "from benchmarks.measure import grow; print(grow())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def grow() -> float:
    source, meter, view, begin = without_end(), Meter(), WatchModel(), 0.0
    with TemporaryDirectory() as folder, Recorder(str(Path(folder) / "r")) as recorder:
        for number in range(HOUR):
            scrape = next(source)
            sample = RecordedSample(seconds=number / 10, source=0, scrape=scrape)
            recorder.write(sample)
            for reading in meter.take(scrape, seconds=sample.seconds):
                view.add("server", 0, reading)
            view.lines(width=100)
            if number == 200:
                begin = resident_mb()
    return resident_mb() - begin


def watching() -> float:
    """Share of a core that `kvledger watch` takes at one sample a second of 64 KB, start-up left out."""
    text = whole(rows("async")[60]["text"]).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        short, long = (_processor_seconds(["watch", url, "--lines", "--for", f"{s}s"]) for s in (1, 31))
    finally:
        server.shutdown()
    return (long - short) / 30


def _processor_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "kvledger", *arguments], check=True, capture_output=True, env={**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@dataclass(slots=True)
class Block:
    """A block as vLLM keeps it."""

    block_id: int
    ref_cnt: int
    content: str | None

    @property
    def block_hash(self) -> str | None:
        return self.content


class FullAttentionSpec:
    """Named as vLLM's: kinds are told by the name."""

    page_size_bytes = real_page_size_bytes = 65_536


def scheduler(blocks: int, requests: int, each: int) -> SimpleNamespace:
    """Return what a scheduler of vLLM holds: ``requests`` that run, with ``each`` blocks of 16 tokens."""
    pool = [Block(n, int(n <= requests * each), "content" if n else None) for n in range(blocks)]
    tables = {str(n): pool[1 + n * each : 1 + (n + 1) * each] for n in range(requests)}
    running = [
        SimpleNamespace(
            request_id=name,
            num_prompt_tokens=16 * each - 100,
            num_output_tokens=90,
            num_tokens=16 * each - 10,
            num_computed_tokens=16 * each - 10,
        )
        for name in tables
    ]
    manager = SimpleNamespace(
        block_pool=SimpleNamespace(
            blocks=pool, num_gpu_blocks=blocks, get_num_free_blocks=lambda: blocks - 1 - requests * each
        ),
        coordinator=SimpleNamespace(single_type_managers=[SimpleNamespace(block_size=16)]),
        get_block_ids=lambda name: ([block.block_id for block in tables[name]],),
    )
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec(), layer_names=["layer"] * 32)
    return SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
        kv_cache_manager=manager,
        requests={request.request_id: request for request in running},
        running=running,
        get_request_counts=lambda: (requests, 0),
    )


def inside(blocks: int, requests: int, each: int) -> float:
    """Seconds of processor time to draw up the ledger inside a server."""
    made = scheduler(blocks, requests, each)
    pool = read_pool(made)
    draw_inside(pool, read_state(made))
    began = time.process_time()
    for _ in range(10):
        assert draw_inside(pool, read_state(made)).held_blocks == requests * each
    return (time.process_time() - began) / 10


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"


BENCHMARKS = {
    "a scrape of 64 KB to a ledger": Benchmark(one_scrape, milliseconds, "under 5 ms"),
    "an hour at ten samples a second": Benchmark(hour, lambda mb: f"{mb:.1f} MB", "under 10 MB", runs=1),
    "kvledger watch at one a second": Benchmark(watching, lambda share: f"{share:.2%}", "under 1 % of a core", runs=3),
    "the ledger inside, 2,000 blocks": Benchmark(lambda: inside(2_000, 64, 25), milliseconds, "under 1 ms"),
    "the ledger inside, 30,000 blocks": Benchmark(lambda: inside(30_000, 256, 100), milliseconds, "under 10 ms"),
}
