"""How long a step takes: from the option ``--clock`` to a clock, by name, by numbers, or fitted to a recorded run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kvledger.errors import TraceError, UsageError
from kvledger.pool.policy import Kind, Policy
from kvledger.replay.clock import STEPS, Clock, parse_clock, roofline_clock
from kvledger.traces.record import Trace
from kvledger.units import counted, format_bytes

if TYPE_CHECKING:
    from kvledger.cli.cost import Cost
    from kvledger.cli.running import KernelNotice
    from kvledger.replay.fit import ClockFit
    from kvledger.replay.settings import Pool, Settings

__all__ = [
    "clock_at",
    "clock_of",
    "default_clock",
    "fit_part",
    "fitted",
    "is_roofline",
    "notes_on_weights",
    "recorded_policy",
]

DEFAULT_GPU = "a100-80gb"
_FIT = "fit"
_CALLED = "write `steps`, base,a,b,c, a GPU such as h100-80gb:8b, or fit"


def fit_part(text: str) -> float | None:
    """Read ``fit`` or ``fit:PART``; None when the clock is another one.

    Raises:
        UsageError: The part is no number above 0 and at most 1.

    >>> fit_part("fit:1/4"), fit_part("steps")
    (0.25, None)
    """
    name, colon, part = text.partition(":")
    if name != _FIT:
        return None
    from kvledger.replay.fit import DEFAULT_PART

    if not colon:
        return DEFAULT_PART
    above, slash, below = part.partition("/")
    try:
        ratio = float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise UsageError(
            f"`{part[:40]}` in clock `{text[:40]}` is not a part of a run", hint="write fit, fit:1/2, fit:1"
        )
    return ratio


def default_clock(cost: Cost) -> str:
    """Return the clock that is taken when none is given: an A100 with the parameters of the model, else with 8B."""
    known = cost.model is not None and cost.model.parameters is not None
    return DEFAULT_GPU if known else f"{DEFAULT_GPU}:8b"


def clock_of(text: str, cost: Cost, *, ranks: int = 1) -> Clock:
    """Read a clock: ``steps``, ``base,a,b,c``, or a roofline preset ``GPU[:PARAMETERS]`` such as ``h100-80gb:8b``.

    Without parameters those of the model are taken, and the bits of its weights. Of several ``ranks`` each reads and
    computes its share. A clock to be fitted is ``steps`` until it is.

    Raises:
        UsageError: It is none of them, the GPU is not in the catalogue, or the model does not state its parameters.
    """
    if fit_part(text) is not None:
        return STEPS
    if not is_roofline(text):
        return parse_clock(text)
    from kvledger.model.gpus import find_gpu

    gpu_name, colon, parameters = text.partition(":")
    gpu = find_gpu(gpu_name)
    count, active, bits, whose = _given(parameters, text) if colon else _models(cost, text)
    return roofline_clock(
        name=f"roofline of {gpu.name}, {count / 1e9:.3g}B parameters in {bits:g} bits{whose}",
        parameters=active / ranks,
        bandwidth_bytes_per_second=gpu.bandwidth_bytes_per_second,
        flops_per_second=gpu.bf16_flops,
        bytes_per_token=cost.bytes_per_token,
        weight_bytes=count * bits / 8 / ranks,
        host_bytes_per_second=gpu.host_bytes_per_second,
    )


def notes_on_weights(text: str, cost: Cost, pool_bytes: int) -> tuple[str, ...]:
    """Say when one GPU of a roofline has no room for the weights, or for them and the pool."""
    if not is_roofline(text):
        return ()
    from kvledger.model.gpus import find_gpu

    name, colon, parameters = text.partition(":")
    gpu = find_gpu(name)
    count, _, bits, _ = _given(parameters, text) if colon else _models(cost, text)
    weights = int(count * bits / 8)
    if weights + pool_bytes <= gpu.memory_bytes:
        return ()
    has = f"the {format_bytes(gpu.memory_bytes)} of one {gpu.name}"
    taken = f"{format_bytes(weights)} of weights ({count / 1e9:.3g}B parameters in {bits:g} bits)"
    if weights > gpu.memory_bytes:
        return (f"{taken} are more than {has}, so it could not run this; --try tp=N replays one of N ranks",)
    return (f"{taken} and a pool of {format_bytes(pool_bytes)} are more than {has}; a pool there would be smaller",)


def clock_at(text: str, clock: Clock, cost: Cost, *, bytes_per_token: int, ranks: int) -> Clock:
    """Return the clock when a token costs ``bytes_per_token``, on ``ranks`` ranks.

    A roofline is drawn anew. Of any other clock only ``c`` and ``d``, the times to read and to move a stored token,
    change with its bytes.
    """
    if is_roofline(text):
        anew = clock_of(text, replace(cost, bytes_per_token=bytes_per_token), ranks=ranks)
        return replace(anew, block_overhead_tokens=clock.block_overhead_tokens)
    scale = bytes_per_token / cost.bytes_per_token
    return replace(clock, c=clock.c * scale, d=clock.d * scale)


def is_roofline(text: str) -> bool:
    """Tell whether a clock is meant to be the roofline of a GPU."""
    named = text != "steps" and "," not in text and any(c.isalpha() for c in text)
    return named and fit_part(text) is None


def _given(parameters: str, text: str) -> tuple[float, float, float, str]:
    try:
        billions = float(parameters.lower().removesuffix("b"))
    except ValueError:
        billions = 0.0
    if not 0.001 <= billions <= 100_000:
        raise UsageError(
            f"`{parameters[:40]}` in clock `{text[:40]}` is not a parameter count", hint="write one such as `8b`"
        )
    return billions * 1e9, billions * 1e9, 16, ""


def _models(cost: Cost, text: str) -> tuple[float, float, float, str]:
    model = cost.model
    if model is None or model.parameters is None:
        why = "no model was given" if model is None else f"`{model.name}` does not state its parameters"
        raise UsageError(
            f"clock `{text[:40]}` needs the parameters of the model, and {why}", hint=f"write them: {text[:40]}:8b"
        )
    bits = model.quantisation.weight_bits if model.quantisation else None
    return float(model.parameters.count), float(model.parameters.active), bits or 16, ", the model's"


def recorded_policy(policies: list[Policy]) -> Policy:
    """Return the policy that a recorded server is taken to have had: the first with block tables, else the first."""
    return next((policy for policy in policies if policy.kind is Kind.PAGED), policies[0])


def fitted(
    trace: Trace, policy: Policy, pool: Pool, settings: Settings, *, part_ratio: float, notice: KernelNotice
) -> ClockFit:
    """Fit a clock to what a trace observed.

    Raises:
        TraceError: The trace observed nothing, or too little in that part.
    """
    from kvledger.cli.running import progress_bar
    from kvledger.replay.fit import USUAL_TRIES, fit_clock

    if trace.observed is None:
        redrawn = any(note.startswith("arrivals are drawn anew") for note in trace.notes)
        why = "its arrivals were drawn anew" if redrawn else "it does not say when requests got their tokens"
        raise TraceError(
            f"no clock can be fitted to this trace ({trace.format.sentence}): {why}",
            hint="give a recorded run or a request log with first-token or end times (docs/clock.md), "
            "or a roofline such as --clock h100-80gb:8b",
        )
    if not notice.quiet:
        click.echo(f"fitting the clock to {counted(trace.observed.moments, 'observed moment')} ...", err=True)
    with notice.around(policy, trace.workload), progress_bar("fitting", USUAL_TRIES, quiet=notice.quiet) as progress:
        return fit_clock(
            trace.workload,
            policy,
            pool=pool,
            settings=settings,
            observed=trace.observed,
            part_ratio=part_ratio,
            progress=progress,
        )
