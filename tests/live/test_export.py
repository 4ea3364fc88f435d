"""A real Prometheus scrapes `kvledger export` and a server: metrics, rules and dashboards have data."""

import json
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

from kvledger.sources.http import Access, fetch, parse_address
from tests.cli.test_export import exporter
from tests.live.test_prometheus import free_port
from tests.measure.recorded import rows
from tests.sources.servers import answering, reply

pytestmark = pytest.mark.live

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml, alerts.yml, rule-alerts.yml]
scrape_configs:
  - job_name: vllm
    static_configs: [{{targets: ["{server}"]}}]
  - job_name: kvledger
    static_configs: [{{targets: ["{exporter}"]}}]
"""


def still(name, phase):
    """Serve one sample of a busy phase for ever: the exporter and Prometheus then see the same instant."""
    text = next(row["text"] for row in rows(name)[12:] if row["phase"] == phase)
    return answering(reply(text, headers="Content-Type: text/plain; version=0.0.4\r\n"))


@contextmanager
def prometheus(folder, **targets):
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("needs a Prometheus: install the package `prometheus`")
    (folder / "prometheus.yml").write_text(CONFIG.format(**targets))
    port = free_port()
    command = [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(url, query):
    """Return the results of an instant query as (labels, value)."""
    path = f"{url}/api/v1/query?{urlencode({'query': query})}"
    answer = json.loads(fetch(parse_address(path, default_path=""), Access()).content)
    assert answer["status"] == "success", answer
    return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


def wait_for(url, query, wanted, *, seconds=40):
    deadline = time.time() + seconds
    while time.time() < deadline:
        try:
            found = ask(url, query)
        except Exception:
            found = None
        if found is not None and wanted(found):
            return found
        time.sleep(0.5)
    raise AssertionError(f"{query}: {found}")


def write(folder, name, *arguments):
    from tests.cli.calling import spawn

    called = spawn("export", *arguments, "-o", folder / name)
    assert called.code == 0, called.err


def files(folder):
    write(folder, "rules.yml", "--rules", "vllm")
    write(folder, "alerts.yml", "--alerts", "exporter")
    write(folder, "rule-alerts.yml", "--alerts", "rules")
    write(folder, "exporter.json", "--dashboard", "exporter")
    write(folder, "rules.json", "--dashboard", "rules")


def queries_of(path):
    dashboard = json.loads(path.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], re.sub(r"\$\w+", ".*", target["expr"].replace("$__rate_interval", "10s"))


def test_prometheus_says_what_the_server_says_and_every_panel_has_data(tmp_path):
    files(tmp_path)
    with (
        still("async", "shared") as server,
        still("sync", "plain") as second,
        exporter(f"chat={server}", f"code={second}", "--bytes-per-token", 1024) as (process, address),
        prometheus(tmp_path, server=server.removeprefix("http://"), exporter=address.split("/")[2]) as url,
    ):
        wait_for(url, "count_over_time(kvledger:pool_tokens[1m])", lambda found: found and found[0][1] >= 5)
        assert {labels["job"]: value for labels, value in ask(url, "up")} == {"kvledger": 1, "vllm": 1}
        ((_, capacity),) = ask(url, 'sum(kvledger_pool_bytes{source="chat"})')
        assert capacity == 257 * 32 * 1024
        ((_, by_rules),) = ask(url, "kvledger:held_tokens")
        ((_, by_exporter),) = ask(url, 'kvledger_figure_low_tokens{source="chat", figure="held"}')
        assert by_rules == by_exporter > 0
        ((_, slots),) = ask(url, "sum(kvledger:pool_tokens)")
        assert slots == 257 * 32
        for path in (tmp_path / "exporter.json", tmp_path / "rules.json"):
            for title, query in queries_of(path):
                assert ask(url, query), f"{title}: {query}"
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        wait_for(url, 'kvledger_pool_bytes{source="chat"}', lambda found: found == [])


def test_a_server_that_goes_takes_its_series_with_it_and_no_others(tmp_path):
    files(tmp_path)
    with still("sync", "plain") as stays:
        going = still("async", "shared")
        goes = going.__enter__()
        try:
            with (
                exporter(f"a={goes}", f"b={stays}") as (_, address),
                prometheus(tmp_path, server=goes.removeprefix("http://"), exporter=address.split("/")[2]) as url,
            ):
                wait_for(url, "kvledger:held_tokens", bool)
                wait_for(url, "kvledger_pool_tokens", lambda found: len(found) == 14)
                going.__exit__(None, None, None)
                going = None
                wait_for(url, 'kvledger_source_up{source="a"} == 0', bool)
                wait_for(url, "kvledger:held_tokens", lambda found: found == [])
                assert {labels["source"] for labels, _ in ask(url, "kvledger_pool_tokens")} == {"b"}
        finally:
            if going is not None:
                going.__exit__(None, None, None)
