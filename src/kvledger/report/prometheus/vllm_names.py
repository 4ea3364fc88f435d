"""How a Prometheus names the series of vLLM, and the labels by which rules keep its engines apart."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.measure.pool import Structure
from kvledger.report.prometheus.rules import HOST, label_as_number

__all__ = ["BY_ENGINE", "BY_HOST", "BY_WHOSE", "VllmNames"]

ENGINE = (*HOST, "engine")
WHOSE = (*ENGINE, "model_name")
BY_HOST, BY_ENGINE, BY_WHOSE = (f"({', '.join(names)})" for names in (HOST, ENGINE, WHOSE))


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmNames:
    """How this Prometheus names the series of vLLM, and what is assumed where a release does not say it."""

    prefix: str = "vllm:"
    max_model_len: int | None = None
    """Longest request before 0.26."""
    structure: Structure = Structure.UNKNOWN
    """How layers share blocks before 0.26."""

    def find(self, name: str, labels: str = "") -> str:
        """Return the PromQL of one series by engine; V0 has no label ``engine`` and another law."""
        inside = ", ".join(part for part in ('engine!=""', labels) if part)
        return f"sum by {BY_WHOSE} ({self.prefix}{name}{{{inside}}})"

    def read_config(self, label: str) -> str:
        """Return the PromQL of a number that stands in a label of the cache config, by engine."""
        number = label_as_number(f"{self.prefix}cache_config_info", label, keep=ENGINE)
        return f"0 * kvledger:running_requests + on {BY_ENGINE} group_left () {number}"

    def says(self, label: str, value: str) -> str:
        """Return the PromQL of the engines whose cache config says this, as 0."""
        info = f'{self.prefix}cache_config_info{{{label}="{value}"}}'
        return f"(0 * kvledger:running_requests and on {BY_ENGINE} {info})"
