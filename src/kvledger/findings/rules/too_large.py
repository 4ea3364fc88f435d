"""Requests that are larger than the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvledger.engines.facts import Notice, NoticeKind, PeriodicSample, SampleKind
from kvledger.engines.size import SizeOutcome
from kvledger.findings.evidence import LogCase, MeasureCase, ReplayCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.rules.pressure import final_tokens, of_bytes
from kvledger.ledger import Accuracy
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Rejection
from kvledger.units import agree, counted, format_bytes

__all__ = ["LargerThanPool"]

_STUCK_SECONDS = 5
_STUCK_LINES = 3


class LargerThanPool(Rule):
    """One request needs more memory than the whole pool.

    What it measures:
        Requests whose keys and values never fit, however empty the pool is. Engines that check max_model_len against
        the pool do not start; others admit such a request, grow it until nothing is left, and begin again for ever. Of
        a running server: requests that wait for seconds while nothing runs and nothing is held.

    Why it costs:
        The request can never end, and while it tries nobody else gets memory.

    Example:
        A pool of 69 blocks serves at most 1,008 tokens; a request that grows to 1,024 is admitted by its prompt and
        retried for ever. A server asked for 221,000 tokens needs 10.12 GiB with fp8 and has 5.59.

    What to change:
        A max_model_len that fits (`--max-model-len`), fp8 KV, or more memory. Each is computed or replayed.

    What gets worse:
        Longer requests are refused at once instead of being retried. fp8 rounds keys and values.

    Known limits:
        Why there is less memory than expected is another matter: see KV023 and KV045. A queue behind an empty pool may
        have another cause, such as a transfer or an adapter that is loaded; nothing is proposed for it.

    Sources:
        vLLM v1/core/kv_cache_utils.py, check_enough_kv_cache_memory; vllm-project/vllm#52530, #39734.
    """

    code = "KV012"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at requests that were rejected because they never fit."""
        outcome, scenario = case.outcome, case.scenario
        count = outcome.rejected.get(Rejection.LARGER_THAN_POOL, 0)
        if scenario.policy.kind is not Kind.PAGED or scenario.policy.groups is not None or not count:
            return
        longest = int(final_tokens(case)[0].max())
        needed = longest * scenario.pool.bytes_per_token
        missing = max(0, needed - outcome.capacity_bytes)
        block = scenario.policy.block_size
        fits = outcome.capacity_bytes // (block * scenario.pool.bytes_per_token) * block
        yield self.tell(
            case.subject,
            f"{counted(count, 'request')} never {agree(count, 'fits', 'fit')}: "
            f"the longest needs {format_bytes(needed)} for {longest:,} tokens, "
            f"the pool holds {fits:,}",
            amount(missing, formula="bytes of the longest request, minus the pool"),
            *self._replayed(case, needed),
        )

    def _replayed(self, case: ReplayCase, needed: int) -> Iterator[Remedy]:
        scenario, before = case.scenario, case.outcome
        small = case.recast(scenario, "fp8")
        if small is not None and small.pool.bytes_per_token < scenario.pool.bytes_per_token:
            after = case.replay(small)
            if after is not None and after.finished > before.finished:
                saved = needed * (1 - small.pool.bytes_per_token / scenario.pool.bytes_per_token)
                yield Remedy(
                    setting="fp8 KV (`--kv-cache-dtype fp8`)",
                    returned=amount(saved, formula="bytes of the longest request before, minus after"),
                    trade=Trade.TRADE_OFF,
                    proof=f"replayed: {after.finished:,} of {after.requests:,} are served instead of "
                    f"{before.finished:,}",
                    worse="keys and values are rounded to fp8, which can change answers",
                )
        block_bytes = scenario.policy.block_size * scenario.pool.bytes_per_token
        enough = (-(-needed // block_bytes) + 1) * block_bytes
        larger = case.replay(replace(scenario, pool=of_bytes(scenario.pool, enough)))
        if larger is not None and larger.finished > before.finished:
            yield Remedy(
                setting=f"{format_bytes(enough)} of KV memory",
                returned=amount(0, formula="none: it takes memory"),
                trade=Trade.TRADE_OFF,
                proof=f"replayed: {larger.finished:,} of {larger.requests:,} are served instead of {before.finished:,}",
                worse=f"it takes {format_bytes(enough - before.capacity_bytes)} more memory",
                gain="the requests that are rejected",
            )

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Look at an engine that does not start."""
        outcome, failure = case.outcome, case.plan.failure
        if failure is None or failure.needed_bytes <= failure.available_bytes:
            return
        missing = failure.needed_bytes - max(0, failure.available_bytes)
        longest = case.plan.deployment.max_model_len or 0
        yield self.tell(
            case.subject,
            f"one request of max_model_len {longest:,} needs {format_bytes(failure.needed_bytes)} on a rank, "
            f"{format_bytes(max(0, failure.available_bytes))} are there",
            amount(missing, formula="needed on a rank, minus what is there"),
            *_planned(case, outcome, failure.needed_bytes),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at a queue that nobody leaves although nothing runs."""
        summary, shape = case.summary, case.shape
        peak, traffic = summary.peak, summary.traffic
        if shape is None or peak is None or traffic.seconds < _STUCK_SECONDS or traffic.generated_tokens != 0:
            return
        if peak.running or case.peak_held_tokens or not summary.last.waiting or traffic.finished:
            return
        yield self.tell(
            case.subject,
            f"{counted(summary.last.waiting, 'request')} wait for {traffic.seconds:.0f} s and none runs, though the "
            f"pool is empty: the first one needs more than its {shape.usable_tokens:,} slots, or cannot start for "
            "another reason",
            amount(case.amount_of(shape.usable_tokens), formula="usable slots", unit=case.unit),
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at the error with which a start ended, and at a queue that nobody leaves although nothing runs."""
        startup = case.startup
        stuck = _find_stuck(case.samples)
        if stuck and case.pool_tokens is not None:
            yield self.tell(
                case.subject,
                f"{counted(int(stuck[-1].waiting.value) if stuck[-1].waiting else 0, 'request')} wait and none runs in "
                f"{counted(len(stuck), 'line')} in a row, though the pool is empty: the first one needs more than its "
                f"{case.pool_tokens:,.0f} tokens, or cannot start for another reason",
                amount(case.amount_of(case.pool_tokens), formula="the pool", unit=case.unit),
            )
        for notice in startup.errors if startup is not None else ():
            if notice.kind is NoticeKind.TOO_LONG and notice.asked is not None and notice.longest is not None:
                yield self._of_notice(case, notice, asked=notice.asked, longest=notice.longest)
                return

    def _of_notice(self, case: LogCase, notice: Notice, *, asked: int, longest: int) -> Finding:
        known = notice.needed is not None and notice.available is not None
        if known and notice.needed is not None and notice.available is not None:
            low, high = notice.needed.low - notice.available.high, notice.needed.high - notice.available.low
            there = f"{format_bytes(notice.needed.value)} are needed, {format_bytes(notice.available.value)} are there"
            size = amount(low, high, formula="needed minus available, as printed", accuracy=Accuracy.MEASURED)
            saved = amount(low, high, formula="needed minus what a shorter one needs", accuracy=Accuracy.MEASURED)
        else:
            there = f"the pool holds {counted(longest, 'token')}"
            size = amount(asked - longest, formula="tokens asked for minus tokens of the pool", unit="tokens")
            saved = size
        return self.tell(
            case.subject,
            f"it does not start: for one request of max_model_len {asked:,} {there}",
            size,
            Remedy(
                setting=f"--max-model-len {longest:,}",
                returned=saved,
                trade=Trade.TRADE_OFF,
                proof=f"the engine's own estimate: with this memory at most {counted(longest, 'token')}",
                worse=f"requests above {counted(longest, 'token')} are refused",
            ),
        )


def _find_stuck(samples: Sequence[PeriodicSample]) -> list[PeriodicSample]:
    """Return the first run of lines in which requests wait, none runs and nothing is held; empty when it is short."""
    run: list[PeriodicSample] = []
    for sample in samples:
        told = sample.running is not None and sample.waiting is not None and sample.usage_ratio is not None
        stuck = (
            told
            and sample.kind is SampleKind.INTERVAL
            and not (sample.running and sample.running.value)
            and bool(sample.waiting and sample.waiting.value)
            and not (sample.usage_ratio and sample.usage_ratio.value)
        )
        if stuck:
            run.append(sample)
        elif len(run) >= _STUCK_LINES:
            return run
        else:
            run = []
    return run if len(run) >= _STUCK_LINES else []


def _planned(case: SizeCase, outcome: SizeOutcome, needed: int) -> Iterator[Remedy]:
    longest = outcome.largest_max_model_len or 0
    shorter = case.replan(max_model_len=longest) if longest else None
    if shorter is not None and shorter.failure is None:
        yield Remedy(
            setting=f"--max-model-len {longest:,}",
            returned=amount(
                needed - outcome.memory.smallest_bytes, formula="bytes of the longest request, down to what is there"
            ),
            trade=Trade.TRADE_OFF,
            proof="planned: the engine starts with it, and with no longer one",
            worse=f"requests above {counted(longest, 'token')} are refused",
        )
    small = case.replan(kv_dtype="fp8") if case.plan.deployment.kv_dtype in ("auto", "bfloat16", "float16") else None
    if small is not None and small.failure is None:
        size = max(rank.unit_bytes[name] for rank in case.plan.ranks for name in rank.unit_bytes)
        after = max(rank.unit_bytes[name] for rank in small.ranks for name in rank.unit_bytes)
        if after < size:
            yield Remedy(
                setting="--kv-cache-dtype fp8",
                returned=amount(needed - needed * after / size, formula="bytes of the longest request, before - after"),
                trade=Trade.TRADE_OFF,
                proof="planned: the engine starts with it",
                worse="keys and values are rounded to fp8, which can change answers",
            )
