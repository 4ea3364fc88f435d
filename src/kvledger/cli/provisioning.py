"""The files that `export` writes for Prometheus and Grafana."""

from __future__ import annotations

import re
from typing import Any

import kvledger
from kvledger.errors import UsageError
from kvledger.measure.pool import Structure
from kvledger.report.prometheus.rules import RuleGroup, write_rules
from kvledger.report.prometheus.sglang import sglang_rules
from kvledger.report.prometheus.vllm import vllm_rules
from kvledger.report.prometheus.vllm_names import VllmNames

__all__ = ["write_asked"]

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}[_:]")
_ABOUT = {
    "vllm": "The ledger of vLLM (V1) from its own metrics: docs/export.md says how far it goes.",
    "sglang": "The ledger of SGLang from its own metrics: docs/export.md says how far it goes.",
}


def write_asked(options: dict[str, Any]) -> str:
    """Return the file that was asked for."""
    return _rules(options)


def _rules(options: dict[str, Any]) -> str:
    engine = options["rules"]
    heading = (f"Made by kvledger {kvledger.__version__}.", _ABOUT[engine])
    return write_rules([_group(engine, options)], heading=heading)


def _group(engine: str, options: dict[str, Any]) -> RuleGroup:
    prefix = options["prefix"] or f"{engine}:"
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"`{prefix[:40]}` is no beginning of metric names", hint="give one such as `vllm:` or `vllm_`")
    if engine == "sglang":
        return sglang_rules(prefix=prefix)
    structure = Structure.ONE_GROUP if options["assume_one_table"] else Structure.UNKNOWN
    return vllm_rules(VllmNames(prefix=prefix, max_model_len=options["max_model_len"], structure=structure))
