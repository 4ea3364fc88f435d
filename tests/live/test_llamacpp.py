"""Live llama.cpp servers on loopback: what `measure` says of every slot against what the client counted itself.

Needs ``KVLEDGER_LLAMA_SERVER``, the path of a llama-server, and ``KVLEDGER_LLAMA_MODELS``, a folder with
``smollm2.gguf`` and ``gemma3-270m.gguf``.
"""

import asyncio
import io
import json
import os
import socket
import subprocess
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvledger.cli import measure as measure_module
from kvledger.measure.background import Background
from kvledger.measure.pool_meter import PoolMeter
from kvledger.measure.recording import RecordedSample
from kvledger.measure.slots import Layout
from kvledger.sources.endpoints import Endpoint
from kvledger.sources.http import Access, parse_address
from kvledger.sources.models import load_model
from kvledger.sources.startup_log import read_startup
from kvledger.traces import ReadOptions, read_trace
from tests.live.llamacpp_load import Client, Slot, drive
from tests.traces.test_recording import write

pytestmark = pytest.mark.live

CONTEXT, SLOTS, STEP = 2048, 2, 2
"""A step under way has its tokens in the slot before the client has received them, and one may be on its way."""


@contextmanager
def llama(folder, model, *flags):
    """Start a server, wait until it answers, and end it; yield its port, its log and the model."""
    binary, models = os.environ.get("KVLEDGER_LLAMA_SERVER"), os.environ.get("KVLEDGER_LLAMA_MODELS")
    if not binary or not models:
        pytest.skip("needs a llama-server: set KVLEDGER_LLAMA_SERVER to it and KVLEDGER_LLAMA_MODELS to a folder")
    path = Path(models) / f"{model}.gguf"
    if not path.exists():
        pytest.skip(f"needs {path.name} in KVLEDGER_LLAMA_MODELS")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    command = [binary, "-m", str(path), "--host", "127.0.0.1", "--port", str(port), "-t", "1", "--no-warmup"]
    with log.open("wb") as stream:
        process = subprocess.Popen([*command, "--metrics", *flags], stdout=stream, stderr=stream)
        try:
            deadline = time.time() + 120
            while b"listening on" not in log.read_bytes():
                assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
                assert time.time() < deadline
                time.sleep(0.2)
            yield port, log, path
        finally:
            process.terminate()
            process.wait(60)


def endpoint(port):
    return Endpoint(address=parse_address(f"http://127.0.0.1:{port}", default_path="/metrics"), access=Access())


def load(port, work, *, samples=3000):
    client = Client(port, [Slot() for _ in range(SLOTS)])
    return asyncio.run(drive(client, endpoint(port), work, samples=samples))


PLAIN = {
    0: [{"prompt_tokens": 300, "output_tokens": 150}, {"prompt_tokens": 40, "output_tokens": 60}],
    1: [{"prompt_tokens": 700, "output_tokens": 100}],
}


def settle(rows, background):
    meter = PoolMeter(complete=background.complete, expand=background.expand)
    for row in rows:
        meter.take(row["snapshots"], seconds=row["seconds"])
    return {key.pool: list(zip(rows, moments, strict=True)) for key, moments in meter.settle().items()}


def bounds(row, number):
    """Return the fewest and the most tokens a slot can have held while the sample was taken."""
    (was_open, before), (is_open, after) = row["before"][number], row["after"][number]
    if was_open and is_open and after >= before:
        return before, after + STEP
    return min(before, after), max(before, after) + STEP


def check_slots(rows):
    """Every slot holds what its client counted; where nothing moved, to the token."""
    exact = 0
    for row in rows:
        for number, slot in enumerate(row["snapshots"][0].slots):
            told, (is_open, counted) = int(slot.tokens.value), row["before"][number]
            moved = row["before"][number] != row["after"][number]
            low, high = bounds(row, number)
            if is_open or moved:  # a prompt comes in bit by bit: only its end bounds it
                assert told <= high
            else:
                assert told == counted
                exact += 1
            if slot.is_processing and slot.decoded_tokens.value and not moved and is_open:
                assert low <= told
    return exact


def busy(pairs):
    return [(row, moment) for row, moment in pairs if moment.running]


def test_strips_of_a_live_server_are_what_the_client_counted(tmp_path):
    with llama(tmp_path, "smollm2", "-c", str(CONTEXT * SLOTS), "-np", str(SLOTS)) as (port, log, path):
        rows = load(port, PLAIN)
        background = Background(model=load_model(str(path)), startup=read_startup(str(log)))
        found = CliRunner().invoke(
            measure_module.command, [f"http://127.0.0.1:{port}", "--log", str(log), "--model", str(path), "--json"]
        )
    assert check_slots(rows) >= 2
    pairs = settle(rows, background)["kv"]
    assert len(busy(pairs)) >= 20
    for _, moment in pairs:
        slots = moment.snapshot.slots
        used = sum(int(slot.tokens.value) for slot in slots if slot.is_processing)
        kept = sum(int(slot.tokens.value) for slot in slots if not slot.is_processing)
        ledger = moment.sheet.ledger.check()
        assert moment.layout is Layout.STRIPS
        assert ledger.capacity == CONTEXT * SLOTS * 23_040
        assert ledger.used == used * 23_040
        assert ledger.cached == kept * 23_040
        assert ledger.reserved == (moment.running * CONTEXT - used) * 23_040
        assert ledger.unattributed == 0
    recorded = write([RecordedSample(seconds=r["seconds"], source=0, snapshots=r["snapshots"]) for r in rows])
    workload = read_trace(io.BytesIO(recorded), name="`r.kvr`", options=ReadOptions()).workload
    lengths = sorted(zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True))
    assert [prompt for prompt, _ in lengths] == [40, 300, 700]
    assert (lengths[0][1], lengths[2][1]) == (60, 100)
    assert 1 <= lengths[1][1] <= 150  # its slot is given away at once: what was seen last
    last = json.loads(found.stdout)["sources"][0]["pools"][0]["last"]
    assert [slot["tokens"] for slot in last["slots"]] == [99, 799]
    assert last["ledger"]["accounts_bytes"]["cached"] == 898 * 23_040


def test_slots_that_share_are_proved_by_what_is_seen(tmp_path):
    """Slot 1 keeps its tokens until a request for slot 0 clears it: only a shared pool does that."""
    work = {0: [{"prompt_tokens": 30, "output_tokens": 20}], 1: [{"prompt_tokens": 200, "output_tokens": 10}]}
    later = {0: [{"prompt_tokens": 300, "output_tokens": 60}]}
    with llama(tmp_path, "smollm2", "-c", str(CONTEXT), "-np", str(SLOTS), "--kv-unified") as (port, log, _):
        rows = load(port, work) + load(port, later)
        told = read_startup(str(log)).unified
    assert told.value is True
    pairs = settle(rows, Background())["kv"]
    assert {moment.layout for _, moment in pairs} == {Layout.SHARED}
    for _, moment in pairs:
        slots = moment.snapshot.slots
        used = sum(int(slot.tokens.value) for slot in slots if slot.is_processing)
        assert moment.sheet.ledger.capacity == CONTEXT
        assert moment.sheet.figure("used").high == used
        assert moment.sheet.ledger.reserved == 0
    assert any(moment.sheet.ledger.cached == 209 for _, moment in pairs)


def test_more_tokens_than_a_context_prove_strips(tmp_path):
    work = {n: [{"prompt_tokens": 150, "output_tokens": 20}] for n in range(SLOTS)}
    with llama(tmp_path, "smollm2", "-c", str(256 * SLOTS), "-np", str(SLOTS)) as (port, _, _):
        rows = load(port, work)
    assert {moment.layout for _, moment in settle(rows, Background())["kv"]} == {Layout.STRIPS}


@pytest.mark.parametrize("flags", [("-np", "2"), ("-np", "2", "--kv-unified")], ids=["strips", "shared"])
def test_a_window_has_cells_of_its_own(tmp_path, flags):
    """Gemma 3 270M: 3 layers keep every token (3,072 bytes), 15 the last 512 (15,360 bytes)."""
    work = {
        0: [{"prompt_tokens": 700, "output_tokens": 30}],
        1: [{"prompt_tokens": 90, "output_tokens": 60}],
    }
    with llama(tmp_path, "gemma3-270m", "-c", "4096", "-lv", "4", *flags) as (port, log, path):
        rows = load(port, work)
        by_log = settle(rows, Background(startup=read_startup(str(log))))
        layout = Layout.SHARED if "--kv-unified" in flags else Layout.STRIPS
        by_model = settle(rows, Background(model=load_model(str(path)), layout=layout))
    check_slots(rows)
    cells = 1536 if layout is Layout.SHARED else 2 * 1024
    for pools in (by_log, by_model):
        for (_, full), (_, window) in zip(pools["full"], pools["swa"], strict=True):
            working = [int(slot.tokens.value) for slot in full.snapshot.slots if slot.is_processing]
            assert full.sheet.ledger.capacity == 4096 * 3072
            assert window.sheet.ledger.capacity == cells * 15_360
            assert full.sheet.figure("used").high == sum(working) * 3072
            assert window.sheet.figure("used").high == sum(min(tokens, 512) for tokens in working) * 15_360
            strips = window.sheet.ledger.internal
            assert strips == (len(working) * 512 * 15_360 if layout is Layout.STRIPS else 0)
            assert window.sheet.ledger.check()


def test_a_context_that_is_shifted_still_counts_to_the_token(tmp_path):
    work = {0: [{"prompt_tokens": 200, "output_tokens": 120}]}
    flags = ("-c", "512", "-np", "2", "--context-shift", "--keep", "10")
    with llama(tmp_path, "smollm2", *flags) as (port, _, _):
        rows = load(port, work)
    pairs = busy(settle(rows, Background(layout=Layout.STRIPS))["kv"])
    told = [int(moment.snapshot.slots[0].tokens.value) for _, moment in pairs]
    assert max(told) < 256
    assert any(later < earlier for earlier, later in pairwise(told))
    for _, moment in pairs:
        assert moment.sheet.ledger.used + moment.sheet.ledger.reserved == 256
