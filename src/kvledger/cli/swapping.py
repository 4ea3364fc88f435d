"""Preemption on the command line: computing again, or swapping to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kvledger.errors import CapacityError
from kvledger.pool.policy import Policy, Preemption

if TYPE_CHECKING:
    from kvledger.replay.clock import Clock
    from kvledger.replay.settings import Pool

__all__ = ["check_swap_space", "notes_on_swapping", "swap_options"]

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


def check_swap_space(policy: Policy, pool: Pool) -> None:
    """Refuse a host that has no room for even one block of a policy that swaps.

    Raises:
        CapacityError: It has not.
    """
    block_bytes = pool.divide(policy).unit_bytes
    if policy.swaps and policy.swap_bytes < block_bytes:
        raise CapacityError(
            f"{policy.swap_bytes} bytes of the host hold not even one block of {block_bytes} bytes",
            hint="give a larger --swap-space, or --preemption recompute",
        )


def notes_on_swapping(policies: Sequence[str], changes: Sequence[object], clock: Clock) -> tuple[str, ...]:
    """Say what moving blocks costs, where any policy or change moves some."""
    swapping = [f"`{policy}`" for policy in policies]
    swapping += [f"--try {change}" for change in changes if str(change) == f"preemption={Preemption.SWAP}"]
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
