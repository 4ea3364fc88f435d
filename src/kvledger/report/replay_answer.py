"""What a replay found, in words."""

from __future__ import annotations

from kvledger.ledger import Account
from kvledger.replay.outcome import Outcome
from kvledger.report.replay import ReplayReport
from kvledger.report.replay_samples import what_runs
from kvledger.report.tables import percent
from kvledger.units import counted

__all__ = ["answer"]


def answer(report: ReplayReport) -> str:
    """Say in words what the replay found."""
    before, after = report.reserving, report.paged
    if not any(o.finished for o in report.outcomes):
        count = len(report.trace.workload)
        if count == 1:
            return "The one request cannot be served in this pool; the reason is below."
        return f"None of these {count:,} requests can be served in this pool; the reasons are below."
    if before is None and after is None:
        best = max(report.outcomes, key=lambda o: o.utilisation)
        return f"`{best.policy}` fills {percent(best.utilisation)} of the pool with tokens in use."
    if before is None or after is None:
        one = before or after
        assert one is not None
        return (
            f"`{one.policy}` fills {percent(one.utilisation)} of the pool with tokens in use{_held_up(one)}."
            f"{_turned_away(one)}"
        )
    for one, other in ((before, after), (after, before)):
        if not one.finished:
            return (
                f"`{one.policy}` can serve none of these requests in this pool; "
                f"`{other.policy}` serves {other.finished:,} of {other.requests:,}."
            )
    seats = "".join(_out_of_seats(one, report.settings.max_num_seqs) for one in (before, after))
    return _compared(before, after) + seats + _turned_away(before) + _turned_away(after)


def _compared(before: Outcome, after: Outcome) -> str:
    """Compare two policies that both served something; only what both know while requests wait is set in ratio."""
    if before.held_up and after.held_up:
        times, what = after.saturated_running / before.saturated_running, what_runs(after)
        return (
            f"`{before.policy}` runs {before.saturated_running:.1f} {what} at a time and fills "
            f"{percent(before.utilisation)} of the pool with tokens in use; `{after.policy}` runs "
            f"{after.saturated_running:.1f} and fills {percent(after.utilisation)}: {times:.1f} times the {what} in "
            f"the same memory."
        )
    if before.held_up or after.held_up:
        held_up, free = (before, after) if before.held_up else (after, before)
        return (
            f"`{held_up.policy}` lets requests wait {percent(held_up.saturated_seconds / held_up.busy_seconds)} of the "
            f"time it runs, with {percent(held_up.utilisation)} of the pool in use; under `{free.policy}` "
            f"{_rarely(free)} waits: it keeps {percent(_held(free))} of the pool from others to store "
            f"{percent(free.utilisation)}."
        )
    return (
        f"Requests {'hardly ever' if before.saturated_seconds or after.saturated_seconds else 'never'} waited. "
        f"`{before.policy}` keeps {percent(_held(before))} of the pool from "
        f"others to store {percent(before.utilisation)}; `{after.policy}` keeps {percent(_held(after))} "
        f"to store {percent(after.utilisation)}."
    )


def _out_of_seats(outcome: Outcome, max_num_seqs: int) -> str:
    """Say so when requests wait because of max_num_seqs: then more memory would change nothing."""
    if outcome.saturated_running < 0.99 * max_num_seqs:
        return ""
    return f" What holds `{outcome.policy}` back is max_num_seqs {max_num_seqs:,}, not memory."


def _turned_away(outcome: Outcome) -> str:
    count = sum(outcome.rejected.values())
    return f" `{outcome.policy}` rejects {count:,} of {counted(outcome.requests, 'request')}." if count else ""


def _held_up(outcome: Outcome) -> str:
    return " while requests wait" if outcome.held_up else f"; {_rarely(outcome)} ever waited"


def _rarely(outcome: Outcome) -> str:
    return "hardly a request" if outcome.saturated_seconds else "no request"


def _held(outcome: Outcome) -> float:
    ratio = outcome.headline_ratio
    return ratio[Account.USED] + ratio[Account.RESERVED] + ratio[Account.INTERNAL]
