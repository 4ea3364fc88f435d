"""From a replay to its findings: which replays may run as proofs, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvledger.cli.trying import Change, TryContext, scenario_of
from kvledger.errors import Error
from kvledger.findings.evidence import Prover, ReplayCase
from kvledger.findings.finding import FindingsReport
from kvledger.findings.search import find_in_replay
from kvledger.pool.policy import Policy
from kvledger.replay.outcome import Outcome
from kvledger.replay.what_if import Scenario, Setting
from kvledger.replay.workload import Workload

__all__ = ["MOST_REQUESTS", "Proofs", "find"]

MOST_REQUESTS = 100_000
"""Requests up to which proofs are replayed without being asked for."""
Run = Callable[[Workload, Scenario], Outcome]


class Proofs:
    """The values of ``--findings``."""

    AUTO = "auto"
    ALL = "all"
    OFF = "off"


def find(
    asked: str, workload: Workload, context: TryContext, replayed: Sequence[tuple[Policy, Outcome]], *, run: Run
) -> FindingsReport | None:
    """Look at every policy that was replayed; None when nothing was asked for.

    ``auto`` replays proofs for at most `MOST_REQUESTS` requests, and with a prefix cache only where one was replayed
    already: its kernel takes a compilation of its own.
    """
    if asked == Proofs.OFF:
        return None
    caching = any(policy.prefix_caching for policy, _ in replayed)
    prover = Prover(run=_allow(asked, workload, run, caching=caching))
    known = [(replace(context.base, policy=policy), outcome) for policy, outcome in replayed]
    cases = [
        ReplayCase(
            workload=workload,
            scenario=scenario,
            outcome=outcome,
            known=known,
            prover=prover,
            recast=lambda scenario, dtype: _recast(context, scenario, dtype),
        )
        for scenario, outcome in known
    ]
    return find_in_replay(cases, prover=prover)


def _allow(
    asked: str, workload: Workload, run: Run, *, caching: bool
) -> Callable[[Workload, Scenario], Outcome | None]:
    def prove(traffic: Workload, scenario: Scenario) -> Outcome | None:
        costly = len(workload) > MOST_REQUESTS or (scenario.policy.prefix_caching and not caching)
        if asked == Proofs.AUTO and costly:
            return None
        return run(traffic, scenario)

    return prove


def _recast(context: TryContext, scenario: Scenario, dtype: str) -> Scenario | None:
    try:
        return scenario_of(Change(Setting.KV_DTYPE, dtype), replace(context, base=scenario))
    except Error:  # no model, or one whose cache has no such dtype
        return None
