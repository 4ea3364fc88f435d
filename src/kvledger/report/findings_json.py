"""Findings as the object under ``findings``."""

from __future__ import annotations

from typing import Any

from kvledger.findings.finding import Finding, FindingsReport, Remedy
from kvledger.measure.figure import Figure

__all__ = ["findings_json"]


def findings_json(report: FindingsReport | None) -> dict[str, Any]:
    """Return everything that was found, what gives back most first."""
    report = report or FindingsReport(findings=())
    return {"told": [_finding(one) for one in report.findings], "unproved": list(report.unproved)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "title": finding.title,
        "subject": finding.subject,
        "sentence": finding.sentence,
        "returned_bytes": finding.returned if finding.size.unit == "bytes" else None,
        "size": _figure(finding.size),
        "remedies": [_remedy(one) for one in finding.remedies],
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "setting": remedy.setting,
        "returned": _figure(remedy.returned),
        "trade": remedy.trade.value,
        "proof": remedy.proof,
        "worse": remedy.worse or None,
        "gain": remedy.gain or None,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "low": figure.low,
        "high": figure.high,
        "unit": figure.unit,
        "accuracy": figure.accuracy.value,
        "formula": figure.formula,
    }
