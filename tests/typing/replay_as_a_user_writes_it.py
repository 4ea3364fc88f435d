"""A replay as a user writes it; mypy reads this file in `test_types.py`."""

from collections.abc import Mapping

import numpy as np

from kvledger.ledger import Account, Ledger, LedgerIntegral
from kvledger.pool import Kind, Policy, parse_policies
from kvledger.replay import Clock, Outcome, Pool, Settings, Workload, parse_clock, replay


def replay_everything(memory_bytes: int) -> dict[str, Outcome]:
    workload = Workload(
        arrival_seconds=np.array([0.0, 0.5]),
        prompt_tokens=np.array([10, 20], np.int32),
        output_tokens=np.array([5, 5], np.int32),
    ).check()
    clock: Clock = parse_clock("0.01,1e-5,1e-5,1e-9")
    settings = Settings(max_model_len=4096, clock=clock)
    pool = Pool(bytes_per_token=131_072, memory_bytes=memory_bytes)
    policies: list[Policy] = parse_policies("max,paged@32")
    assert policies[1].kind is Kind.PAGED
    return {p.name: replay(workload, p, pool=pool, settings=settings) for p in policies}


def used(outcome: Outcome) -> float:
    ratios: Mapping[Account, float] = outcome.mean_ratio
    latency = outcome.end_to_end
    return ratios[Account.USED] if latency is None else latency.p99


def mean(ledgers: list[Ledger]) -> float:
    integral = LedgerIntegral()
    for ledger in ledgers:
        integral.add(ledger.check(), seconds=1.0)
    return integral.mean_ratio()[Account.FREE]
