"""Seeded traffic of thousands of requests, for what hypothesis draws too small."""

from __future__ import annotations

import numpy as np

from kvledger.replay import Workload


def traffic(requests: int, *, seed: int = 0, rate: float = 40.0, longest: int = 400) -> Workload:
    """Return requests with skewed lengths in bursts, one in four of which declares max_tokens."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1 / rate, requests) * random.choice([0.0, 1.0, 3.0], requests)
    outputs = np.minimum(random.lognormal(3.5, 1.0, requests).astype(np.int32) + 1, longest)
    declared = np.where(random.random(requests) < 0.25, outputs + random.integers(0, 100, requests), 0)
    return Workload(
        arrival_seconds=np.cumsum(gaps),
        prompt_tokens=np.minimum(random.lognormal(4.0, 1.0, requests).astype(np.int32) + 1, longest),
        output_tokens=outputs,
        max_tokens=declared.astype(np.int32),
    ).check()
