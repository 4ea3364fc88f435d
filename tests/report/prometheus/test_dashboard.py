"""The dashboards: what Grafana's own model of a dashboard makes of them, and what Prometheus makes of their queries."""

import json
import re
import shutil
import subprocess

import pytest

from kvledger.report.prometheus.dashboard import Dashboard, Panel, Query, find_names, make_dashboard
from kvledger.report.prometheus.panels import exporter_dashboard, rules_dashboard
from kvledger.report.prometheus.sglang import sglang_rules
from kvledger.report.prometheus.table import METRICS
from kvledger.report.prometheus.vllm import vllm_rules
from kvledger.report.prometheus.vllm_names import VllmNames

RECORDS = {rule.record: rule.meaning for group in (sglang_rules(), vllm_rules(VllmNames())) for rule in group.rules}
METERED = {metric.name: metric.meaning for metric in METRICS}
MADE = {
    "exporter": make_dashboard(exporter_dashboard(), METERED),
    "rules": make_dashboard(rules_dashboard(), RECORDS),
}
each = pytest.mark.parametrize("name", MADE)


def queries(name):
    return [target["expr"] for panel in MADE[name]["panels"] for target in panel["targets"]]


@each
def test_every_field_is_one_that_grafana_knows(name):
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    read = json.loads(JSONEncoder().encode(models.Dashboard.from_json(MADE[name])))
    kept = dict(leaves(read))
    assert {path: value for path, value in leaves(MADE[name]) if kept.get(path) != value} == {}


def leaves(value, path=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from leaves(item, f"{path}[{at}]")
    else:
        yield path, value


@each
def test_panels_do_not_overlap_and_fit_the_grid(name):
    taken = set()
    for panel in MADE[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in MADE[name]["panels"]]
    assert len(ids) == len(set(ids))


@each
def test_every_query_is_promql(name, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: install the package `prometheus`")
    plain = [re.sub(r"\$\w+", ".*", expr.replace("$__rate_interval", "5m")) for expr in queries(name)]
    rules = [{"record": "x", "expr": expr} for expr in plain]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_labels_that_are_asked_for_are_labels_of_the_metric():
    known = {metric.name: {*metric.whose, *metric.labels} for metric in METRICS}
    for expr in queries("exporter"):
        for metric, inside in re.findall(r"(kvledger_\w+)\{([^}]*)\}", expr):
            assert set(re.findall(r"(\w+)(?:=|!)", inside)) <= known[metric], expr


def test_every_metric_about_a_pool_is_shown_or_is_the_other_end_of_one_that_is():
    shown = set(find_names(" ".join(queries("exporter"))))
    others = {name.replace("_low_", "_high_") for name in shown} | {name.replace("_high_", "_low_") for name in shown}
    missing = set(METERED) - shown - others
    assert missing == {
        "kvledger_build_info",
        "kvledger_ledger_drawn",
        "kvledger_figure_low_bytes",
        "kvledger_figure_high_bytes",
        "kvledger_reservation_used_low_ratio",
        "kvledger_reservation_used_high_ratio",
    }


def test_a_metric_that_is_not_in_the_table_cannot_be_shown():
    panel = Panel(title="x", queries=(Query(expr="kvledger_no_such_thing"),), unit="short")
    with pytest.raises(KeyError, match="kvledger_no_such_thing"):
        make_dashboard(Dashboard(uid="x", title="x", description="", variables=(), panels=(panel,)), METERED)


@each
def test_the_same_dashboard_is_the_same_bytes(name):
    again = exporter_dashboard() if name == "exporter" else rules_dashboard()
    assert make_dashboard(again, METERED | RECORDS) == MADE[name]
