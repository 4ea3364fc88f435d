"""Small replays whose ledgers were computed by hand: one byte a token, one second a step."""

from __future__ import annotations

import numpy as np

from kvledger.ledger import Account
from kvledger.pool import Policy, parse_policy
from kvledger.replay import Pool, Settings, Workload, replay, replay_plainly

ORDER = list(Account)
SHOWN = (Account.USED, Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.FREE)


def workload(*requests: tuple[float, ...]) -> Workload:
    """Return requests given as (arrival, prompt, output) or (arrival, prompt, output, max_tokens)."""
    rows = [(*request, 0)[:4] for request in requests]
    arrivals, prompts, outputs, limits = zip(*rows, strict=True)
    return Workload(
        arrival_seconds=np.array(arrivals, np.float64),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(outputs, np.int32),
        max_tokens=np.array(limits, np.int32),
    ).check()


def run(requests, policy, *, tokens, base: Policy | None = None, **settings):
    """Replay three times (with rows, fast, plainly); return the outcome and the rows of used ... free."""
    traffic = workload(*requests)
    pool = tokens if isinstance(tokens, Pool) else Pool(bytes_per_token=1, capacity_tokens=tokens)
    scheduler = Settings(**({"max_model_len": 8} | settings))
    parsed = parse_policy(policy, base=base)
    chunks = []
    outcome = replay(traffic, parsed, pool=pool, settings=scheduler, series=chunks.append)
    accounts = np.concatenate([chunk.accounts for chunk in chunks])
    for other in (replay(traffic, parsed, pool=pool, settings=scheduler),
                  replay_plainly(traffic, parsed, pool=pool, settings=scheduler)):  # fmt: skip
        assert_equal(other, outcome)
    return outcome, [[int(row[ORDER.index(account)]) for account in SHOWN] for row in accounts]


EXACT = (
    "policy", "meaning", "capacity_bytes", "unit_tokens", "requests", "rejected", "truncated", "finished",
    "prompt_tokens", "output_tokens", "steps", "preemptions", "recomputed_tokens", "copied_tokens", "restarts",
    "refused_while_free", "makespan_seconds", "down_seconds", "peak_running", "peak_waiting", "queue", "first_token",
    "end_to_end",
)  # fmt: skip
CLOSE = ("busy_seconds", "saturated_seconds", "mean_running", "saturated_running", "never_used_ratio",
         "saturated_never_used_ratio")  # fmt: skip


def assert_equal(one, other):
    """Assert that two outcomes are the same: counts and times exactly, sums up to their rounding."""
    for name in EXACT:
        assert getattr(one, name) == getattr(other, name), name
    for name in CLOSE:
        assert np.isclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9), name
    for name in ("mean_ratio", "saturated_ratio"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert np.allclose([ours[a] for a in Account], [theirs[a] for a in Account], rtol=0, atol=1e-9), name
    np.testing.assert_array_equal(one.latencies, other.latencies)
    assert len(one.timeline) == len(other.timeline)
    for ours, theirs in zip(one.timeline, other.timeline, strict=True):
        for name in ("start_seconds", "steps", "peak_used_ratio", "peak_held_ratio", "peak_external_ratio",
                     "peak_running", "peak_waiting", "preemptions"):  # fmt: skip
            assert getattr(ours, name) == getattr(theirs, name), name
        assert np.isclose(ours.seconds, theirs.seconds)
        assert np.allclose([ours.ratio[a] for a in Account], [theirs.ratio[a] for a in Account], rtol=0, atol=1e-9)
