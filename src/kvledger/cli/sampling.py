"""Several answers to a prompt on the command line: ``--samples``, ``--beams`` and what they are taken as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kvledger.errors import UsageError
from kvledger.pool.policy import MOST_SAMPLES, Policy, Sampling

if TYPE_CHECKING:
    from kvledger.cli.question import Question
    from kvledger.replay.workload import Workload
    from kvledger.traces import Trace

__all__ = ["notes_on_samples", "sample_options", "with_answers"]

Function = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--samples",
        type=click.IntRange(1, MOST_SAMPLES),
        help="Answers to every prompt, decoded together (default: the trace's, else 1).",
    ),
    click.option("--beams", type=click.IntRange(1, MOST_SAMPLES), help="Candidates of a beam search in every request."),
    click.option(
        "--beam-turnover",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        help="Chance that the candidates are drawn anew after a step.",
    ),
    click.option(
        "--samples-as",
        type=click.Choice([str(sampling) for sampling in Sampling]),
        help="`paged`: samples fork from one request, copied on write, or are requests of their own, as in vLLM V1 "
        "(default: forks, but requests beside a prefix cache or groups of layers).",
    ),
)


def sample_options(function: Function) -> Function:
    """Add the options of several answers to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def with_answers(trace: Trace, question: Question) -> Trace:
    """Return the trace with as many answers to each prompt as was asked for.

    Raises:
        UsageError: Samples and beams are both given.
    """
    if question.samples is not None and question.beams is not None:
        raise UsageError(
            f"--samples {question.samples} and --beams {question.beams} contradict",
            hint="a beam search decodes its candidates and nothing else; give one of them",
        )
    from kvledger.replay.samples import with_beams, with_samples

    workload = trace.workload
    if question.samples is not None:
        workload = with_samples(workload, question.samples)
    elif question.beams is not None:
        workload = with_beams(workload, question.beams, turnover_ratio=question.beam_turnover, seed=question.seed)
    elif workload.beams is not None:
        beams = replace(workload.beams, turnover_ratio=question.beam_turnover, seed=question.seed)
        workload = replace(workload, beams=beams)
    return trace if workload is trace.workload else replace(trace, workload=workload)


def notes_on_samples(policies: Sequence[Policy], workload: Workload) -> tuple[str, ...]:
    """Say what several answers to a prompt are taken as."""
    if workload.samples is None or workload.sequences == len(workload):
        return ()
    from kvledger.replay.samples import shares_forks

    notes = ["every answer to a prompt has the output length of its request; `running` counts answers"]
    forking = [policy.name for policy in policies if shares_forks(policy)]
    others = [policy.name for policy in policies if policy.name not in forking]
    if forking:
        notes.append(f"{_listed(forking)}: answers fork from one request and share its blocks, copied on write")
    if others:
        notes.append(f"{_listed(others)}: every answer is a request of its own, as vLLM V1 makes them")
    if workload.beams is not None and bool(workload.beams.mask.any()):
        chance = workload.beams.turnover_ratio
        notes.append(
            f"candidates of a beam search are modelled: after a step, with a chance of {chance:g}, each continues one "
            "of the living ones, drawn evenly"
        )
        if others:
            notes.append(f"{_listed(others)}: candidates are not kept in step, and copies between them are not counted")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
