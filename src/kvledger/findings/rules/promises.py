"""Memory promised to answers that are never written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvledger.engines.facts import Engine, HistogramReading
from kvledger.findings.evidence import PoolsCase, ReplayCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.ledger import Account, Accuracy
from kvledger.pool.policy import Kind, Reservation
from kvledger.replay.outcome import Outcome
from kvledger.replay.workload import Workload
from kvledger.units import counted, format_bytes

__all__ = ["PromisedNotGenerated"]

_FAR_RATIO = 2
_NEVER_RATIO = 0.1
_PERCENTILE = 99
_ENOUGH_REQUESTS = 20


class PromisedNotGenerated(Rule):
    """Requests are promised far more tokens than they generate.

    What it measures:
        max_tokens against the tokens that are generated, where memory is taken or promised at admission: extents of
        prompt + max_tokens, TGI, and TensorRT-LLM with GUARANTEED_NO_EVICT. The declared answers are twice the
        written ones or more, and a tenth of the pool or more is held for tokens that never come.

    Why it costs:
        Such an engine admits a request only beside what every running one may still ask for. A client that sends
        max_tokens 4,096 and reads 200 keeps 20 others out.

    Example:
        In the demo no request declares max_tokens, so `no-evict` promises 4,096 tokens to each: it runs 100 requests
        where block tables without promises run 559.

    What to change:
        Clients send a max_tokens near what they read; the proof replays the 99th percentile of the answers. Or the
        engine stops promising: TensorRT-LLM `capacity_scheduler_policy: MAX_UTILIZATION`, vLLM and SGLang promise
        nothing.

    What gets worse:
        Answers longer than the new max_tokens are cut; the replay counts them. Without promises requests may be
        preempted.

    Known limits:
        TGI tells its declared and generated tokens for requests that have ended; those running are taken for alike.
        vLLM takes no memory for max_tokens, so nothing is found there.

    Sources:
        huggingface/text-generation-inference backends/v3/src/queue.rs; TensorRT-LLM capacity scheduler,
        GUARANTEED_NO_EVICT; vllm-project/vllm#27017.
    """

    code = "KV002"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy that takes or promises prompt + max_tokens."""
        policy, outcome = case.scenario.policy, case.outcome
        declared = policy.kind is Kind.CONTIGUOUS and policy.reservation is Reservation.DECLARED
        if not declared and policy.kind not in (Kind.UPFRONT, Kind.NO_EVICT):
            return
        never, headroom = _never_used(outcome), _declared_times(case)
        if never < _NEVER_RATIO or headroom < _FAR_RATIO:
            return
        remedies = tuple(self._remedies(case))
        if not remedies:
            return
        held = round(never * outcome.capacity_bytes)
        yield self.tell(
            case.subject,
            f"requests may write {headroom:.1f} times the tokens that they write: {format_bytes(held)} "
            f"({share(never)} of the pool) are kept for tokens that never come",
            amount(held, formula="mean of `reserved_never_used`"),
            *remedies,
        )

    def _remedies(self, case: ReplayCase) -> Iterator[Remedy]:
        limit = int(np.ceil(np.percentile(case.workload.output_tokens, _PERCENTILE)))
        after = case.replay_other(_limit(case.workload, limit))
        if after is not None:
            cut = max(0, after.truncated - case.outcome.truncated)
            yield _give_back(case, after, f"max_tokens {limit:,}", f"{counted(cut, 'answer')} cut" if cut else "")
        if case.scenario.policy.kind is not Kind.NO_EVICT:
            return
        unpromised = case.replay_paged()
        if unpromised is not None:
            worse = counted(unpromised.preemptions, "preemption") if unpromised.preemptions else ""
            yield _give_back(case, unpromised, "capacity_scheduler_policy: MAX_UTILIZATION (TensorRT-LLM)", worse)

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Look at TGI, which tells declared and generated tokens of requests that have ended."""
        snapshot = case.snapshot
        found = {one.name: one for one in snapshot.histograms}
        declared, written = found.get("tgi_request_max_new_tokens"), found.get("tgi_request_generated_tokens")
        reserved, running = snapshot.reserved_tokens, snapshot.running
        if snapshot.engine is not Engine.TGI or reserved is None or running is None or not running.value:
            return
        means = _mean(declared), _mean(written)
        if means[0] is None or means[1] is None or means[0] < _FAR_RATIO * means[1]:
            return
        spare = min(float(reserved.value), float(running.value) * (means[0] - means[1]))
        formula = "running requests * (mean max_new_tokens - mean generated tokens) of those that ended"
        figure = amount(spare, formula=formula, accuracy=Accuracy.MODELLED, unit="tokens")
        yield self.tell(
            case.subject,
            f"requests declare {means[0]:,.0f} new tokens on average and write {means[1]:,.0f}: about {spare:,.0f} of "
            f"{reserved.value:,.0f} reserved tokens will never come",
            figure,
            Remedy(
                setting="max_new_tokens of the clients",
                returned=figure,
                trade=Trade.TRADE_OFF,
                proof=f"with max_new_tokens {means[1]:,.0f}, as much as is written, {running.value:,.0f} requests "
                f"reserve {float(reserved.value) - spare:,.0f} tokens",
                worse="longer answers are cut",
            ),
        )


def _never_used(outcome: Outcome) -> float:
    return outcome.saturated_never_used_ratio if outcome.held_up else outcome.never_used_ratio


def _declared_times(case: ReplayCase) -> float:
    """Return the tokens that may be written over those that are, as the scheduler clamps both."""
    workload = case.workload
    room = np.maximum(1, case.scenario.settings.max_model_len - workload.prompt_tokens.astype(np.int64))
    limit = room if workload.max_tokens is None else np.where(workload.max_tokens > 0, workload.max_tokens, room)
    limit = np.minimum(limit, room)
    written = np.minimum(workload.output_tokens, limit)
    return float(limit.sum(dtype=np.int64)) / max(1.0, float(written.sum(dtype=np.int64)))


def _limit(workload: Workload, limit: int) -> Workload:
    declared = workload.max_tokens
    limits = np.full(len(workload), limit, np.int32)
    if declared is not None:
        limits = np.where(declared > 0, np.minimum(declared, limits), limits).astype(np.int32)
    return replace(workload, max_tokens=limits)


def _give_back(case: ReplayCase, after: Outcome, setting: str, worse: str) -> Remedy:
    before = case.outcome
    gone = case.bytes_of(Account.RESERVED) - round(after.headline_ratio[Account.RESERVED] * after.capacity_bytes)
    return Remedy(
        setting=setting,
        returned=amount(gone, formula="mean of `reserved` before, minus after"),
        trade=Trade.TRADE_OFF if worse else Trade.SAFE,
        proof=f"replayed: {after.mean_running:.1f} requests run at a time instead of {before.mean_running:.1f}, "
        f"{share(after.utilisation)} of the pool holds tokens in use instead of {share(before.utilisation)}",
        worse=worse,
    )


def _mean(histogram: HistogramReading | None) -> float | None:
    enough = histogram is not None and histogram.count >= _ENOUGH_REQUESTS
    return histogram.total / histogram.count if histogram is not None and enough else None
