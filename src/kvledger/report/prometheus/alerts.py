"""Alerts over the metrics of the exporter and over the recording rules: what deserves a look, and what to do then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["EXPORTER_ALERTS", "RULE_ALERTS", "Alert", "write_alerts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert; ``summary`` and ``advice`` are templates of Prometheus."""

    name: str
    expr: str
    lasting: str
    """How long it must hold."""
    severity: str
    summary: str
    advice: str


_WHOSE = "{{ $labels.source }}, engine {{ $labels.engine }}"
_SERVER = "{{ $labels.instance }}, engine {{ $labels.engine }}"
_PERCENT = "{{ $value | humanizePercentage }}"
_HELD = 'sum without (figure, accuracy) (kvledger_figure_low_ratio{figure="held"})'
_INTERNAL = 'sum without (figure, accuracy) (kvledger_figure_low_ratio{figure="internal"})'

_FULL = "The pool holds " + _PERCENT + " and requests wait"
_FULL_ADVICE = (
    "More memory, a smaller KV dtype or fewer tokens a request would admit them; "
    "`kvledger measure` says which of these gives back most."
)
_PREEMPTING = "Requests lose what they computed"
_PREEMPTING_ADVICE = "Fewer requests at a time (`max_num_seqs`), or a watermark, spares computing it twice."
_TAILS = "At least " + _PERCENT + " of what requests hold holds nothing"
_TAILS_ADVICE = "Smaller blocks give it back; so do longer requests."

EXPORTER_ALERTS: tuple[Alert, ...] = (
    Alert(
        name="KvledgerSourceDown",
        expr="kvledger_source_up == 0",
        lasting="5m",
        severity="warning",
        summary="{{ $labels.source }} does not answer kvledger",
        advice="The exporter says why on stderr; the server may be up all the same.",
    ),
    Alert(
        name="KvledgerNoLedger",
        expr="kvledger_ledger_drawn == 0",
        lasting="15m",
        severity="info",
        summary=f"{_WHOSE}: answers, but has no balance sheet",
        advice="`kvledger measure` says what is missing.",
    ),
    Alert(
        name="KvledgerBooksOpen",
        expr="count without (account) (kvledger_pool_bytes or kvledger_pool_tokens) != 7",
        lasting="5m",
        severity="critical",
        summary=f"{_WHOSE}: not every account is exported",
        advice="Something drops series on the way; the accounts sum to the pool only together.",
    ),
    Alert(
        name="KvledgerPoolFull",
        expr=f"{_HELD} > 0.95 and kvledger_waiting_requests > 0",
        lasting="10m",
        severity="warning",
        summary=f"{_WHOSE}: {_FULL}",
        advice=_FULL_ADVICE,
    ),
    Alert(
        name="KvledgerPreempting",
        expr="rate(kvledger_preemptions_total[10m]) * 60 > 1",
        lasting="10m",
        severity="warning",
        summary=f"{_WHOSE}: {_PREEMPTING}, {{{{ $value | humanize }}}} a minute",
        advice=_PREEMPTING_ADVICE,
    ),
    Alert(
        name="KvledgerTails",
        expr=f"avg_over_time(({_INTERNAL} / ({_HELD} > 0))[30m:1m]) > 0.25",
        lasting="30m",
        severity="info",
        summary=f"{_WHOSE}: {_TAILS}",
        advice=_TAILS_ADVICE,
    ),
)

_SLOTS = "kvledger:held_tokens / ((kvledger:pool_blocks - 1) * kvledger:block_tokens or kvledger:capacity_tokens)"

RULE_ALERTS: tuple[Alert, ...] = (
    Alert(
        name="KvledgerPoolFull",
        expr=f"{_SLOTS} > 0.95 and kvledger:waiting_requests > 0",
        lasting="10m",
        severity="warning",
        summary=f"{_SERVER}: {_FULL}",
        advice=_FULL_ADVICE,
    ),
    Alert(
        name="KvledgerTails",
        expr="avg_over_time((kvledger:internal_low_tokens / (kvledger:held_tokens > 0))[30m:1m]) > 0.25",
        lasting="30m",
        severity="info",
        summary=f"{_SERVER}: {_TAILS}",
        advice=_TAILS_ADVICE,
    ),
    Alert(
        name="KvledgerNoLedger",
        expr="kvledger:running_requests unless kvledger:held_tokens",
        lasting="15m",
        severity="info",
        summary=f"{_SERVER}: runs requests, but what they hold is not known",
        advice="`kvledger measure` says what is missing.",
    ),
)


def write_alerts(alerts: Sequence[Alert], *, group: str, heading: Sequence[str]) -> str:
    """Return a file of alerting rules; texts are quoted as JSON, which is YAML."""
    lines = [*(f"# {line}".rstrip() for line in heading), "groups:", f"  - name: {group}", "    rules:"]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.advice)}",
        ]
    return "\n".join(lines) + "\n"
