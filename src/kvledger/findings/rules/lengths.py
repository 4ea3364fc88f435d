"""Room for longer requests than the traffic has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from kvledger.engines.facts import HistogramReading
from kvledger.findings.evidence import MeasureCase, ReplayCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.ledger import Account
from kvledger.pool.policy import Kind, Reservation
from kvledger.units import counted

__all__ = ["LongerThanTraffic", "find_quantile"]

_ENOUGH_REQUESTS = 20
_FAR_RATIO = 0.25
_SAME_RATIO = 0.01


class LongerThanTraffic(Rule):
    """max_model_len is far above what the traffic uses, and with block tables lowering it frees nothing.

    What it measures:
        The longest request, or the 99th percentile of prompt and answer of a running server, against max_model_len:
        a quarter of it or less.

    Why it costs:
        With block tables nothing: blocks are taken as tokens come, and what a lower limit frees becomes more blocks
        of the same pool. Where each request reserves max_model_len, it costs what the ledger calls `reserved`.

    Example:
        A 7B model takes 70 GB. The cure was max_model_len 2,048 and utilisation 0.25: only the second one freed
        memory, the first merely lowered the least pool the engine starts with.

    What to change:
        Under a reservation: max_model_len to the longest request of the traffic. With block tables: nothing here;
        lower the share of memory instead (see KV020).

    What gets worse:
        Requests above the new limit are refused.

    Known limits:
        A lower limit can shrink what a profile run needs (see KV023), and with windows or states the tokens in
        flight; a plan (`kvledger size`) computes the latter.

    Sources:
        vLLM v1/worker/gpu_worker.py; vllm-project/vllm#17891.
    """

    code = "KV021"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Replay max_model_len at the longest request of the trace."""
        outcome, scenario = case.outcome, case.scenario
        longest, limit = case.workload.longest_tokens + 1, scenario.settings.max_model_len
        kinds = scenario.policy.kind, scenario.policy.reservation
        reserving = kinds == (Kind.CONTIGUOUS, Reservation.MAX)
        if longest > _FAR_RATIO * limit or not (reserving or kinds[0] is Kind.PAGED) or not outcome.finished:
            return
        after = case.replay(replace(scenario, settings=replace(scenario.settings, max_model_len=longest)))
        if after is None:
            return
        sentence = f"max_model_len is {limit:,}, the longest request has {counted(longest - 1, 'token')}"
        if not reserving:
            if abs(after.mean_running - outcome.mean_running) <= _SAME_RATIO * outcome.mean_running:
                yield self.tell(
                    case.subject,
                    f"{sentence}; replayed with {longest:,}, {after.mean_running:.1f} requests run at a time as "
                    "before: lowering it frees nothing",
                    amount(outcome.capacity_bytes, formula="the pool, with either limit"),
                )
            return
        gone = case.bytes_of(Account.RESERVED) - round(after.headline_ratio[Account.RESERVED] * after.capacity_bytes)
        if gone <= 0:
            return
        yield self.tell(
            case.subject,
            sentence,
            amount(case.bytes_of(Account.RESERVED), formula="mean of `reserved`"),
            Remedy(
                setting=f"max_model_len {longest:,}",
                returned=amount(gone, formula="mean of `reserved` before, minus after"),
                trade=Trade.TRADE_OFF,
                proof=f"replayed: {after.mean_running:.1f} requests run at a time instead of "
                f"{outcome.mean_running:.1f}, none of this traffic is refused",
                worse=f"a request above {counted(longest, 'token')} is refused",
            ),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Compare the lengths of ended requests with the longest allowed."""
        shape, lengths = case.shape, case.summary.traffic.lengths
        if shape is None or shape.max_model_len is None:
            return
        high = [find_quantile(histogram, 0.99) for histogram in (lengths.prompt, lengths.output)]
        if high[0] is None or high[1] is None or high[0] + high[1] > _FAR_RATIO * shape.max_model_len:
            return
        yield self.tell(
            case.subject,
            f"max_model_len is {shape.max_model_len:,}, while 99 % of the prompts have at most {high[0]:,.0f} tokens "
            f"and 99 % of the answers {high[1]:,.0f}: lowering it frees nothing, it only becomes more blocks",
            amount(case.amount_of(shape.usable_tokens), formula="the pool, with either limit", unit=case.unit),
        )

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Plan the length that was asked for as the longest one."""
        length, limit = case.outcome.question.length_tokens, case.plan.deployment.max_model_len
        vllm = case.plan.deployment.engine == "vllm"
        if not vllm or length is None or limit is None or length > _FAR_RATIO * limit or case.plan.failure is not None:
            return
        after = case.replan(max_model_len=length)
        if after is None or [pool.units for pool in after.pools] != [pool.units for pool in case.plan.pools]:
            return
        ranks = [
            rank.count * rank.unit_bytes[pool.name] * pool.units for rank in case.plan.ranks for pool in case.plan.pools
        ]
        yield self.tell(
            case.subject,
            f"max_model_len is {limit:,}; with {length:,} the engine allocates the same "
            f"{counted(case.plan.pools[0].units, 'block')}: lowering it frees nothing, a smaller share of memory does",
            amount(sum(ranks), formula="the pool, planned with either limit"),
        )


def find_quantile(histogram: HistogramReading | None, share_of_all: float) -> float | None:
    """Return the edge below which that share of the observations lies; None without enough of them."""
    if histogram is None or histogram.count < _ENOUGH_REQUESTS:
        return None
    for edge, count in zip(histogram.edges, histogram.counts, strict=False):
        if count >= share_of_all * histogram.count:
            return edge if math.isfinite(edge) else None
    return None
