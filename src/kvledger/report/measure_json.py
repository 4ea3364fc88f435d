"""A measurement as the object that ``--json`` prints."""

from __future__ import annotations

from typing import Any

from kvledger.ledger import Account
from kvledger.measure.counterfactual import Counterfactual
from kvledger.measure.meter import Reading
from kvledger.measure.summary import EngineSummary, Traffic
from kvledger.report.findings_json import findings_json
from kvledger.report.measure import MeasureReport, SourceReport
from kvledger.report.measure_pools import pool_json
from kvledger.report.measure_sheet import sheet_json, span_json, timeline_json

__all__ = ["measure_json", "reading_json"]

SCHEMA = "kvledger/measure"
SCHEMA_VERSION = 1


def measure_json(report: MeasureReport) -> dict[str, Any]:
    """Return the object of a measurement; intervals are ``{"low": ..., "high": ...}``."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "sources": [_source(source) for source in report.sources],
        "notes": list(report.notes),
        "findings": findings_json(report.findings),
    }


def reading_json(reading: Reading) -> dict[str, Any]:
    """Return one reading: load, pool, ledger, figures."""
    return {
        "seconds": reading.seconds,
        "engine": reading.engine_index,
        "epoch": reading.epoch,
        "running": reading.running,
        "waiting": reading.waiting,
        "usage_ratio": reading.usage_ratio,
        "preemptions": reading.preemptions,
        "scheduling": reading.scheduling.value,
        "problem": reading.problem or None,
        "pool": _pool(reading),
        "tokens": _tokens(reading),
        "ledger": None if reading.sheet is None else sheet_json(reading.sheet),
    }


def _source(source: SourceReport) -> dict[str, Any]:
    return {
        "name": source.name,
        "samples": source.samples,
        "missed": source.missed,
        "last_error": source.last_error or None,
        "engines": [_engine(engine) for engine in source.engines],
        "pools": [pool_json(pool) for pool in source.pools],
    }


def _engine(engine: EngineSummary) -> dict[str, Any]:
    mean = engine.mean.mean_ratio() if engine.samples > engine.unread else None
    return {
        "engine": engine.engine_index,
        "model": engine.model,
        "samples": engine.samples,
        "unread": engine.unread,
        "problem": engine.problem or None,
        "restarts": engine.restarts,
        "verdict": {
            "diagnosis": engine.verdict.diagnosis.value,
            "sentence": engine.verdict.sentence,
            "advice": engine.verdict.advice,
        },
        "last": reading_json(engine.last),
        "peak": None if engine.peak is None else reading_json(engine.peak),
        "mean_ratio": {account.value: None if mean is None else mean[account] for account in Account},
        "internal_per_request_tokens": None
        if engine.internal_per_request_tokens is None
        else dict(zip(("low", "high"), engine.internal_per_request_tokens, strict=True)),
        "traffic": _traffic(engine.traffic),
        "timeline": timeline_json(engine.timeline),
        "reservation": None
        if engine.counterfactual is None
        else _counterfactual(engine.counterfactual, seconds=engine.compared.seconds),
    }


def _pool(reading: Reading) -> dict[str, Any] | None:
    shape = reading.shape
    if shape is None:
        return None
    pricing = shape.pricing
    return {
        "blocks": shape.blocks,
        "usable_blocks": shape.usable_blocks,
        "block_tokens": shape.block_tokens,
        "null_block": shape.null_block.value,
        "structure": shape.structure.value,
        "structure_source": shape.structure_source,
        "prefix_caching": shape.prefix_caching,
        "max_model_len": shape.max_model_len,
        "block_bytes": None if pricing is None else pricing.block_bytes,
        "bytes_source": None if pricing is None else pricing.source,
    }


def _tokens(reading: Reading) -> dict[str, Any] | None:
    balance = reading.balance
    if balance is None:
        return None
    return {
        "held": balance.held,
        "used": span_json(balance.used),
        "internal": span_json(balance.internal),
        "live": None if balance.live is None else span_json(balance.live),
        "shared_saving": span_json(balance.shared_saving),
        "preempted_requests": span_json(balance.preempted),
        "prefilling_requests": span_json(balance.prefilling),
        "causes": [cause.value for cause in balance.causes],
    }


def _traffic(traffic: Traffic) -> dict[str, Any]:
    return {
        "seconds": traffic.seconds,
        "finished": traffic.finished,
        "finished_per_second": traffic.finished_per_second,
        "prompt_tokens": traffic.prompt_tokens,
        "generated_tokens": traffic.generated_tokens,
        "preemptions": traffic.preemptions,
        "hit_ratio": traffic.hit_ratio,
        "mean_step_seconds": traffic.mean_step_seconds,
    }


def _counterfactual(found: Counterfactual, *, seconds: float) -> dict[str, Any]:
    tables = found.block_tables
    return {
        "seconds": seconds,
        "running": found.running,
        "block_tables_admit": tables.admitted.low,
        "block_tables": {
            "held_tokens": tables.reserved_tokens.low,
            "used_ratio": list(tables.used_ratio),
            "accuracy": tables.accuracy.value,
            "formula": tables.formula,
        },
        "times_more": found.times_more,
        "reservation_usable_ratio": found.reservation_usable_ratio,
        "product_ratio": None if found.product_ratio is None else list(found.product_ratio),
        "policies": [
            {
                "policy": item.policy,
                "reserved_tokens": span_json(item.reserved_tokens),
                "admitted": span_json(item.admitted),
                "used_ratio": list(item.used_ratio),
                "accuracy": item.accuracy.value,
                "formula": item.formula,
            }
            for item in found.alternatives
        ],
        "missing": list(found.missing),
    }
