"""The ledger in a server's own /metrics: of the scheduler when it writes one, else of the counters."""

import json
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kvledger.live.vllm_collector import InsideCollector
from kvledger.live.vllm_plugin import register
from kvledger.live.vllm_scheduler import LedgerScheduler
from tests.live.fake_vllm import SlidingWindowSpec, group, make
from tests.measure.recorded import measure, rows


class Recorded(Collector):
    """Exports a recorded scrape, as the server of it did."""

    def __init__(self, text):
        self._families = list(text_string_to_metric_families(text))

    def collect(self):
        return self._families


def export(folder, text=None, since=0.0):
    """Return {(name, labels but source, engine and pool): value} of kvledger's metrics, and their sources."""
    registry = CollectorRegistry(auto_describe=True)
    if text is not None:
        registry.register(Recorded(text))
    registry.register(InsideCollector(folder, registry, since_seconds=since))
    generate_latest(registry)
    exported = generate_latest(registry).decode()
    samples = [
        sample
        for family in text_string_to_metric_families(exported)
        for sample in family.samples
        if sample.name.startswith("kvledger")
    ]
    left_out = ("source", "engine", "pool")
    found = {(s.name, *(v for key, v in sorted(s.labels.items()) if key not in left_out)): s.value for s in samples}
    return found, {sample.labels["source"] for sample in samples if "source" in sample.labels}


def accounts(found, unit):
    return {key[1]: value for key, value in found.items() if key[0] == f"kvledger_pool_{unit}"}


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setenv("KVLEDGER_VLLM_DIR", str(tmp_path))
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    scheduler.update_from_output(None, None)
    scheduler.shutdown()
    return tmp_path


def test_the_ledger_of_the_scheduler_is_exported_under_the_names_of_export(written):
    found, sources = export(written)
    pool = accounts(found, "bytes")
    assert sources == {"scheduler"}
    assert (pool["used"], sum(pool.values())) == (120, 32 * 80)
    assert found["kvledger_figure_low_bytes", "measured", "held"] == 160
    assert found["kvledger_figure_high_tokens", "measured", "used"] == 6
    assert found["kvledger_figure_high_tokens", "measured", "live"] == 7
    assert found[("kvledger_running_requests",)] == 1
    assert found["kvledger_engine_info", "tiny", "ahead", "vllm", "one-group"] == 1


def test_layers_in_groups_are_exported_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("KVLEDGER_VLLM_DIR", str(tmp_path))
    scheduler = make(LedgerScheduler, group(), group(SlidingWindowSpec))
    scheduler.update_from_output(None, None)
    scheduler.shutdown()
    found, _ = export(tmp_path)
    assert sum(accounts(found, "bytes").values()) == 32 * 80
    assert not any("tokens" in key[0] for key in found)


def test_without_a_scheduler_that_writes_the_counters_are_measured(tmp_path):
    row, reading = next((r, m) for r, m in measure("async", phases={"plain"}, settled=False) if m.running > 5)
    found, sources = export(tmp_path, row["text"])
    pool = accounts(found, "tokens")
    assert sources == {"counters"}
    assert sum(pool.values()) == 257 * 32
    assert pool["used"] <= reading.balance.used.high
    assert found["kvledger_figure_low_tokens", "derived", "held"] == reading.balance.held


def test_what_an_earlier_server_left_in_the_folder_is_not_shown(written):
    assert export(written, since=time.time() + 1) == ({}, set())
    assert export(written, rows("async")[10]["text"], since=time.time() + 1)[1] == {"counters"}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"seconds": "x"}', '{"seconds": 9e9}'])
def test_a_file_that_is_no_ledger_leaves_the_other_metrics_alone(tmp_path, text, caplog):
    (tmp_path / "engine-0.json").write_text(text)
    assert export(tmp_path, rows("async")[10]["text"]) == ({}, set())
    assert "no ledger for this scrape" in caplog.text


def test_vllm_loads_nothing_unless_a_folder_is_named(tmp_path, monkeypatch):
    registry = CollectorRegistry(auto_describe=True)
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    monkeypatch.delenv("KVLEDGER_VLLM_DIR", raising=False)
    register()
    assert not registry._collector_to_names
    monkeypatch.setenv("KVLEDGER_VLLM_DIR", str(tmp_path))
    register()
    register()
    assert len(registry._collector_to_names) == 1


def test_the_newest_ledger_replaces_the_one_before(written):
    newest = json.loads((written / "engine-3.json").read_text())
    (written / "engine-3.json").write_text(json.dumps({**newest, "live_tokens": 99}))
    assert export(written)[0]["kvledger_figure_low_tokens", "measured", "live"] == 99


def test_accounts_that_do_not_sum_to_the_pool_are_never_exported(written, caplog):
    newest = json.loads((written / "engine-3.json").read_text())
    (written / "engine-3.json").write_text(json.dumps({**newest, "capacity_bytes": 99}))
    assert export(written) == ({}, set())
    assert "do not balance" in caplog.text
