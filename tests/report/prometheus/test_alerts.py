"""The alerts, run by Prometheus: each fires at what it is for, and not at its neighbour."""

import pytest

from kvledger.report.prometheus.alerts import EXPORTER_ALERTS, RULE_ALERTS, write_alerts
from kvledger.report.prometheus.dashboard import find_names
from kvledger.report.prometheus.table import METRICS
from tests.report.prometheus.promtool import run
from tests.report.prometheus.test_dashboard import RECORDS

WHOSE = 'engine="0",instance="e:9464",job="kvledger",pool="kv",source="a"'
SOURCE = 'instance="e:9464",job="kvledger",source="a"'
SERVER = 'engine="0",instance="a:8000",job="vllm",model_name="m"'
LONG = 400
FIRING = {
    "KvledgerSourceDown": {f"kvledger_source_up{{{SOURCE}}}": (0, 1)},
    "KvledgerNoLedger": {f"kvledger_ledger_drawn{{{WHOSE}}}": (0, 1)},
    "KvledgerBooksOpen": {f'kvledger_pool_bytes{{{WHOSE},account="used"}}': (1, None)},
    "KvledgerPoolFull": {
        f'kvledger_figure_low_ratio{{{WHOSE},figure="held",accuracy="derived"}}': (0.97, 0.5),
        f"kvledger_waiting_requests{{{WHOSE}}}": (3, 3),
    },
    "KvledgerTails": {
        f'kvledger_figure_low_ratio{{{WHOSE},figure="held",accuracy="derived"}}': (0.5, 0.5),
        f'kvledger_figure_low_ratio{{{WHOSE},figure="internal",accuracy="derived"}}': (0.2, 0.1),
    },
    "KvledgerPreempting": {f"kvledger_preemptions_total{{{WHOSE}}}": ("0+1", "5+0")},
}
FIRING_OF_RULES = {
    "KvledgerPoolFull": {
        f"kvledger:held_tokens{{{SERVER}}}": (8190, 4000),
        f"kvledger:pool_blocks{{{SERVER}}}": (257, 257),
        f"kvledger:block_tokens{{{SERVER}}}": (32, 32),
        f"kvledger:waiting_requests{{{SERVER}}}": (1, 1),
    },
    "KvledgerTails": {
        f"kvledger:held_tokens{{{SERVER}}}": (8000, 8000),
        f"kvledger:internal_low_tokens{{{SERVER}}}": (3000, 500),
    },
    "KvledgerNoLedger": {f"kvledger:running_requests{{{SERVER}}}": (2, None)},
}


def values(value):
    if value is None:
        return "_"
    return f"{value}x{LONG}" if isinstance(value, str) else f"{value}+0x{LONG}"


def try_alerts(folder, alerts, case, end, expected):
    series = [{"series": name, "values": values(pair[end])} for name, pair in case.items()]
    text = write_alerts(alerts, group="g", heading=("x",))
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return run(folder, text, series, [(15 * LONG, firing, {f'{{alertname="{name}"}}': 1 for name in expected})])


@pytest.mark.parametrize(
    ("alerts", "name", "case"),
    [(EXPORTER_ALERTS, *item) for item in FIRING.items()] + [(RULE_ALERTS, *item) for item in FIRING_OF_RULES.items()],
)
def test_an_alert_fires_at_what_it_is_for_and_at_nothing_else(tmp_path, alerts, name, case):
    assert try_alerts(tmp_path, alerts, case, 0, [name]) == ""
    assert try_alerts(tmp_path, alerts, case, 1, []) == ""


def test_every_alert_is_tried():
    assert {alert.name for alert in EXPORTER_ALERTS} == set(FIRING)
    assert {alert.name for alert in RULE_ALERTS} == set(FIRING_OF_RULES)


def test_alerts_are_over_metrics_that_are_there():
    known = {metric.name for metric in METRICS}
    assert {name for alert in EXPORTER_ALERTS for name in find_names(alert.expr)} <= known
    assert {name for alert in RULE_ALERTS for name in find_names(alert.expr)} <= set(RECORDS)
