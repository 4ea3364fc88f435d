"""A real Prometheus that scrapes two servers: its range gives the ledgers of the scrapes it took."""

import shutil
import socket
import subprocess
import time
from itertools import chain, repeat

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from kvledger.sources.http import Access, fetch, parse_address
from kvledger.sources.prometheus import Range, fetch_instances
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ledgers(texts):
    meter = Meter()
    found = {}
    for number, text in enumerate(texts):
        scrape = read_vllm_metrics(text)
        reading = meter.take(scrape, seconds=float(number))[0]
        engine = scrape.engines[0]
        found[engine.prompt_tokens, engine.generation_tokens, engine.usage_ratio] = reading
    return found


def test_a_range_over_two_instances_equals_direct_measurement(tmp_path):
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("needs a Prometheus: install the package `prometheus`")
    first, second = [], []
    with replaying("plain", first) as one, replaying("preempted", second) as two:
        config = tmp_path / "prometheus.yml"
        config.write_text(CONFIG.format(first=one.removeprefix("http://"), second=two.removeprefix("http://")))
        port = free_port()
        began = time.time()
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while len(second) < 18 and time.time() - began < 60:
                time.sleep(0.5)
            url = f"http://127.0.0.1:{port}"
            assert fetch(parse_address(url, default_path="/-/ready"), Access()).content
            span = Range(start_seconds=began, end_seconds=time.time(), step_seconds=1, selector='{job="vllm"}')
            samples = [(list(names), sample) for names, sample in fetch_instances(url, Access(), span)]
        finally:
            process.terminate()
            process.wait(30)
    names = samples[-1][0]
    assert sorted(names) == sorted(url.removeprefix("http://") for url in (one, two))
    for name, served in zip((one, two), (first, second), strict=True):
        number = names.index(name.removeprefix("http://"))
        mine = [sample for _, sample in samples if sample.source == number and sample.scrape is not None]
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
