"""What decides the size of the pool when an engine starts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from kvledger.engines.facts import NoticeKind, StartupFacts
from kvledger.engines.quantity import Quantity
from kvledger.findings.evidence import LogCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.ledger import Accuracy
from kvledger.units import format_bytes

__all__ = ["ProfileRunGrew", "ShareOfFree", "UnevenRanks"]

_SHRUNK_RATIO = 0.9
_UNEVEN_RATIO = 0.01


class ShareOfFree(Rule):
    """The cache takes a share of what is free when it starts, not of the card, and not what the load needs.

    What it measures:
        Engines that size the cache by a share of free memory: LMDeploy, TensorRT-LLM and SGLang, with the memory of a
        device given.

    Why it costs:
        Nothing by itself, but the order of starts matters on a shared card, and a default of 0.8 or 0.9 takes nearly
        all that is left, whatever the load.

    Example:
        Two LMDeploy pipelines with cache_max_entry_count 0.6 and 0.5 both start: 0.6 of what is free, then 0.5 of
        the remaining 40 %, 0.8 together. A TensorRT-LLM server of one user took 67 GB, 2.5 GiB were needed.

    What to change:
        An absolute size: LMDeploy `--cache-max-entry-count` as a number of blocks (TurboMind), TensorRT-LLM
        `kv_cache_config.max_tokens`, SGLang `--max-total-tokens`, vLLM `--kv-cache-memory-bytes`. The same pool as now
        is computed; with `--length` and `--concurrency` KV020 says what the load needs.

    What gets worse:
        A fixed size does not shrink when another process takes memory: the start fails instead.

    Known limits:
        What is free at a start is estimated from the device; only the engine knows it.

    Sources:
        LMDeploy 0.18 messages.py; TensorRT-LLM KvCacheConfig; InternLM/lmdeploy#2793, #3804, NVIDIA/TensorRT-LLM#1400.
    """

    code = "KV022"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Write the planned pool as an absolute setting."""
        plan, memory = case.plan, case.outcome.memory
        engine = plan.deployment.engine
        known = engine in ("lmdeploy", "tensorrt-llm", "sglang") and memory.terms and plan.failure is None
        if not known or len(plan.pools) != 1:
            return
        pool, rank = plan.pools[0], plan.ranks[0]
        unit_tokens = max((claim.unit_tokens for claim in plan.claims), default=1)
        tokens = pool.units * max(1, unit_tokens)
        setting = {
            "lmdeploy": f"--cache-max-entry-count {pool.units} (blocks, TurboMind)",
            "tensorrt-llm": f"kv_cache_config.max_tokens {tokens}",
            "sglang": f"--max-total-tokens {tokens}",
        }[engine]
        size = pool.units * rank.unit_bytes[pool.name]
        yield self.tell(
            case.subject,
            f"{format_bytes(size)} a rank are a share of what is free when it starts: another process, or another "
            "order of starts, changes it",
            amount(size, formula="the pool of a rank", accuracy=memory.accuracy),
            Remedy(
                setting=setting,
                returned=amount(0, formula="none: the same pool, written as a number", accuracy=memory.accuracy),
                trade=Trade.TRADE_OFF,
                proof=f"{pool.units:,} {pool.unit_name}s, {format_bytes(size)}: the pool as planned",
                worse="it does not shrink when another process takes memory: the start fails instead",
                gain="the same pool at every start",
            ),
        )


class ProfileRunGrew(Rule):
    """A longer max_model_len left less memory for the cache, because the profile run was larger.

    What it measures:
        Two starts in one log with different max_model_len: the bytes (else the blocks) of the later cache are a
        tenth smaller or more.

    Why it costs:
        vLLM runs the largest batch once before it sizes the cache, max_num_batched_tokens tokens. Where that follows
        max_model_len, a longer limit means a larger peak of activations and fewer blocks.

    Example:
        From max_model_len 100,000 to 221,000 the memory for the cache fell from 10.55 to 5.59 GiB. The check did not
        ignore fp8: 221,000 tokens need 10.12 GiB with it, and 20.2 without.

    What to change:
        `--max-num-batched-tokens` fixed by itself (with chunked prefill it need not reach max_model_len).

    What gets worse:
        A long prefill takes more steps.

    Known limits:
        The log does not say why there is less; another process on the device would look the same. So the number is
        measured, and no change is proved.

    Sources:
        vLLM v1/worker/gpu_worker.py; vllm-project/vllm#25350, #8185, #10517.
    """

    code = "KV023"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Compare each start with the one before it."""
        starts = case.log.startups
        if case.log.engine.value != "vllm":
            return
        for before, after in pairwise(starts):
            lengths = _length(before), _length(after)
            sizes = _size(before, case), _size(after, case)
            if None in (*lengths, *sizes):
                continue
            if (lengths[0] or 0) >= (lengths[1] or 0) or not _same_model(before, after):
                continue
            (old, unit), (new, other) = sizes[0] or (0.0, ""), sizes[1] or (0.0, "")
            if unit != other or new > _SHRUNK_RATIO * old:
                continue
            shown = (format_bytes(old), format_bytes(new)) if unit == "bytes" else (f"{old:,.0f}", f"{new:,.0f} blocks")
            yield self.tell(
                case.subject,
                f"with max_model_len {lengths[1]:,} instead of {lengths[0]:,} the memory for the cache fell from "
                f"{shown[0]} to {shown[1]}: the profile run before it computes a larger batch",
                amount(
                    old - new,
                    formula="the cache of the earlier start minus that of the later",
                    unit="bytes" if unit == "bytes" else "tokens",
                    accuracy=Accuracy.MEASURED,
                ),
            )
            return


class UnevenRanks(Rule):
    """Ranks have different memory, and the smallest decides for all.

    What it measures:
        The bytes for the cache that each rank of one engine printed: more than 1 % apart, without pipeline stages.

    Why it costs:
        Every rank gets as many blocks as the smallest one can hold. What the others have more stays outside.

    Example:
        Two cards print 8.69 GiB and fewer tokens than fit: the other card had about 7.46 GiB and decided.

    What to change:
        Free the rank that has least: another process, a display, or a first rank that loads more.

    What gets worse:
        Nothing is proposed.

    Known limits:
        Releases that print the line once for all ranks do not show it.

    Sources:
        vLLM v1/core/kv_cache_utils.py (minimum over ranks); vllm-project/vllm#13061.
    """

    code = "KV045"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Compare the pools of the ranks."""
        startup = case.startup
        if startup is None or (startup.pp is not None and startup.pp.value > 1):
            return
        pools = startup.find_pools("kv", engine_index=case.check.engine_index)
        sizes = {pool.origin: pool.size_bytes for pool in pools if pool.size_bytes is not None and pool.origin}
        if len(sizes) < 2:
            return
        least, most = min(q.value for q in sizes.values()), max(q.value for q in sizes.values())
        if least < 0 or most - least <= _UNEVEN_RATIO * most:
            return
        outside = sum(q.value - least for q in sizes.values())
        smallest = min(sizes, key=lambda origin: sizes[origin].value)
        yield self.tell(
            case.subject,
            f"`{smallest}` has {format_bytes(least)} for the cache, others up to {format_bytes(most)}: all take what "
            "the smallest one holds",
            amount(outside, formula="sum over the ranks of their bytes minus the least", accuracy=Accuracy.MEASURED),
        )


def _length(startup: StartupFacts) -> int | None:
    found: Quantity | None = startup.max_model_len or startup.find_smallest("longest_tokens")
    return None if found is None else int(found.value)


def _size(startup: StartupFacts, case: LogCase) -> tuple[float, str] | None:
    index = case.check.engine_index
    size = startup.find_smallest("size_bytes", engine_index=index)
    short = next((n for n in startup.errors if n.kind is NoticeKind.TOO_LONG and n.available is not None), None)
    if size is None and short is not None:
        size = short.available
    if size is not None:
        return float(size.value), "bytes"
    blocks = startup.find_smallest("blocks", engine_index=index)
    return None if blocks is None else (float(blocks.value), "blocks")


def _same_model(before: StartupFacts, after: StartupFacts) -> bool:
    return before.model is None or after.model is None or before.model.value == after.model.value
