"""More memory, or room for longer requests, than the load uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.findings.evidence import ReplayCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.findings.rules.pressure import of_bytes
from kvledger.findings.words import share
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.units import MIB, format_bytes

__all__ = ["PoolLargerThanLoad"]

_ROOM_RATIO = 0.5
_SPARE = 1.25
_SAME_RATIO = 1.01


class PoolLargerThanLoad(Rule):
    """The pool is far larger than what the load ever holds.

    What it measures:
        The most that was held at once: less than half of the pool, and no request ever waited for memory.

    Why it costs:
        Engines size the process, not the model: whatever weights and activations leave of the share of the device
        goes to the pool, and nobody else can use it.

    Example:
        A 3B model takes 16 GB, a 7B one the same: both fill gpu_memory_utilization. Prompts of 417 tokens need a
        hundredth of a pool of 708,425 tokens; utilisation 0.75 instead of 0.92 gave 11 GiB back.

    What to change:
        vLLM `--gpu-memory-utilization` lower, or `--kv-cache-memory-bytes` (0.10.2 and newer) for an exact size;
        SGLang `--mem-fraction-static` or `--max-total-tokens`; TensorRT-LLM `kv_cache_config.max_tokens`; LMDeploy
        `--cache-max-entry-count`. The proof replays the same traffic in a pool of the largest hold plus a quarter.

    What gets worse:
        There is less room for bursts, and less for prefixes that nobody uses at the moment.

    Known limits:
        Lowering max_model_len gives back nothing under vLLM: what it frees becomes more blocks. The pool
        must still hold one request of max_model_len, or vLLM does not start.

    Sources:
        vLLM v1/worker/gpu_worker.py, determine_available_memory; vllm-project/vllm#15204, #17891.
    """

    code = "KV020"

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:
        """Look at a policy of block tables that never fills its pool."""
        outcome, scenario = case.outcome, case.scenario
        held = max((point.peak_held_ratio for point in outcome.timeline), default=0.0)
        idle = outcome.finished and not outcome.saturated_seconds and not sum(outcome.rejected.values())
        if scenario.policy.kind is not Kind.PAGED or not idle or not 0 < held < _ROOM_RATIO:
            return
        peak = round(held * outcome.capacity_bytes)
        least = scenario.settings.max_model_len * scenario.pool.bytes_per_token
        wanted = -(-max(round(_SPARE * peak), least) // MIB) * MIB
        if wanted >= outcome.capacity_bytes:
            return
        after = case.replay(replace(scenario, pool=of_bytes(scenario.pool, wanted)))
        if after is None or not _serves_alike(outcome, after):
            return
        yield self.tell(
            case.subject,
            f"at most {format_bytes(peak)} of {format_bytes(outcome.capacity_bytes)} ({share(held)}) are ever held, "
            "and nothing waits for memory",
            amount(outcome.capacity_bytes - peak, formula="the pool, minus the most that is held at once"),
            Remedy(
                setting=f"--kv-cache-memory-bytes {wanted}",
                returned=amount(outcome.capacity_bytes - after.capacity_bytes, formula="the pool before, minus after"),
                trade=Trade.TRADE_OFF,
                proof=f"replayed in {format_bytes(wanted)}: {after.finished:,} of {after.requests:,} requests are "
                f"served, {after.preemptions:,} preemptions, no request is slower by 1 % on average",
                worse="less room for bursts and for prefixes kept for later",
            ),
        )


def _serves_alike(before: Outcome, after: Outcome) -> bool:
    if before.end_to_end is None or after.end_to_end is None:
        return False
    same = (before.finished, before.truncated, before.preemptions) == (
        after.finished,
        after.truncated,
        after.preemptions,
    )
    return same and after.end_to_end.mean <= _SAME_RATIO * before.end_to_end.mean
