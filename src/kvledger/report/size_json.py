"""The answer of ``size`` as JSON: bytes are integers, and every block of numbers says how it is known."""

from __future__ import annotations

from typing import Any

import kvledger
from kvledger.engines.plan import Claim, Deployment, KvMemory, Plan
from kvledger.engines.size import SizeOutcome
from kvledger.engines.structure import Sheet, StructuralLedger
from kvledger.ledger import Accuracy
from kvledger.report.findings_json import findings_json
from kvledger.report.size import EngineAnswer, SizeReport, answer

__all__ = ["size_json"]

SCHEMA = "kvledger/size"
SCHEMA_VERSION = 1


def size_json(report: SizeReport) -> dict[str, Any]:
    """Return the object that ``size --json`` prints."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvledger_version": kvledger.__version__,
        "model": report.model,
        "gpu": None if report.gpu is None else {"name": report.gpu.name, "memory_bytes": report.gpu.memory_bytes},
        "engines": [_engine(one) for one in report.answers],
        "notes": list(report.notes),
        "findings": findings_json(report.findings),
    }
    if report.log is not None:
        check = report.log
        record["log"] = {
            "follows": check.follows,
            "printed_tokens": check.printed_tokens,
            "printed_concurrency": check.printed_concurrency,
            "predicted_tokens": list(check.predicted_tokens) if check.predicted_tokens else None,
            "blocks": check.blocks,
            "explanation": check.explanation,
            "accuracy": str(Accuracy.MEASURED),
        }
    return record


def _engine(one: EngineAnswer) -> dict[str, Any]:
    if one.outcome is None:
        return {
            "engine": one.engine,
            "version": one.version,
            "error": one.error.as_record() if one.error is not None else None,
        }
    return {"engine": one.engine, "version": one.version, "answer": answer(one.outcome), **_outcome(one.outcome)}


def _outcome(outcome: SizeOutcome) -> dict[str, Any]:
    accuracy = str(outcome.plan.accuracy)
    return {
        "settings": _settings(outcome.plan.deployment),
        "memory": _memory(outcome.memory),
        "model_cost": {
            "growth_bytes_per_token": outcome.growth_bytes,
            "fixed_bytes_per_sequence": outcome.fixed_bytes,
            "accuracy": str(Accuracy.DERIVED),
        },
        "plan": _plan(outcome.plan),
        "plan_low": _figures(outcome.low),
        "plan_high": _figures(outcome.high),
        "requests": [
            {
                "length_tokens": cost.length_tokens,
                "units": cost.units,
                "held_bytes": cost.held_bytes,
                "needed_bytes": cost.needed_bytes,
                "used_ratio": cost.used_ratio,
                "requests": cost.requests,
                "accuracy": accuracy,
            }
            for cost in outcome.costs
        ],
        "largest_max_model_len": outcome.largest_max_model_len,
        "request_limit": outcome.per_request_limit,
        "structure": _structure(outcome.structure, accuracy),
        "load": _structure(outcome.load, accuracy),
        "fitted": None
        if outcome.fitted is None
        else {
            "fit": str(outcome.fitted.fit),
            "value": outcome.fitted.value,
            "shorter_bytes": outcome.fitted.shorter_bytes,
            "shortened_requests": outcome.fitted.shortened_requests,
            "accuracy": str(outcome.fitted.accuracy),
            "formula": outcome.fitted.formula,
        },
    }


def _settings(deployment: Deployment) -> dict[str, Any]:
    names = (
        "device", "tp", "pp", "dcp", "pcp", "dp", "kv_dtype", "block_tokens", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "prefix_caching", "speculative_tokens",
    )  # fmt: skip
    return {name: getattr(deployment, name) for name in names} | {"options": dict(deployment.options)}


def _memory(memory: KvMemory) -> dict[str, Any]:
    return {
        "per_rank_bytes": list(memory.per_rank_bytes),
        "low_bytes": memory.low_bytes,
        "high_bytes": memory.high_bytes,
        "accuracy": str(memory.accuracy),
        "source": memory.source,
        "terms": [
            {
                "name": term.name,
                "value_bytes": term.value_bytes,
                "low_bytes": term.low_bytes,
                "high_bytes": term.high_bytes,
                "accuracy": str(term.accuracy),
                "why": term.why,
            }
            for term in memory.terms
        ],
    }


def _figures(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        "pools": [{"name": pool.name, "units": pool.units} for pool in plan.pools],
        "printed_tokens": plan.printed_tokens,
        "printed_concurrency": plan.printed_concurrency,
    }


def _plan(plan: Plan) -> dict[str, Any]:
    failure = plan.failure
    return {
        "accuracy": str(plan.accuracy),
        "pools": [
            {"name": p.name, "units": p.units, "unit": p.unit_name, "null_units": p.null_units} for p in plan.pools
        ],
        "claims": [
            {
                "name": claim.name,
                "kind": str(claim.kind),
                "pool": claim.pool,
                "layers": claim.layers,
                "unit_tokens": claim.unit_tokens,
                "window_tokens": claim.window_tokens,
                "reach_tokens": claim.reach_tokens,
                "fixed_units": claim.fixed_units + claim.extra_units,
                **_claimed(plan, claim),
            }
            for claim in plan.claims
        ],
        "ranks": [
            {
                "name": rank.name,
                "count": rank.count,
                "kv_bytes": rank.kv_bytes,
                "unit_bytes": dict(rank.unit_bytes),
            }
            for rank in plan.ranks
        ],
        "printed_tokens": plan.printed_tokens,
        "printed_concurrency": plan.printed_concurrency,
        "lines": [
            {"level": line.level, "text": line.text, "meaning": line.meaning, "accuracy": str(line.accuracy)}
            for line in plan.lines
        ],
        "failure": None
        if failure is None
        else {
            "text": failure.text,
            "needed_bytes": failure.needed_bytes,
            "available_bytes": failure.available_bytes,
            "largest_max_model_len": failure.largest_max_model_len,
        },
        "notes": list(plan.notes),
    }


def _claimed(plan: Plan, claim: Claim) -> dict[str, int | None]:
    """Return what a unit of a claim stores and pads, and what the longest request takes, on all ranks of a replica."""
    contents = [
        (rank.count, content) for rank in plan.ranks for content in rank.contents if content.claim == claim.name
    ]
    paddings = [(n, content.page_padding_bytes + content.layer_padding_bytes) for n, content in contents]
    longest, replicas = plan.deployment.max_model_len, plan.deployment.dp
    units = None if longest is None else claim.count_units(longest)
    unit_bytes = sum(rank.count * rank.unit_bytes.get(claim.pool, 0) for rank in plan.ranks)
    return {
        "content_bytes": sum(n * content.payload_bytes for n, content in contents) // replicas,
        "padding_bytes": sum(n * padding for n, padding in paddings) // replicas,
        "request_units": units,
        "request_bytes": None if units is None else units * unit_bytes // replicas,
    }


def _structure(structure: StructuralLedger | None, accuracy: str) -> dict[str, Any] | None:
    if structure is None:
        return None
    return {
        "length_tokens": structure.length_tokens,
        "requests": structure.requests,
        "moment": str(structure.moment),
        "accuracy": accuracy,
        "ranks": [_sheet(sheet) for sheet in structure.ranks],
        "deployment": _sheet(structure.deployment),
    }


def _sheet(sheet: Sheet) -> dict[str, Any]:
    return {
        "name": sheet.name,
        "ranks": sheet.ranks,
        "capacity_bytes": sheet.ledger.capacity,
        "accounts": {f"{account}_bytes": value for account, value in sheet.ledger.accounts().items()},
        "entries": [
            {"name": e.name, "account": str(e.account), "value_bytes": e.value_bytes, "why": e.why}
            for e in sheet.entries
        ],
        "unallocated_bytes": sheet.unallocated_bytes,
    }
