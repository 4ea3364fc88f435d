"""Live vLLM servers on loopback: the laws against the scheduler's own ledger, and against what the client counted.

The scheduler writes its ledger at every step (``kvledger.live.vllm_scheduler``), and a scrape tells which step it is
of, so each sample is compared with the truth of the same instant, to the token.
"""

import asyncio
import json
import os
import random
from pathlib import Path

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.balance import Scheduling, Unsure
from kvledger.measure.figure import Span
from kvledger.measure.meter import Meter
from tests.live.truth import Steps, contradictions, written
from tests.live.vllm_load import Client, Request, drive, prompt_of, scrape
from tests.live.vllm_server import BLOCK, vllm

pytestmark = pytest.mark.live

GAPS = {"plain": 0.12, "shared": 0.12, "chunked": 0.5, "aborted": 0.15, "abandoned": 0.15, "preempted": 0.02}
"""Mean seconds between two requests of a phase."""


def traffic_of(generator):
    """Return requests of every kind, by phase."""
    draw = generator.randrange
    shared = prompt_of(generator, 200)
    return {
        "plain": [Request(prompt_of(generator, draw(5, 120)), draw(60, 200)) for _ in range(36)],
        "shared": [Request(prompt_of(generator, draw(210, 260), shared), draw(60, 200)) for _ in range(36)],
        "chunked": [Request(prompt_of(generator, draw(600, 1500)), draw(30, 120)) for _ in range(10)],
        "aborted": [
            Request(prompt_of(generator, draw(5, 60)), draw(100, 250), generator.choice([None, 10, 60]))
            for _ in range(40)
        ],
        "abandoned": [
            Request(prompt_of(generator, draw(5, 120)), draw(60, 200), generator.choice([None, 30, 0]))
            for _ in range(40)
        ],
        "preempted": [Request(prompt_of(generator, draw(5, 120)), draw(200, 400)) for _ in range(48)],
    }


async def load(port, traffic, *, samples=28, speed=1.0):
    """Drive the traffic phase by phase; return a row for each scrape."""
    client = Client(host="127.0.0.1", port=port, model="tiny")
    rows = [await scrape(client, "start")]
    for phase, requests in traffic.items():
        gap = GAPS[phase] / speed
        rows += await drive(client, requests, gap_seconds=gap, samples=samples, every_seconds=0.2 / speed, phase=phase)
    return rows


def client_counted(row):
    """Return the fewest and the most tokens that can be alive; those of clients that just left may still be."""
    low = sum(length for key, length in row["before"].items() if key in row["after"])
    high = sum(max(row["before"].get(k, 0), row["after"].get(k, 0)) for k in {**row["before"], **row["after"]})
    return low, high + sum(row["pending_before"].values()) + sum(row["gone"])


def measure(rows):
    """Return the readings of the rows, read at once and settled."""
    meter = Meter()
    online = [meter.take(read_vllm_metrics(row["text"]), seconds=row["seconds"])[0] for row in rows]
    return online, meter.settle()[0]


def engine_of(row):
    return read_vllm_metrics(row["text"]).engines[0]


def check(rows, ledgers, *, least=0.9):
    """Assert that every sample tells the truth of its instant; return the busy ones.

    Left out are samples before the first step, and those of which one part is a step older than another: few where a
    step takes longer than rendering the metrics, and most of them are noticed. A share of ``least`` is compared.
    """
    steps = Steps(ledgers)
    rows = [row for row in rows if engine_of(row).count("iteration_tokens_total")]
    online, settled = measure(rows)
    busy, compared = [], 0
    for row, first, last in zip(rows, online, settled, strict=True):
        truth = steps.find(engine_of(row))
        assert last.sheet.ledger.check()
        if truth is None or Unsure.TORN in last.balance.causes:
            continue
        compared += 1
        clients_leave = row["phase"].partition("/")[0] in ("aborted", "abandoned")
        for reading in (first, last):
            assert contradictions(reading, truth, clients_leave=clients_leave) == {}, row["phase"]
        if not clients_leave:
            assert last.balance.live == Span.exact(truth["live_tokens"]), row["phase"]
        busy += [(row, truth, last)] if last.running else []
    assert compared >= least * len(rows)
    return busy


def check_clients(busy):
    """The clients see a token at most one step late; a step gives each running request one."""
    for row, _, reading in busy:
        low, high = client_counted(row)  # its scrape is not torn
        step = reading.running + 1
        assert low - step <= reading.balance.live.high
        assert reading.balance.live.low <= high + step


def check_never_idle(rows, ledgers):
    """From the first client that leaves on, without idle samples, their offset is within a block a running request.

    Always for what is stored; for live tokens where nobody is in prefill, whose tokens no counter tells apart.
    """
    steps, meter, pinned = Steps(ledgers), Meter(), 0
    begin = next(n for n, row in enumerate(rows) if row["phase"] == "aborted")
    for row in rows[begin:]:
        one = read_vllm_metrics(row["text"])
        (engine,) = one.engines
        if not engine.running or not engine.count("iteration_tokens_total"):
            continue
        reading = meter.take(one, seconds=row["seconds"])[0]
        balance, truth = reading.balance, steps.find(engine)
        assert balance.used.width <= reading.running * (BLOCK - 1)
        if truth is None or Unsure.TORN in balance.causes:
            continue
        assert contradictions(reading, truth, clients_leave=True) == {}
        if row["phase"] == "aborted" and not balance.prefilling.high and Unsure.PREEMPTED not in balance.causes:
            assert balance.live.width <= reading.running * BLOCK
            pinned += 1
    assert pinned >= 3 or not engine.query_tokens  # without a prefix cache admissions are not counted


def check_returned(rows, ledgers):
    """After the load everything is back: for the counters once idle, and for the scheduler."""
    last = measure(rows)[1][-1]
    assert (last.balance.held, last.balance.live, last.balance.used) == (0, Span.exact(0), Span.exact(0))
    assert (ledgers[-1]["running"], ledgers[-1]["held_blocks"], ledgers[-1]["live_tokens"]) == (0, 0, 0)
    assert ledgers[-1]["dropped"] == 0


@pytest.mark.parametrize(
    ("is_ahead", "flags"), [(False, ()), (True, ()), (False, ("--no-enable-prefix-caching",))], ids=str
)
def test_the_ledger_of_a_live_server_is_that_of_its_scheduler(tmp_path, is_ahead, flags):
    with vllm(tmp_path / "server", *flags, is_ahead=is_ahead) as server:
        rows = asyncio.run(load(server.port, traffic_of(random.Random(1))))
    ledgers = written(server.ledgers)
    (tmp_path / "rows.json").write_text(json.dumps(rows), "utf-8")  # stays beside the ledgers when this fails
    expected = Scheduling.AHEAD if is_ahead else Scheduling.IN_STEP
    assert {line["scheduling"] for line in ledgers} == {expected.value}
    busy = check(rows, ledgers)
    assert len(busy) >= 100
    assert {row["phase"] for row, _, _ in busy} >= set(GAPS)
    assert any(truth["preempted"] for _, truth, _ in busy)
    assert max(truth["saved_tokens"] for _, truth, _ in busy) > 192 or flags
    check_clients(busy)
    check_never_idle(rows, ledgers)
    check_returned(rows, ledgers)
    assert {reading.scheduling for _, _, reading in busy} <= {Scheduling.UNKNOWN, expected}


def test_a_pool_of_few_blocks_under_heavy_load_is_told_apart(tmp_path, shared):
    """One layer, 32 usable blocks: far more requests than fit, preempted again and again."""
    generator = random.Random(2)
    requests = [Request(prompt_of(generator, generator.randrange(5, 90)), 200) for _ in range(60)]
    model = shared / "tools/models/one-layer-llama"
    flags = ("--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32", "--max-model-len", "512")
    brief = {"KVLEDGER_VLLM_REQUESTS": "0"}  # a thousand steps a second
    with vllm(tmp_path / "server", *flags, model=model, blocks=33, environment=brief) as server:
        rows = asyncio.run(load(server.port, {"preempted": requests}, samples=60, speed=10))
    ledgers = written(server.ledgers)
    busy = check(rows, ledgers, least=0.3)
    assert busy
    assert max(line["preempted"] for line in ledgers) >= 3  # whether a sample meets one of them is chance
    check_returned(rows, ledgers)


def test_a_model_with_weights_is_measured_alike(tmp_path):
    """SmolLM2-135M or another small model: 128 of its prompts' tokens are common to all."""
    folder = os.environ.get("KVLEDGER_LIVE_MODEL")
    if not folder:
        pytest.skip("needs a model with weights: set KVLEDGER_LIVE_MODEL to its folder")
    generator = random.Random(3)
    shared = prompt_of(generator, 128)
    requests = [Request(prompt_of(generator, generator.randrange(130, 200), shared), 40) for _ in range(20)]
    with vllm(tmp_path / "server", model=Path(folder)) as server:
        rows = asyncio.run(load(server.port, {"shared": requests}))
    busy = check(rows, written(server.ledgers))
    assert len(busy) >= 10
    check_clients(busy)


def test_the_servers_own_metrics_hold_the_ledger_of_its_scheduler(tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    with vllm(tmp_path / "server") as server:
        requests = [Request([5] * 40, 30) for _ in range(4)]
        rows = asyncio.run(load(server.port, {"plain": requests}, samples=6))
    ledgers = {(line["running"], line["live_tokens"]): line for line in written(server.ledgers)}
    found = 0
    for row in rows:
        samples = [s for family in text_string_to_metric_families(row["text"]) for s in family.samples]
        own = {s.labels.get("account"): s.value for s in samples if s.name == "kvledger_pool_bytes"}
        if not own:
            continue
        load_of = {s.name: s.value for s in samples if s.name == "kvledger_running_requests"}
        live = next(s.value for s in samples if s.name == "kvledger_figure_low_tokens" and s.labels["figure"] == "live")
        line = ledgers[load_of["kvledger_running_requests"], live]
        assert sum(own.values()) == line["capacity_bytes"]
        assert own["used"] == line["accounts"]["used_bytes"]
        found += 1
    assert found >= 5
    assert "kvledger engine 0: used" in server.log.read_text("utf-8", errors="replace")


def test_layers_in_groups_are_told_apart_by_the_scheduler(tmp_path, shared):
    """Six layers shaped like Gemma 3, four with a window: used is what each group needs of each request."""
    import json

    model = shared / "tools/models/six-layer-gemma3"
    config = json.loads((model / "config.json").read_text("utf-8"))
    window, types = config["sliding_window"], config["layer_types"]
    token_bytes = 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    generator = random.Random(5)
    requests = [Request(prompt_of(generator, generator.randrange(5, 900)), 60) for _ in range(12)]
    flags = ("--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32", "--no-enable-prefix-caching")
    with vllm(tmp_path / "server", *flags, model=model, blocks=400) as server:
        rows = asyncio.run(load(server.port, {"plain": requests}))
    assert any(engine_of(row).running for row in rows)
    busy = [line for line in written(server.ledgers) if line["running"]]
    assert len(busy) >= 50
    assert max(request["stored_tokens"] for line in busy for request in line["requests"]) > window
    for line in busy:
        stored = [request["stored_tokens"] for request in line["requests"]]
        full, reach = sum(stored), sum(min(tokens, window - 1) for tokens in stored)
        assert line["accounts"]["used_bytes"] == token_bytes * (
            full * types.count("full_attention") + reach * types.count("sliding_attention")
        )
        assert line["used_tokens"] is None
        assert sum(line["accounts"].values()) == line["capacity_bytes"]
        assert sum(request["needed_bytes"] for request in line["requests"]) == line["accounts"]["used_bytes"]
    assert any(line["stale_bytes"] for line in busy)
