"""The table of metrics keeps the rules of Prometheus and of the style guide."""

import re
import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvledger.live.exporter import LedgerCollector
from kvledger.report.prometheus.table import METRICS, Kind
from tests.cli.serving import serving
from tests.live.test_exporter import follower

UNITS = ("bytes", "tokens", "requests", "seconds", "ratio", "total", "info", "up", "drawn")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_have_the_prefix_the_unit_and_no_colon(metric):
    assert re.fullmatch(r"kvledger_[a-z_]+", metric.name)
    assert metric.name.rpartition("_")[2] in UNITS
    assert (metric.name.endswith("_total")) == (metric.kind is Kind.COUNTER)
    assert (metric.name.endswith("_info")) == (metric.kind is Kind.INFO)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_labels_are_none_that_prometheus_or_readers_would_mistake(metric):
    labels = [*metric.whose, *metric.labels]
    assert len(labels) == len(set(labels))
    assert not {"type", "instance", "job", "request", "request_id", "le", "quantile"} & set(labels)
    assert metric.meaning.strip() == metric.meaning != ""


def test_no_two_metrics_share_a_name():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


def test_prometheus_finds_nothing_to_criticise(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: install the package `prometheus`")
    registry = CollectorRegistry()
    with serving("preempted") as url:
        registry.register(LedgerCollector([follower(url)]))
        text = generate_latest(registry)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
