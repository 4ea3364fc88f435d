"""Live vLLM servers on loopback: the laws against what the only client counted itself.

Needs the Python of an environment with vLLM for the CPU in ``KVLEDGER_VLLM_PYTHON``. The model has random weights and
eight layers: slow enough that load overlaps, small enough for two cores.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from tests.live.vllm_load import Client, Request, drive, prompt_of, scrape

pytestmark = pytest.mark.live

BLOCK, BLOCKS = 32, 257
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 8,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def vllm(folder, *flags):
    """Start a server, wait until it answers, and end it."""
    python = os.environ.get("KVLEDGER_VLLM_PYTHON")
    if not python:
        pytest.skip("needs a vLLM for the CPU: set KVLEDGER_VLLM_PYTHON to its Python")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    port = free_port()
    command = [str(Path(python).with_name("vllm")), "serve", str(folder), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--load-format", "dummy"]
    command += ["--skip-tokenizer-init", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "64"]
    command += ["--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS), "--max-num-batched-tokens", "64"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen([*command, *flags], stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        wait_for(port, process)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for(port, process):
    for _ in range(300):
        assert process.poll() is None, "the server ended"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError("the server does not answer")


async def load(port):
    """Drive every kind of traffic; return a row for each scrape."""
    client = Client(host="127.0.0.1", port=port, model="tiny")
    generator = random.Random(1)
    draw = generator.randrange
    shared = prompt_of(generator, 200)
    traffic = {
        "plain": [Request(prompt_of(generator, draw(5, 120)), draw(60, 200)) for _ in range(36)],
        "shared": [Request(prompt_of(generator, draw(210, 260), shared), draw(60, 200)) for _ in range(36)],
        "chunked": [Request(prompt_of(generator, draw(600, 1500)), draw(30, 120)) for _ in range(10)],
        "aborted": [
            Request(prompt_of(generator, draw(5, 120)), draw(100, 300), generator.choice([None, None, 10, 60, 0]))
            for _ in range(80)
        ],
        "preempted": [Request(prompt_of(generator, draw(5, 120)), draw(200, 400)) for _ in range(48)],
    }
    gaps = {"plain": 0.12, "shared": 0.12, "chunked": 0.5, "aborted": 0.13, "preempted": 0.02}
    rows = [await scrape(client, "start")]
    for phase, requests in traffic.items():
        rows += await drive(client, requests, gap_seconds=gaps[phase], samples=32, every_seconds=0.2, phase=phase)
    return rows


def bounds(row):
    """Return the fewest and the most tokens that can be alive; those of clients that just left may still be."""
    low = sum(length for key, length in row["before"].items() if key in row["after"])
    high = sum(max(row["before"].get(k, 0), row["after"].get(k, 0)) for k in {**row["before"], **row["after"]})
    return low, high + sum(row["pending_before"].values()) + sum(row["gone"])


@pytest.mark.parametrize("flags", [(), ("--no-async-scheduling",), ("--no-enable-prefix-caching",)], ids=str)
def test_the_ledger_of_a_live_server_is_what_its_client_counted(tmp_path, flags):
    with vllm(tmp_path, *flags) as port:
        rows = asyncio.run(load(port))
    scrapes = [read_vllm_metrics(row["text"]) for row in rows]
    meter = Meter()
    for row, one in zip(rows, scrapes, strict=True):
        meter.take(one, seconds=row["seconds"])
    settled = list(zip(rows, meter.settle()[0], strict=True))
    busy = [(row, reading) for row, reading in settled if reading.running]
    assert len(busy) >= 100
    for row, reading in busy:
        low, high = bounds(row)
        step = reading.running + 1
        assert low - step <= reading.balance.live.high
        assert reading.balance.live.low <= high + step
        assert reading.balance.used.width <= reading.running * (BLOCK - 1)
        assert reading.sheet.ledger.check()
    check_blocks(busy)
    never_idle(rows, scrapes)
    last = settled[-1][1]
    assert (last.balance.held, last.balance.live.low, last.balance.live.high) == (0, 0, 0)


def check_blocks(busy):
    """Where nothing moved for the client, held is the sum of the blocks of its requests, one step of slack."""
    still = [
        (row, reading)
        for row, reading in busy
        if row["before"] == row["after"]
        and not row["pending_before"]
        and not row["pending_after"]
        and len(row["before"]) == reading.running
        and row["aborted_before"] == row["aborted_after"]
        and row["phase"] != "shared"
    ]
    assert len(still) >= 3  # a loaded machine is seldom still
    for row, reading in still:
        lengths = row["before"].values()
        low, high = (sum(-(-(length + shift) // BLOCK) for length in lengths) * BLOCK for shift in (-1, 1))
        assert low <= reading.balance.held <= high


def never_idle(rows, scrapes):
    """Measured without its idle samples, the server is known within one block a running request."""
    meter = Meter()
    for row, one in zip(rows, scrapes, strict=True):
        if not one.engines[0].running:
            continue
        reading = meter.take(one, seconds=row["seconds"])[0]
        low, high = bounds(row)
        assert reading.balance.used.width <= reading.running * (BLOCK - 1)
        assert low - reading.running - 1 <= reading.balance.live.high
        assert reading.balance.live.low <= high + reading.running + 1
