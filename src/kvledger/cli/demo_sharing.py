"""``demo --case sharing``: what several answers to one prompt share, beside the figure of the paper."""

from __future__ import annotations

from kvledger.cli.running import KernelNotice
from kvledger.pool.policy import Kind, Policy, Sampling
from kvledger.replay.outcome import Outcome
from kvledger.replay.samples import with_beams, with_samples
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.simulate import replay
from kvledger.replay.workload import Workload
from kvledger.report.sharing import SharingReport, SharingRow
from kvledger.sources.files import load_trace

__all__ = ["replay_sharing"]

_ANSWERS = (2, 4, 6)
_REQUESTS = 1000
_MEMORY_BYTES = 12 * 2**30
_TOKEN_BYTES = 819_200  # OPT-13B: 2 x 40 layers x 5,120 x 2 bytes
_LONGEST_TOKENS = 2048

# Figure 15 of the PagedAttention paper, in its text: parallel sampling, then beam search, at 2 to 6 answers.
_PUBLISHED = {
    "alpaca": ((0.061, 0.098), (0.376, 0.552)),
    "sharegpt": ((0.162, 0.305), (0.443, 0.663)),
}
_TURNOVERS = {"alpaca": (0.1, 0.25), "sharegpt": (0.1, 0.05)}


def replay_sharing(*, seed: int, notice: KernelNotice) -> SharingReport:
    """Replay both workloads of the figure with every number of answers, sharing blocks and alone."""
    rows = []
    for name, (sampled, searched) in _PUBLISHED.items():
        workload = load_trace(f"synthetic:{name},requests={_REQUESTS},rate=inf", seed=seed).workload
        alone = {n: _replay(with_samples(workload, n), Sampling.REQUESTS, notice).saturated_running for n in _ANSWERS}
        rows.append(_row(name, None, workload, alone, sampled, seed, notice))
        rows += [_row(name, chance, workload, alone, searched, seed, notice) for chance in _TURNOVERS[name]]
    return SharingReport(
        model="opt-13b", memory_bytes=_MEMORY_BYTES, block_size=16, requests=_REQUESTS, seed=seed, rows=rows
    )


def _row(
    name: str,
    turnover: float | None,
    workload: Workload,
    alone: dict[int, float],
    published: tuple[float, float],
    seed: int,
    notice: KernelNotice,
) -> SharingRow:
    saved, running = {}, {}
    for n in _ANSWERS:
        if turnover is None:
            several = with_samples(workload, n)
        else:
            several = with_beams(workload, n, turnover_ratio=turnover, seed=seed)
        outcome = _replay(several, Sampling.FORKS, notice)
        assert outcome.sharing is not None
        assert outcome.sharing.block_saving_ratio is not None
        saved[n], running[n] = outcome.sharing.block_saving_ratio, outcome.saturated_running
    low, high = published
    return SharingRow(
        workload=name,
        beam_turnover=turnover,
        block_saving_ratio=saved,
        running_forked=running,
        running_alone=alone,
        published_low_ratio=low,
        published_high_ratio=high,
    )


def _replay(workload: Workload, sampling: Sampling, notice: KernelNotice) -> Outcome:
    policy = Policy(name="paged", kind=Kind.PAGED, sampling=sampling)
    with notice.around(policy, workload):
        return replay(
            workload,
            policy,
            pool=Pool(bytes_per_token=_TOKEN_BYTES, memory_bytes=_MEMORY_BYTES),
            settings=Settings(max_model_len=_LONGEST_TOKENS),
        )
