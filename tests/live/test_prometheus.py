"""A real Prometheus that scrapes two servers: its range gives the ledgers of the scrapes it took."""

import asyncio
import random
import shutil
import subprocess
import time
from contextlib import contextmanager
from itertools import chain, repeat

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.balance import Unsure
from kvledger.measure.meter import Meter
from kvledger.sources.http import Access, fetch, parse_address
from kvledger.sources.prometheus import Range, fetch_instances
from tests.live.truth import Steps, contradictions, written
from tests.live.vllm_load import Client, Request, drive, prompt_of
from tests.live.vllm_server import free_port, vllm
from tests.measure.recorded import rows
from tests.sources.servers import answering, reply

pytestmark = pytest.mark.live

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: vllm
    static_configs: [{{targets: ["{first}", "{second}"]}}]
"""


def replaying(phase, served):
    """Serve a phase of the recording, a sample a scrape, and keep what was served."""
    left = chain((row["text"] for row in rows("async") if row["phase"] == phase), repeat(""))

    def answer(connection, request):
        text = next(left)
        served.append(text)
        reply(text, headers="Content-Type: text/plain; version=0.0.4\r\n")(connection, request)

    return answering(answer)


def ledgers(texts):
    meter = Meter()
    found = {}
    for number, text in enumerate(texts):
        scrape = read_vllm_metrics(text)
        reading = meter.take(scrape, seconds=float(number))[0]
        engine = scrape.engines[0]
        found[engine.prompt_tokens, engine.generation_tokens, engine.usage_ratio] = reading
    return found


@contextmanager
def prometheus(folder, *urls):
    """Run a Prometheus that scrapes the servers every second; yield its address."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("needs a Prometheus: install the package `prometheus`")
    config = folder / "prometheus.yml"
    first, second = (url.removeprefix("http://") for url in urls)
    config.write_text(CONFIG.format(first=first, second=second))
    port = free_port()
    process = subprocess.Popen(
        [
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(url, began):
    """Return the names of the instances and all samples since ``began``."""
    assert fetch(parse_address(url, default_path="/-/ready"), Access()).content
    span = Range(start_seconds=began, end_seconds=time.time(), step_seconds=1, selector='{job="vllm"}')
    samples = [(list(names), sample) for names, sample in fetch_instances(url, Access(), span)]
    return samples[-1][0], [sample for _, sample in samples]


def test_a_range_over_two_instances_equals_direct_measurement(tmp_path):
    first, second = [], []
    with (
        replaying("plain", first) as one,
        replaying("preempted", second) as two,
        prometheus(tmp_path, one, two) as url,
    ):
        began = time.time()
        while len(second) < 18 and time.time() - began < 60:
            time.sleep(0.5)
        names, samples = ask(url, began)
    assert sorted(names) == sorted(url.removeprefix("http://") for url in (one, two))
    for name, served in zip((one, two), (first, second), strict=True):
        number = names.index(name.removeprefix("http://"))
        mine = [sample for sample in samples if sample.source == number and sample.scrape is not None]
        assert len(mine) >= 10
        direct = ledgers(text for text in served if text)
        meter = Meter()
        for sample in mine:
            engine = sample.scrape.engines[0]
            reading = meter.take(sample.scrape, seconds=sample.seconds)[0]
            expected = direct[engine.prompt_tokens, engine.generation_tokens, engine.usage_ratio]
            assert (reading.running, reading.waiting) == (expected.running, expected.waiting)
            assert reading.balance.held == expected.balance.held
            assert reading.sheet.ledger.capacity == expected.sheet.ledger.capacity
            assert reading.sheet.ledger.check()


def requests_of(seed):
    generator = random.Random(seed)
    draw = generator.randrange
    return [Request(prompt_of(generator, draw(5, 300)), draw(150, 300)) for _ in range(30)]


async def load_both(servers):
    """Load both servers at once; return what was scraped of each directly."""
    loads = [
        drive(
            Client(host="127.0.0.1", port=server.port, model="tiny"),
            requests_of(server.port),
            gap_seconds=0.8,
            samples=200,
            every_seconds=0.15,
            phase="plain",
        )
        for server in servers
    ]
    return await asyncio.gather(*loads)


def test_two_real_servers_behind_a_prometheus_have_the_ledgers_of_their_schedulers(tmp_path):
    with (
        vllm(tmp_path / "one") as one,
        vllm(tmp_path / "two", "--no-enable-prefix-caching") as two,
        prometheus(tmp_path, one.url, two.url) as url,
    ):
        time.sleep(3)
        began = time.time()
        scraped = asyncio.run(load_both((one, two)))
        names, samples = ask(url, began)
    for server, texts in zip((one, two), scraped, strict=True):
        number = names.index(server.url.removeprefix("http://"))
        mine = [sample for sample in samples if sample.source == number and sample.scrape is not None]
        steps, meter, busy = Steps(written(server.ledgers)), Meter(), 0
        direct, same = ledgers(row["text"] for row in texts), 0
        for sample in mine:
            (engine,) = sample.scrape.engines
            reading = meter.take(sample.scrape, seconds=sample.seconds)[0]
            truth = steps.find(engine)
            if truth is not None and Unsure.TORN not in reading.balance.causes:
                assert contradictions(reading, truth) == {}
                busy += bool(reading.running)
            beside = direct.get((engine.prompt_tokens, engine.generation_tokens, engine.usage_ratio))
            if beside is not None and None not in (beside.balance.live, reading.balance.live):
                assert (reading.balance.held, reading.running) == (beside.balance.held, beside.running)
                assert reading.balance.live.low <= beside.balance.live.high
                assert beside.balance.live.low <= reading.balance.live.high
                if reading.balance.live.is_exact and beside.balance.live.is_exact:  # both have seen the server idle
                    same += 1
        assert busy >= 15
        assert same >= 3
