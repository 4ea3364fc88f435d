"""The usual mitigations, each replayed on the same traffic: what it does to each waste, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvledger.errors import CapacityError
from kvledger.pool.policy import Kind, Placement, Policy
from kvledger.replay.outcome import Outcome
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.simulate import replay
from kvledger.replay.workload import Workload
from kvledger.units import agree, counted

__all__ = ["Mitigation", "mitigate"]

_RESTART_DOWN_SECONDS = 60.0
_BLOCK_SIZES = (16, 32, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mitigation:
    """One row of the mitigation table: the same traffic with one thing changed.

    ``change`` is what was changed; ``outcome`` what it did; ``price`` what it costs, with the numbers.
    """

    change: str
    outcome: Outcome
    price: str


Replay = Callable[[Policy, Settings], Outcome]


def mitigate(
    workload: Workload, policy: Policy, *, pool: Pool, settings: Settings, before: Outcome
) -> Iterator[Mitigation]:
    """Replay every mitigation of a contiguous policy.

    Args:
        workload: The traffic.
        policy: What the server does today; a policy that places extents.
        pool: Its memory.
        settings: Its scheduler.
        before: The outcome of ``policy`` itself.

    Yields:
        One row per mitigation, the cure last.
    """
    same = pool if pool.block_size else replace(pool, block_size=policy.block_size)

    def run(changed: Policy, scheduler: Settings) -> Outcome:
        return replay(workload, changed, pool=same, settings=scheduler)

    yield from _smaller_lengths(run, policy, settings)
    yield from _other_allocators(run, policy, settings)
    yield _bigger_buffer(run, policy, settings, before)
    yield _restarts(run, policy, settings, before)
    yield from _block_tables(run, policy, settings)


def _smaller_lengths(run: Replay, policy: Policy, settings: Settings) -> Iterator[Mitigation]:
    for divisor in (2, 4):
        length = settings.max_model_len // divisor
        if length < 2:
            return
        outcome = run(policy, replace(settings, max_model_len=length))
        rejected = sum(outcome.rejected.values())
        lost = (
            f"rejects {rejected:,} of {counted(outcome.requests, 'request')}, cuts the answers of {outcome.truncated:,}"
        )
        yield Mitigation(change=f"max_seq_len {length:,}", outcome=outcome, price=lost)


def _other_allocators(run: Replay, policy: Policy, settings: Settings) -> Iterator[Mitigation]:
    for placement in Placement:
        if placement is policy.placement:
            continue
        changed = replace(policy, placement=placement)
        what = "buddy allocator" if placement is Placement.BUDDY else f"{placement} fit"
        price = "rounds every extent up to a power of two" if placement is Placement.BUDDY else "none"
        yield Mitigation(change=what, outcome=run(changed, settings), price=price)


def _bigger_buffer(run: Replay, policy: Policy, settings: Settings, before: Outcome) -> Mitigation:
    buffer = policy.buffer_tokens + max(1, settings.max_model_len // 16)
    outcome = run(replace(policy, buffer_tokens=buffer), settings)
    lost = before.finished - outcome.finished
    price = f"{counted(buffer, 'more token')} held by each request" + (
        f"; {counted(lost, 'request')} no longer {agree(lost, 'fits', 'fit')}" if lost > 0 else ""
    )
    return Mitigation(change=f"buffer of {counted(buffer, 'token')}", outcome=outcome, price=price)


def _restarts(run: Replay, policy: Policy, settings: Settings, before: Outcome) -> Mitigation:
    """Restart every hour, or often enough for four restarts in a shorter run."""
    every = min(3600.0, max(before.makespan_seconds / 5, 2 * _RESTART_DOWN_SECONDS))
    outcome = run(policy, replace(settings, restart_every_seconds=every, restart_down_seconds=_RESTART_DOWN_SECONDS))
    price = (
        f"{counted(outcome.restarts, 'restart')} of {_RESTART_DOWN_SECONDS:.0f} s each (assumed); "
        f"{counted(outcome.recomputed_tokens, 'token')} computed again"
        if outcome.restarts
        else f"not reached: the traffic is served in {outcome.makespan_seconds:.0f} s"
    )
    return Mitigation(change=f"restart every {_span(every)}", outcome=outcome, price=price)


def _block_tables(run: Replay, policy: Policy, settings: Settings) -> Iterator[Mitigation]:
    for block in _BLOCK_SIZES:
        try:
            outcome = run(replace(policy, name=f"paged@{block}", kind=Kind.PAGED, block_size=block), settings)
        except CapacityError:
            return  # the pool has not even one block of this size, nor of a larger one
        price = f"attention must read through block tables; {counted(outcome.preemptions, 'preemption')}"
        yield Mitigation(change=f"block tables of {block}", outcome=outcome, price=price)


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
