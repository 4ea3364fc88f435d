"""Hypothesis strategies for tests of kvledger and of code that builds on it.

Hypothesis is imported when a strategy is asked for, so the package itself does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvledger.errors import MissingExtra
from kvledger.ledger import Account, Ledger
from kvledger.pool.policy import Growth, Kind, Placement, Policy, Reservation
from kvledger.replay.settings import Settings
from kvledger.replay.workload import Workload

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["ledgers", "policies", "schedulers", "workloads"]


def ledgers(*, most_bytes: int = 2**40) -> SearchStrategy[Ledger]:
    """Draw ledgers that balance, with up to ``most_bytes`` in each account.

    Raises:
        MissingExtra: Hypothesis is not installed.
    """
    st = _strategies()

    def balanced(amounts: list[int]) -> Ledger:
        accounts: dict[str, Any] = {str(account): value for account, value in zip(Account, amounts, strict=True)}
        return Ledger(capacity=sum(amounts), **accounts).check()

    built: SearchStrategy[Ledger] = st.lists(
        st.integers(0, most_bytes), min_size=len(Account), max_size=len(Account)
    ).map(balanced)
    return built


def workloads(*, most_requests: int = 40, longest: int = 90, declared: bool = True) -> SearchStrategy[Workload]:
    """Draw workloads of one request up: bursts, gaps and idle stretches, prompts and outputs up to ``longest``.

    With ``declared``, some requests say max_tokens.

    Raises:
        MissingExtra: Hypothesis is not installed.
    """
    import numpy as np

    st = _strategies()
    gaps = st.sampled_from([0.0, 0.0, 0.3, 1.0, 7.5, 60.0])
    lengths = st.integers(1, longest)
    limits = st.sampled_from([0, 0, 5, 50]) if declared else st.just(0)

    def columns(rows: list[tuple[float, int, int, int]]) -> Workload:
        arrivals, prompts, outputs, limit = zip(*rows, strict=True)
        return Workload(
            arrival_seconds=np.cumsum(np.array(arrivals, np.float64)),
            prompt_tokens=np.array(prompts, np.int32),
            output_tokens=np.array(outputs, np.int32),
            max_tokens=np.array(limit, np.int32) if declared else None,
        ).check()

    built: SearchStrategy[Workload] = st.lists(
        st.tuples(gaps, lengths, lengths, limits), min_size=1, max_size=most_requests
    ).map(columns)
    return built


def policies(*kinds: Kind) -> SearchStrategy[Policy]:
    """Draw policies of the given kinds (all of them by default) with every setting they have.

    Raises:
        MissingExtra: Hypothesis is not installed.
    """
    st = _strategies()
    built: SearchStrategy[Policy] = st.builds(
        Policy,
        name=st.just("drawn"),
        kind=st.sampled_from(kinds or tuple(Kind)),
        reservation=st.sampled_from(Reservation),
        placement=st.sampled_from(Placement),
        growth=st.sampled_from(Growth),
        growth_step_tokens=st.sampled_from([1, 8, 32]),
        block_size=st.sampled_from([1, 2, 4, 16]),
        buffer_tokens=st.sampled_from([0, 0, 3]),
        granularity_tokens=st.sampled_from([1, 1, 8]),
        watermark_ratio=st.sampled_from([0.0, 0.0, 0.2]),
        full_sequence_must_fit=st.booleans(),
    )
    return built


def schedulers(*, longest: int = 200) -> SearchStrategy[Settings]:
    """Draw scheduler settings that chunk prompts, run out of seats, or do neither.

    Raises:
        MissingExtra: Hypothesis is not installed.
    """
    st = _strategies()
    built: SearchStrategy[Settings] = st.builds(
        Settings,
        max_model_len=st.sampled_from([longest // 3, longest // 2, longest]),
        max_num_seqs=st.sampled_from([1, 3, 16]),
        max_num_batched_tokens=st.sampled_from([1, 7, 64, 4096]),
    )
    return built


def _strategies() -> Any:
    try:
        from hypothesis import strategies
    except ImportError:
        raise MissingExtra(
            "this needs the package `hypothesis`, which is not installed",
            hint="pip install hypothesis",
            package="hypothesis",
        ) from None
    return strategies
