"""Preemption on the command line: computing again, or swapping to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kvledger.pool.policy import Policy, Preemption
from kvledger.units import parse_bytes

if TYPE_CHECKING:
    from kvledger.cli.question import Question
    from kvledger.replay.clock import Clock

__all__ = ["notes_on_swapping", "swap_options", "swap_space"]

Function = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--preemption",
        type=click.Choice([str(preemption) for preemption in Preemption]),
        default=str(Preemption.RECOMPUTE),
        show_default=True,
        help="What `paged` does with a preempted request: compute it again, or swap its blocks to the host.",
    ),
    click.option("--swap-space", default="4GiB", show_default=True, help="Memory of the host to swap to."),
)


def swap_options(function: Function) -> Function:
    """Add the options of preemption to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def swap_space(question: Question) -> int:
    """Return the bytes of the host that may be swapped to; 0 when nothing is."""
    return parse_bytes(question.swap_space) if question.preemption == Preemption.SWAP else 0


def notes_on_swapping(policies: Sequence[Policy], clock: Clock) -> tuple[str, ...]:
    """Say what moving blocks costs, where any are moved."""
    swapping = [f"`{policy.name}`" for policy in policies if policy.swaps]
    if not swapping:
        return ()
    which = ", ".join(swapping)
    if not clock.d:
        return (
            f"{which}: moving blocks to the host and back takes no time with this clock; "
            "give a GPU such as h100-80gb, or a fifth number to base,a,b,c",
        )
    return (
        f"{which}: moving a token to the host or back takes {clock.d:.3g} s, the step waits for it, and blocks are "
        "moved whole, at the same speed whatever their size",
    )
