"""Too little memory for the load: preemptions, queues, requests that never fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvledger.findings.evidence import LogCase, MeasureCase, PoolsCase, ReplayCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Account, Accuracy
from kvledger.measure.figure import Figure
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.replay.settings import Pool
from kvledger.replay.what_if import Scenario, seconds
from kvledger.units import counted, format_bytes

__all__ = ["PoolFullAndPreempting", "count_seats", "final_tokens", "of_bytes", "serves_no_slower", "time_words"]

_OFTEN_RATIO = 0.1
_MORE_MEMORY = 5, 4
_SLOWER_RATIO = 1.01
_AGAIN = "`used` * recomputed tokens / all computed tokens, as if they were spread evenly over time"


class PoolFullAndPreempting(Rule):
    """The pool is full, and running requests lose their memory and are computed again.

    What it measures:
        Preemptions: one for every ten finished requests or more; of a running server any, where a sample saw every
        block held. Under vLLM V1 a preempted request loses all of its
        blocks and starts again from its first token.

    Why it costs:
        Keys and values are computed, lost and computed again. Users wait for their next token meanwhile. V1 prints no
        line about it.

    Example:
        1,000 requests with max_tokens 2,040 on a small card: the number of running requests looks healthy, and the
        server works in circles.

    What to change:
        vLLM `--max-num-seqs` to what fits, admission by the whole input (`--scheduler-reserve-full-isl`, the default
        since 0.22), `--kv-cache-dtype fp8`, or more memory (`--gpu-memory-utilization`,
        `--tensor-parallel-size`). Each is replayed alone; the
        bytes are the part of the pool that holds tokens computed a second time; those of fp8 what the tokens in use
        no longer take. A change that makes requests slower on average is not proposed.

    What gets worse:
        Fewer sequences wait longer in the queue. fp8 rounds keys and values. Memory costs memory.

    Known limits:
        How long a recomputation takes depends on the clock, which is modelled. V0 could swap instead: this is not
        replayed. Of a running server only counts are known, so nothing is replayed.

    Sources:
        vLLM 0.32 v1/core/sched/scheduler.py; vllm-project/vllm#18115, #21809, #5051.
    """

    code = "KV010"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy that preempts."""
        outcome = case.outcome
        often = outcome.preemptions >= max(1, _OFTEN_RATIO * outcome.finished)
        if not often or case.scenario.policy.kind not in (Kind.PAGED, Kind.VMM):
            return
        remedies = tuple(self._remedies(case))
        if not remedies:
            return
        again = case.bytes_of(Account.USED) * _again_ratio(outcome)
        yield self.tell(
            case.subject,
            f"{counted(outcome.preemptions, 'preemption')} for {counted(outcome.finished, 'finished request')}: "
            f"{counted(outcome.recomputed_tokens, 'token')} were computed, lost and computed again, which fills "
            f"{format_bytes(again)} of the pool on average",
            amount(again, formula=_AGAIN, accuracy=Accuracy.MODELLED),
            *remedies,
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at the preemptions of a window."""
        traffic, peak, shape = case.summary.traffic, case.summary.peak, case.shape
        count, finished = traffic.preemptions, traffic.finished
        if not count or peak is None or peak.balance is None or shape is None or not peak.running:
            return
        is_full = peak.balance.held >= shape.usable_tokens
        if count < _OFTEN_RATIO * (finished or 0) and not is_full:
            return
        mean = peak.balance.held / peak.running
        lost = amount(
            case.amount_of(count * mean),
            formula="preemptions * mean slots of a running request, over the window",
            unit=case.unit,
            accuracy=Accuracy.MODELLED,
        )
        yield self.tell(
            case.subject,
            f"{counted(count, 'preemption')} for {counted(finished or 0, 'request')} that ended: at about {mean:,.0f} "
            f"tokens each, that many are computed again",
            lost,
            *_fewer_seats(case, lost),
        )

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Look at the preemptions (retractions, pauses) that an engine counts."""
        pool, peak = case.pools[0], case.pools[0].peak
        count, finished = pool.traffic.preemptions, pool.traffic.finished or 0
        if not count or count < _OFTEN_RATIO * finished or peak is None or peak.sheet is None or not peak.running:
            return
        mean = peak.sheet.figure("held").low / peak.running
        yield self.tell(
            case.subject,
            f"{counted(count, 'preemption')} for {counted(finished, 'request')} that ended, with {peak.running:,} "
            "running at the fullest sample: what they held is computed again",
            amount(
                count * mean,
                formula="preemptions * mean hold of a running request, over the window",
                unit=peak.sheet.unit,
                accuracy=Accuracy.MODELLED,
            ),
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at the preemptions that periodic lines count."""
        load, tokens = case.check.load, case.pool_tokens
        if load is None or tokens is None or not load.running or (load.preemptions or 0) < load.running:
            return
        mean = load.held_ratio[1] * tokens / load.running
        yield self.tell(
            case.subject,
            f"{counted(load.preemptions or 0, 'preemption')} in {counted(load.lines, 'line')}, with {load.running:,} "
            f"requests running at {share(load.held_ratio[1])} of the pool: at about {mean:,.0f} tokens each, that many "
            "are computed again",
            amount(
                case.amount_of((load.preemptions or 0) * mean),
                formula="preemptions * mean tokens of a running request",
                unit=case.unit,
                accuracy=Accuracy.MODELLED,
            ),
        )

    def _remedies(self, case: ReplayCase) -> Iterator[Remedy]:
        before = case.outcome
        for setting, changed, worse in _changes(case):
            after = case.replay(changed)
            if after is None or not serves_no_slower(before, after):
                continue
            if _again_ratio(after) >= _again_ratio(before):
                continue
            cheaper = case.scenario.pool.bytes_per_token - changed.pool.bytes_per_token
            yield Remedy(
                setting=setting,
                returned=_cheaper_tokens(case, cheaper) if cheaper else _fewer_again(before, after),
                trade=Trade.TRADE_OFF,
                proof=f"replayed: {counted(after.preemptions, 'preemption')} instead of {before.preemptions:,}"
                f"{time_words(before, after)}",
                worse="; ".join([worse, *_slower(before, after)]),
            )


def _fewer_seats(case: MeasureCase, lost: Figure) -> Iterator[Remedy]:
    """Propose as many seats as requests of the mean final length fit."""
    lengths, shape, peak = case.summary.traffic.lengths, case.shape, case.summary.peak
    prompt, output = lengths.prompt, lengths.output
    if shape is None or peak is None or prompt is None or output is None or not prompt.count or not output.count:
        return
    mean = prompt.total / prompt.count + output.total / output.count
    seats = int(shape.usable_tokens // max(1.0, mean + shape.block_tokens / 2))
    if not 1 <= seats < (peak.running or 0):
        return
    yield Remedy(
        setting=f"--max-num-seqs {seats}",
        returned=lost,
        trade=Trade.TRADE_OFF,
        proof=f"requests that ended had {mean:,.0f} tokens on average: {seats:,} of them fill {shape.usable_tokens:,} "
        f"slots, {peak.running:,} were running",
        worse="requests wait in the queue instead",
    )


def _changes(case: ReplayCase) -> Iterator[tuple[str, Scenario, str]]:
    scenario, policy = case.scenario, case.scenario.policy
    if policy.kind is Kind.PAGED and not policy.full_sequence_must_fit:
        whole = replace(scenario, policy=replace(policy, full_sequence_must_fit=True))
        yield "--scheduler-reserve-full-isl", whole, "a request waits until all its known tokens fit"
    seats = count_seats(case)
    if 1 <= seats < min(scenario.settings.max_num_seqs, case.outcome.peak_running):
        fewer = replace(scenario, settings=replace(scenario.settings, max_num_seqs=seats))
        yield f"max_num_seqs {seats}", fewer, "fewer requests run at a time"
    small = case.recast(scenario, "fp8")
    if small is not None and small.pool.bytes_per_token < scenario.pool.bytes_per_token:
        yield "fp8 KV (`--kv-cache-dtype fp8`)", small, "keys and values are rounded to fp8, which can change answers"
    times, over = _MORE_MEMORY
    size = scenario.pool.total_bytes(scenario.policy)
    more = size * times // over
    larger = replace(scenario, pool=of_bytes(scenario.pool, more))
    yield f"{format_bytes(more)} of KV memory", larger, f"it takes {format_bytes(more - size)} more memory"


def count_seats(case: ReplayCase) -> int:
    """Return how many sequences of the mean final length the pool holds; the samples of a request share its prompt."""
    final, samples = final_tokens(case)
    mean = final.sum(dtype=np.float64) / max(1, samples.sum(dtype=np.int64))
    return int(case.outcome.capacity_bytes // max(1.0, mean * case.scenario.pool.bytes_per_token))


def final_tokens(case: ReplayCase) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens that each request ends with, all its samples together, and how many samples it has."""
    workload, longest = case.workload, case.scenario.settings.max_model_len
    prompts = np.minimum(workload.prompt_tokens.astype(np.int64), longest)
    outputs = np.minimum(workload.output_tokens, longest - prompts)
    samples = np.ones(len(workload), np.int64) if workload.samples is None else workload.samples.astype(np.int64)
    return prompts + samples * outputs, samples


def of_bytes(pool: Pool, size: int) -> Pool:
    """Return a pool of that many bytes."""
    return replace(pool, memory_bytes=size, capacity_tokens=None, num_blocks=None)


def _again_ratio(outcome: Outcome) -> float:
    computed = outcome.prompt_tokens + outcome.output_tokens + outcome.recomputed_tokens
    return outcome.recomputed_tokens / max(1, computed)


def _fewer_again(before: Outcome, after: Outcome) -> Figure:
    used = before.headline_ratio[Account.USED] * before.capacity_bytes
    saved = used * (_again_ratio(before) - _again_ratio(after))
    return amount(saved, formula=f"{_AGAIN}, before minus after", accuracy=Accuracy.MODELLED)


def _cheaper_tokens(case: ReplayCase, cheaper_bytes: int) -> Figure:
    saved = case.bytes_of(Account.USED) * cheaper_bytes / case.scenario.pool.bytes_per_token
    return amount(saved, formula="mean of `used`, in the bytes of a token before minus after")


def serves_no_slower(before: Outcome, after: Outcome) -> bool:
    """Tell whether as many requests are served whole, and the mean time from arrival to end does not grow."""
    if after.finished - after.truncated < before.finished - before.truncated:
        return False
    ends = before.end_to_end, after.end_to_end
    return ends[0] is not None and ends[1] is not None and ends[1].mean <= _SLOWER_RATIO * ends[0].mean


def time_words(before: Outcome, after: Outcome) -> str:
    """Say how long a request takes on average, after and before."""
    if before.end_to_end is None or after.end_to_end is None:
        return ""
    return f", {seconds(after.end_to_end.mean)} from arrival to end instead of {seconds(before.end_to_end.mean)}"


def _slower(before: Outcome, after: Outcome) -> Iterator[str]:
    for what, old, new in (("in the queue", before.queue, after.queue),):
        if old is not None and new is not None and new.mean > 1.01 * old.mean:
            yield f"{seconds(new.mean)} {what} on average instead of {seconds(old.mean)}"
