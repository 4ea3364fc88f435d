"""Finding the instants worth looking at: a second replay that stops where the first was fullest and wasted most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvledger.ledger import Account
from kvledger.pool.policy import Kind, Policy
from kvledger.replay.outcome import Outcome
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.simulate import Machine, assemble
from kvledger.replay.snapshot import Moment, Snapshot
from kvledger.replay.workload import Workload

__all__ = ["take_snapshots"]

_LOOKS = 256
"""Instants that are looked at inside the stretch of the timeline that is fullest, or wastes most."""


@dataclass(slots=True)
class _Stretch:
    """Steps ``first`` to ``last`` of the replay, and what is looked for in them."""

    moment: Moment
    first: int
    last: int
    best: Snapshot | None = None
    most: int = -1


def take_snapshots(
    workload: Workload, policy: Policy, *, pool: Pool, settings: Settings, outcome: Outcome
) -> list[Snapshot]:
    """Replay again up to the stretches of the timeline that are fullest, waste most and have most holes.

    In each, up to 256 instants between two steps are looked at, evenly spaced, and the one with most is taken. The
    pages of a radix tree, and of two pools, have no numbers: then there is no snapshot.

    Args:
        workload: The requests of ``outcome``.
        policy: Its policy.
        pool: Its memory.
        settings: Its scheduler.
        outcome: What the first replay found.
    """
    stretches = _stretches(outcome)
    if policy.is_radix or (policy.kind is Kind.PAGED and policy.has_two_pools):
        return []
    machine = assemble(workload, policy, pool=pool, settings=settings)
    if not stretches:
        return []
    longest = max(point.steps for point in outcome.timeline)
    for first, last in dict.fromkeys((one.first, one.last) for one in stretches):
        here = [one for one in stretches if one.first == first]
        _go_to(machine, first, longest)
        _look(machine, here, last)
    order = list(Moment)
    return [one.best for one in sorted(stretches, key=lambda one: order.index(one.moment)) if one.best is not None]


def _stretches(outcome: Outcome) -> list[_Stretch]:
    """Return the stretches to look into, in the order of time."""
    points = outcome.timeline
    if not points:
        return []
    ends = np.cumsum([point.steps for point in points])
    held = [(point.peak_held_ratio, point.peak_used_ratio) for point in points]
    waste = [
        point.ratio[Account.RESERVED] + point.ratio[Account.INTERNAL] + point.ratio[Account.EXTERNAL]
        for point in points
    ]
    chosen = {
        Moment.FULLEST: max(range(len(points)), key=lambda i: held[i]),
        Moment.MOST_WASTE: max(range(len(points)), key=lambda i: waste[i]),
    }
    holes = max(range(len(points)), key=lambda i: points[i].peak_external_ratio)
    if points[holes].peak_external_ratio > 0:
        chosen[Moment.MOST_HOLES] = holes
    found = [
        _Stretch(moment=moment, first=int(ends[i]) - points[i].steps, last=int(ends[i])) for moment, i in chosen.items()
    ]
    return sorted(found, key=lambda one: one.first)


def _go_to(machine: Machine, step: int, longest: int) -> None:
    """Go on until ``step`` steps are taken.

    Steps that are taken at once are at most ``longest``, a bucket of the timeline, and never go over its edge; ``step``
    is such an edge.
    """
    from kvledger.replay import _layout as at

    ints = machine.state.core.ints
    while (left := step - int(ints[at.I_STEPS])) > 0:
        if machine.advance(max(1, left // longest)) == at.DONE:
            return


def _look(machine: Machine, stretches: Sequence[_Stretch], last: int) -> None:
    from kvledger.replay import _layout as at
    from kvledger.replay._places import external_units, take_snapshot

    ints = machine.state.core.ints
    ints[at.I_FAST] = 0
    every = max(1, (last - int(ints[at.I_STEPS])) // _LOOKS)
    measures: dict[Moment, Callable[[], int]] = {
        Moment.FULLEST: lambda: _held_and_used(machine),
        Moment.MOST_WASTE: lambda: _waste(machine),
        Moment.MOST_HOLES: lambda: external_units(machine),
    }
    while int(ints[at.I_STEPS]) < last:
        taken = int(ints[at.I_STEPS])
        if machine.advance(min(every, last - taken)) == at.DONE and int(ints[at.I_STEPS]) == taken:
            break
        for one in stretches:
            amount = measures[one.moment]()
            if amount > one.most and ints[at.I_RUNNING] > 0:
                one.most, one.best = amount, take_snapshot(machine, one.moment)
    ints[at.I_FAST] = 1


def _held_and_used(machine: Machine) -> int:
    """Order instants by what is held, then by what is used."""
    from kvledger.replay._places import held_units, used_bytes

    return held_units(machine) * 2**62 + used_bytes(machine)


def _waste(machine: Machine) -> int:
    from kvledger.replay._places import external_units, held_units, used_bytes

    return (held_units(machine) + external_units(machine)) * machine.size.unit_bytes - used_bytes(machine)
