"""More memory, or room for longer requests, than the load uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.engines.size import Fit, answer_size
from kvledger.errors import Error
from kvledger.findings.evidence import LogCase, MeasureCase, PoolsCase, ReplayCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.release import is_before
from kvledger.findings.rule import Rule
from kvledger.findings.rules.pressure import of_bytes
from kvledger.findings.words import share
from kvledger.measure.figure import Figure
from kvledger.measure.verdict import Diagnosis
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.units import MIB, agree, counted, format_bytes

__all__ = ["PoolLargerThanLoad"]

_ROOM_RATIO = 0.5
_SPARE = 1.25
_SAME_RATIO = 1.01
_SEEN_RATIO = 0.4
_ENOUGH_SAMPLES = 10
_LESS_ROOM = "less room for bursts and for prefixes kept for later"
_SETTINGS = {
    "vllm": "--kv-cache-memory-bytes (or a lower --gpu-memory-utilization)",
    "sglang": "--max-total-tokens (or a lower --mem-fraction-static)",
    "tensorrt-llm": "kv_cache_config.max_tokens (or a lower free_gpu_memory_fraction)",
    "tgi": "--cuda-memory-fraction",
    "lmdeploy": "--cache-max-entry-count",
    "llama.cpp": "--ctx-size",
    "llamacpp": "--ctx-size",
    "ollama": "num_ctx",
    "transformers": "max_memory_percent",
}
"""How each engine calls the size of its cache."""


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
            self._smaller(
                f"--kv-cache-memory-bytes {wanted}",
                amount(outcome.capacity_bytes - after.capacity_bytes, formula="the pool before, minus after"),
                f"replayed in {format_bytes(wanted)}: {after.finished:,} of {counted(after.requests, 'request')} "
                "are served, "
                f"{counted(after.preemptions, 'preemption')}, the mean time from arrival to end grows by less than 1 %",
            ),
        )

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:
        """Look at a server with room to spare over a window."""
        summary, shape = case.summary, case.shape
        if summary.verdict.diagnosis is not Diagnosis.ROOM or shape is None or summary.samples < _ENOUGH_SAMPLES:
            return
        held = case.peak_held_tokens
        wanted = max(round(_SPARE * held), shape.max_model_len or 0)
        if held >= _SEEN_RATIO * shape.capacity_tokens or wanted >= shape.usable_tokens:
            return
        yield self.tell(
            case.subject,
            f"at most {held:,} of {shape.capacity_tokens:,} slots ({share(held / shape.capacity_tokens)}) were held in "
            f"{counted(summary.samples, 'sample')} over {summary.traffic.seconds:,.0f} s, and nothing waited",
            amount(
                case.amount_of(shape.usable_tokens - held), formula="usable slots minus the most held", unit=case.unit
            ),
            self._smaller(
                "--gpu-memory-utilization or --kv-cache-memory-bytes",
                amount(
                    case.amount_of(shape.usable_tokens - wanted),
                    formula="usable slots, minus the most held and a quarter, or one request of max_model_len",
                    unit=case.unit,
                ),
                f"{counted(wanted, 'slot')} {agree(wanted, 'holds', 'hold')} what was held, a quarter more, and one "
                "request of max_model_len",
            ),
        )

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:
        """Look at another engine of one pool with room to spare over a window."""
        pool = case.only
        sheet, shares = (pool.last.sheet, pool.shares) if pool is not None else (None, None)
        if pool is None or sheet is None or shares is None or pool.samples < _ENOUGH_SAMPLES:
            return
        held = shares.peak_held_of_pool[1]
        if pool.verdict.diagnosis is not Diagnosis.ROOM or not 0 < held < _SEEN_RATIO:
            return
        capacity = sheet.ledger.capacity
        yield self.tell(
            case.subject,
            f"at most {share(held)} of the pool was held in {counted(pool.samples, 'sample')} over "
            f"{pool.traffic.seconds:,.0f} s, and nothing waited",
            amount((1 - held) * capacity, formula="the pool minus the most held", unit=sheet.unit),
            self._smaller(
                _setting_of(pool.key.engine.value, pool.last.version),
                amount(
                    (1 - _SPARE * held) * capacity,
                    formula="the pool, minus the most held and a quarter",
                    unit=sheet.unit,
                ),
                f"{share(_SPARE * held)} of the pool hold what was held and a quarter more",
                worse="less room for bursts and kept prefixes; a longer request than those seen may not fit",
            ),
        )

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at periodic lines with room to spare."""
        load, tokens, longest = case.check.load, case.pool_tokens, case.check.max_model_len
        if load is None or tokens is None or load.lines < _ENOUGH_SAMPLES:
            return
        held = load.held_ratio[1] * tokens
        wanted = max(_SPARE * held, longest.value if longest is not None else 0)
        room = load.verdict.diagnosis is Diagnosis.ROOM and 0 < load.held_ratio[1] < _SEEN_RATIO
        if not room or wanted >= tokens:
            return
        yield self.tell(
            case.subject,
            f"at most {share(load.held_ratio[1])} of the pool was held in {counted(load.lines, 'line')}, and "
            "nothing waited",
            amount(case.amount_of(tokens - held), formula="the pool minus the most held", unit=case.unit),
            self._smaller(
                _setting_of(case.log.engine.value, case.check.version),
                amount(
                    case.amount_of(tokens - wanted),
                    formula="the pool, minus the most held and a quarter, or one request of max_model_len",
                    unit=case.unit,
                ),
                f"{wanted:,.0f} tokens hold what was held, a quarter more, and one request of max_model_len",
            ),
        )

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Compare the memory with what the load that was asked for needs."""
        question, memory = case.outcome.question, case.outcome.memory
        asked = question.length_tokens is not None and question.concurrency is not None
        if not asked or question.fit is not None or case.plan.failure is not None:
            return
        try:
            least = answer_size(case.planner, replace(question, memory=None, fit=Fit.MEMORY)).fitted
        except Error:
            return
        if least is None or least.value >= _ROOM_RATIO * memory.smallest_bytes:
            return
        ranks = sum(rank.count for rank in case.plan.ranks)
        setting = _setting_of(case.plan.deployment.engine, case.plan.deployment.version)
        words = "the least bytes with which it starts and holds the load"
        remedies = [
            self._smaller(
                f"{setting}: {least.value:,} bytes a rank",
                amount((memory.smallest_bytes - least.value) * ranks, formula="given minus needed, all ranks"),
                f"planned: {format_bytes(least.value)} a rank are {words}",
            )
        ]
        shorter = least.shorter_bytes
        if shorter is not None:
            remedies.append(
                self._smaller(
                    f"the same and max_model_len {question.length_tokens:,}: {shorter:,} bytes a rank",
                    amount((memory.smallest_bytes - shorter) * ranks, formula="given minus needed, all ranks"),
                    f"planned: {format_bytes(shorter)} a rank are {words}",
                    worse="longer requests are refused; less room for bursts",
                )
            )
        yield self.tell(
            case.subject,
            f"{format_bytes(memory.smallest_bytes)} a rank are given, "
            f"{counted(question.concurrency or 0, 'request')} of {question.length_tokens:,} tokens take "
            f"{format_bytes(least.value)}",
            amount((memory.smallest_bytes - least.value) * ranks, formula="given minus needed, all ranks"),
            *remedies,
        )

    def _smaller(self, setting: str, returned: Figure, proof: str, *, worse: str = _LESS_ROOM) -> Remedy:
        return Remedy(setting=setting, returned=returned, trade=Trade.TRADE_OFF, proof=proof, worse=worse)


def _setting_of(engine: str, version: str | None) -> str:
    """Return how an engine calls the size of its cache; vLLM takes bytes from 0.10.2 on."""
    if engine == "vllm" and is_before(version, 0, 10, 2):
        return "a lower --gpu-memory-utilization (from 0.10.2 --kv-cache-memory-bytes)"
    return _SETTINGS.get(engine, "the memory of the cache")


def _serves_alike(before: Outcome, after: Outcome) -> bool:
    if before.end_to_end is None or after.end_to_end is None:
        return False
    same = (before.finished, before.truncated, before.preemptions) == (
        after.finished,
        after.truncated,
        after.preemptions,
    )
    return same and after.end_to_end.mean <= _SAME_RATIO * before.end_to_end.mean
