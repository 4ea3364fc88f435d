"""Several answers to one prompt: how requests get them, and how samples become requests of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import UsageError
from kvledger.pool.policy import MOST_SAMPLES, Kind, Policy, Sampling
from kvledger.replay.workload import Beams, Siblings, Workload
from kvledger.units import counted

__all__ = ["Split", "check_sampling", "shares_forks", "split_samples", "with_beams", "with_samples"]


def with_samples(workload: Workload, samples: int) -> Workload:
    """Return the workload with so many answers to every prompt, drawn independently, each of its output length.

    Raises:
        UsageError: There are none, or too many.
    """
    return replace(workload, samples=_everywhere(workload, samples), beams=None)


def with_beams(workload: Workload, width: int, *, turnover_ratio: float = 0.1, seed: int = 0) -> Workload:
    """Return the workload with a beam search of ``width`` candidates in every request; see `Beams`.

    Raises:
        UsageError: There are no candidates, or too many, or the turnover is no chance.
    """
    beams = Beams(mask=np.ones(len(workload), np.bool_), turnover_ratio=turnover_ratio, seed=seed)
    return replace(workload, samples=_everywhere(workload, width), beams=beams)


def _everywhere(workload: Workload, samples: int) -> NDArray[np.int32]:
    if not 1 <= samples <= MOST_SAMPLES:
        raise UsageError(f"{counted(samples, 'sample')} are not from 1 to {MOST_SAMPLES}")
    return np.full(len(workload), samples, np.int32)


def shares_forks(policy: Policy) -> bool:
    """Tell whether the samples of a request share its blocks as forks; else each is a request of its own."""
    if policy.kind is not Kind.PAGED or policy.is_radix or policy.groups is not None:
        return False
    return policy.sampling is Sampling.FORKS or not (policy.prefix_caching or policy.sampling is Sampling.REQUESTS)


def check_sampling(policy: Policy, workload: Workload) -> None:
    """Refuse what is not replayed beside a prefix cache, a radix tree or groups of layers.

    Raises:
        UsageError: Forks, candidates of a search, or swapping would have to share blocks with it.
    """
    if policy.kind is not Kind.PAGED or shares_forks(policy):
        return
    if policy.is_radix or policy.groups is not None:
        _check_apart(policy, workload, "a radix tree" if policy.is_radix else "groups of layers")
    elif policy.prefix_caching and workload.beams is not None and bool(workload.beams.mask.any()):
        raise UsageError(
            "a beam search beside a prefix cache is not replayed as requests: vLLM V1 sends each candidate as a "
            "request of one token, step by step, which no trace holds",
            hint="add --samples-as forks, which replays the copy on write of the PagedAttention paper",
        )


def _check_apart(policy: Policy, workload: Workload, what: str) -> None:
    if policy.swaps:
        raise UsageError(
            f"swapping beside {what} is not replayed: the engines that have them compute preempted requests again",
            hint="leave --preemption out",
        )
    if workload.samples is None:
        return
    if policy.sampling is Sampling.FORKS:
        raise UsageError(
            f"samples as forks beside {what} are not replayed: no engine known here does both",
            hint="leave --samples-as out: samples are then requests of their own, as vLLM V1 makes them",
        )
    if workload.beams is not None and bool(workload.beams.mask.any()):
        raise UsageError(
            f"a beam search beside {what} is not replayed: vLLM V1 sends each candidate as a request of one token, "
            "step by step, which no trace holds",
            hint="replay it under `paged` with --samples-as forks and layers that share one block table: "
            "--bytes-per-token instead of --model makes such",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Every sample as a request: ``workload`` has one row a sample, those of request ``i`` from ``firsts[i]`` on.

    ``firsts``: (requests,), int64.
    """

    workload: Workload
    firsts: NDArray[np.int64]


def split_samples(workload: Workload) -> Split:
    """Return a workload in which every sample is a request that arrives with its siblings, as vLLM V1 makes them."""
    assert workload.samples is not None
    counts = workload.samples.astype(np.int64)
    parents = np.repeat(np.arange(len(workload), dtype=np.int64), counts)
    return Split(
        workload=Workload(
            arrival_seconds=workload.arrival_seconds[parents],
            prompt_tokens=workload.prompt_tokens[parents],
            output_tokens=workload.output_tokens[parents],
            max_tokens=None if workload.max_tokens is None else workload.max_tokens[parents],
            siblings=Siblings(workload=workload, parents=parents),
        ),
        firsts=np.cumsum(counts) - counts,
    )
