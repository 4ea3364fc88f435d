"""A replay as JSON, field by field as the documentation lists them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import kvledger
from kvledger.ledger import Accuracy
from kvledger.replay.fit import ClockFit
from kvledger.replay.mitigation import Mitigation
from kvledger.replay.outcome import Latency, Outcome
from kvledger.report.findings_json import findings_json
from kvledger.report.layout_json import layout_json
from kvledger.report.lengths_json import lengths_json
from kvledger.report.replay import ReplayReport
from kvledger.report.replay_answer import answer
from kvledger.report.what_if import what_if_json
from kvledger.traces.lengths import tabulate_lengths

__all__ = ["replay_json"]

SCHEMA = "kvledger/replay"
SCHEMA_VERSION = 1


def replay_json(report: ReplayReport) -> dict[str, Any]:
    """Return the object that ``replay --json`` prints."""
    pool, settings, clock = report.pool, report.settings, report.settings.clock
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvledger_version": kvledger.__version__,
        "answer": answer(report),
        "trace": _trace(report),
        "pool": {
            "model": report.model,
            "bytes_per_token": pool.bytes_per_token,
            "memory_bytes": pool.memory_bytes,
            "capacity_tokens": pool.capacity_tokens,
            "num_blocks": pool.num_blocks,
        },
        "settings": {
            "max_model_len": settings.max_model_len,
            "max_model_len_origin": report.max_model_len_origin,
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "clock": {
                "name": clock.name,
                "base": clock.base,
                "a": clock.a,
                "b": clock.b,
                "c": clock.c,
                "d": clock.d,
                "block_overhead_tokens": clock.block_overhead_tokens,
                "fit": _fit(report.fit),
            },
            "restart_every_seconds": settings.restart_every_seconds,
            "restart_down_seconds": settings.restart_down_seconds,
        },
        "accuracy": {
            "lengths": str(report.trace.accuracy.prompts),
            "arrivals": str(report.trace.accuracy.arrivals),
            "ratios": str(Accuracy.DERIVED),
            "counts": str(Accuracy.DERIVED),
            "seconds": str(Accuracy.DERIVED if clock.name == "steps" else clock.accuracy),
        },
        "notes": list(report.notes),
        "policies": [
            {**_policy(outcome), "layouts": [layout_json(one) for one in report.layouts.get(outcome.policy, ())]}
            for outcome in report.outcomes
        ],
        "mitigations": {
            name: [_mitigation(row, report.outcome(name)) for row in rows] for name, rows in report.mitigations.items()
        },
        "what_ifs": _what_ifs(report) if report.what_ifs else None,
        "findings": findings_json(report.findings),
    }


def _what_ifs(report: ReplayReport) -> dict[str, Any]:
    known = report.trace.workload.content is not None
    return what_if_json(report.outcome(report.tried), report.what_ifs, content_known=known)


def _fit(fit: ClockFit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    record = {name: value for name, value in asdict(fit).items() if name != "clock"}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in record.items()}


def _trace(report: ReplayReport) -> dict[str, Any]:
    trace = report.trace
    workload = trace.workload
    return {
        "source": report.source,
        "format": trace.format.name,
        "format_sentence": trace.format.sentence,
        "requests": len(workload),
        "sequences": workload.sequences,
        "rows_read": trace.rows_read,
        "dropped": dict(trace.dropped),
        "adjusted": dict(trace.adjusted),
        "span_seconds": workload.span_seconds,
        "longest_tokens": workload.longest_tokens,
        "lengths": lengths_json(tabulate_lengths(workload)) if len(workload) else None,
        "notes": list(trace.notes),
    }


def _policy(outcome: Outcome) -> dict[str, Any]:
    record = {
        name: getattr(outcome, name)
        for name in (
            "policy", "meaning", "capacity_bytes", "unit_tokens", "requests", "sequences", "rejected", "truncated",
            "finished",
            "prompt_tokens", "output_tokens", "steps", "preemptions", "recomputed_tokens", "copied_tokens", "restarts",
            "refused_while_free", "makespan_seconds", "busy_seconds", "saturated_seconds", "down_seconds",
            "mean_running", "saturated_running", "peak_running", "peak_waiting",
        )
    }  # fmt: skip
    record["mean_ratio"] = {str(k): v for k, v in outcome.mean_ratio.items()}
    record["saturated_ratio"] = {str(k): v for k, v in outcome.saturated_ratio.items()}
    record["memo"] = {
        "reserved_never_used": outcome.never_used_ratio,
        "saturated_reserved_never_used": outcome.saturated_never_used_ratio,
        "shared_saving": outcome.shared_saving_ratio,
        "stale": outcome.stale_ratio,
    }
    record["paper_ratio"] = asdict(outcome.paper_ratio)
    record["factors"] = {**asdict(outcome.factors), "product": outcome.factors.product}
    prefix = outcome.prefix
    record["sharing"] = asdict(outcome.sharing) if outcome.sharing else None
    record["swap"] = asdict(outcome.swap) if outcome.swap else None
    record["pools"] = [asdict(use) for use in outcome.pools]
    record["prefix"] = {**asdict(prefix), "hit_ratio": prefix.hit_ratio} if prefix else None
    record["latency_seconds"] = {
        name: _latency(getattr(outcome, name)) for name in ("queue", "first_token", "end_to_end")
    }
    record["timeline"] = [
        {**asdict(point), "ratio": {str(k): v for k, v in point.ratio.items()}} for point in outcome.timeline
    ]
    return record


def _latency(latency: Latency | None) -> dict[str, Any] | None:
    return asdict(latency) if latency else None


def _mitigation(row: Mitigation, before: Outcome) -> dict[str, Any]:
    after = row.outcome
    return {
        "change": row.change,
        "price": row.price,
        "saturated_ratio": {str(k): v for k, v in after.saturated_ratio.items()},
        "headline_ratio": {str(k): v for k, v in after.headline_ratio.items()},
        "effect": {str(k): v - before.headline_ratio[k] for k, v in after.headline_ratio.items()},
        "mean_running": after.mean_running,
        "saturated_running": after.saturated_running,
        "rejected": after.rejected,
        "truncated": after.truncated,
        "preemptions": after.preemptions,
        "restarts": after.restarts,
        "recomputed_tokens": after.recomputed_tokens,
        "makespan_seconds": after.makespan_seconds,
    }
