"""Findings of small replays, by code."""

from __future__ import annotations

from dataclasses import replace

from kvledger.findings.evidence import Prover, ReplayCase
from kvledger.findings.search import find_in_replay
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, parse_clock, replay
from kvledger.replay.what_if import Scenario
from tests.replay.by_hand import workload

CLOCK = parse_clock("0.01,1e-4,1e-4,0")


def scenario(policy, *, tokens=1000, base=None, **settings):
    """Return one way to serve: one byte a token."""
    pool = tokens if isinstance(tokens, Pool) else Pool(bytes_per_token=1, capacity_tokens=tokens)
    limits = {"max_model_len": 400, "clock": CLOCK} | settings
    return Scenario(policy=parse_policy(policy, base=base), pool=pool, settings=Settings(**limits))


def run(traffic, case):
    return replay(traffic, case.policy, pool=case.pool, settings=case.settings)


def half_bytes(case, dtype):
    """Return the scenario with keys and values in half the bytes (of two a token)."""
    assert dtype == "fp8"
    pool = case.pool
    if pool.bytes_per_token < 2:
        return None
    size = pool.total_bytes(case.policy)
    return replace(case, pool=replace(pool, bytes_per_token=pool.bytes_per_token // 2, memory_bytes=size,
                                      capacity_tokens=None, num_blocks=None))  # fmt: skip


def report_on(traffic, *cases, proofs=True):
    """Replay the cases and look at all of them."""
    prover = Prover(run=run if proofs else None)
    known = [(case, run(traffic, case)) for case in cases]
    seen = [
        ReplayCase(workload=traffic, scenario=case, outcome=outcome, known=known, prover=prover, recast=half_bytes)
        for case, outcome in known
    ]
    return find_in_replay(seen, prover=prover)


def find(traffic, *cases):
    """Return the findings by code; of one code the first."""
    found = {}
    for finding in report_on(traffic, *cases).findings:
        found.setdefault(finding.code, finding)
    return found


def same(count, prompt, output, *, every=0.0, limit=0):
    """Return equal requests."""
    return workload(*[(every * i, prompt, output, limit) for i in range(count)])
