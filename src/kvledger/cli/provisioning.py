"""The files that `export` writes for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from typing import Any

import kvledger
from kvledger.errors import UsageError
from kvledger.measure.pool import Structure
from kvledger.report.prometheus.alerts import EXPORTER_ALERTS, RULE_ALERTS, write_alerts
from kvledger.report.prometheus.dashboard import make_dashboard
from kvledger.report.prometheus.panels import exporter_dashboard, rules_dashboard
from kvledger.report.prometheus.rules import RuleGroup, write_rules
from kvledger.report.prometheus.sglang import sglang_rules
from kvledger.report.prometheus.table import METRICS
from kvledger.report.prometheus.vllm import vllm_rules
from kvledger.report.prometheus.vllm_names import VllmNames

__all__ = ["write_asked"]

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}[_:]")
_ABOUT = {
    "vllm": "The ledger of vLLM (V1) from its own metrics: docs/export.md says how far it goes.",
    "sglang": "The ledger of SGLang from its own metrics: docs/export.md says how far it goes.",
}


_SCRAPE = """\
# Part of prometheus.yml: scrapes `kvledger export`. A scrape asks every server, and waits for the slowest.
scrape_configs:
  - job_name: kvledger
    scrape_interval: 15s
    scrape_timeout: 10s
    static_configs:
      - targets: [{target}]
# rule_files: [kvledger-alerts.yml]
"""


def write_asked(options: dict[str, Any]) -> str:
    """Return the file that was asked for."""
    heading = (f"Made by kvledger {kvledger.__version__}.",)
    if options["rules"] is not None:
        engine = options["rules"]
        return write_rules([_group(engine, options)], heading=(*heading, _ABOUT[engine]))
    if options["alerts"] is not None:
        alerts = EXPORTER_ALERTS if options["alerts"] == "exporter" else RULE_ALERTS
        return write_alerts(alerts, group=f"kvledger-{options['alerts']}-alerts", heading=heading)
    if options["dashboard"] is not None:
        return json.dumps(_dashboard(options["dashboard"]), indent=2) + "\n"
    host = options["host"]
    return _SCRAPE.format(
        target=json.dumps(f"[{host}]:{options['port']}" if ":" in host else f"{host}:{options['port']}")
    )


def _dashboard(kind: str) -> dict[str, Any]:
    if kind == "exporter":
        return make_dashboard(exporter_dashboard(), {metric.name: metric.meaning for metric in METRICS})
    groups = (sglang_rules(), vllm_rules(VllmNames()))
    return make_dashboard(rules_dashboard(), {rule.record: rule.meaning for group in groups for rule in group.rules})


def _group(engine: str, options: dict[str, Any]) -> RuleGroup:
    prefix = options["prefix"] or f"{engine}:"
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"`{prefix[:40]}` is no beginning of metric names", hint="give one such as `vllm:` or `vllm_`")
    if engine == "sglang":
        return sglang_rules(prefix=prefix)
    structure = Structure.ONE_GROUP if options["assume_one_table"] else Structure.UNKNOWN
    return vllm_rules(VllmNames(prefix=prefix, max_model_len=options["max_model_len"], structure=structure))
