"""Look for everything in one input, and rank it by the memory it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvledger.findings.catalogue import RULES
from kvledger.findings.evidence import LogCase, MeasureCase, PoolsCase, Prover, ReplayCase, SizeCase
from kvledger.findings.finding import Finding, FindingsReport
from kvledger.findings.rule import Rule

__all__ = ["find_in_log", "find_in_measure", "find_in_pools", "find_in_replay", "find_in_size"]


def find_in_replay(cases: Sequence[ReplayCase], *, prover: Prover) -> FindingsReport:
    """Look at every policy of a replay; ``prover`` is the one that the cases share."""
    found: list[Finding] = []
    unproved: list[str] = []
    for case in cases:
        for rule in RULES:
            before = prover.refused
            found += rule.in_replay(case)
            if prover.refused > before:
                unproved.append(rule.code)
    return FindingsReport.ranked(found, unproved)


def find_in_measure(cases: Sequence[MeasureCase]) -> FindingsReport:
    """Look at every engine of a measurement."""
    return _gather(lambda rule: (finding for case in cases for finding in rule.in_measure(case)))


def find_in_pools(cases: Sequence[PoolsCase]) -> FindingsReport:
    """Look at one instant of engines that tell their pools themselves."""
    return _gather(lambda rule: (finding for case in cases for finding in rule.in_pools(case)))


def find_in_log(cases: Sequence[LogCase]) -> FindingsReport:
    """Look at every engine of a log."""
    return _gather(lambda rule: (finding for case in cases for finding in rule.in_log(case)))


def find_in_size(cases: Sequence[SizeCase]) -> FindingsReport:
    """Look at the plan of every engine."""
    return _gather(lambda rule: (finding for case in cases for finding in rule.in_size(case)))


def _gather(look: Callable[[Rule], Iterator[Finding]]) -> FindingsReport:
    return FindingsReport.ranked([finding for rule in RULES for finding in look(rule)])
