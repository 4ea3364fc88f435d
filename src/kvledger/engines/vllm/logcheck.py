"""Checking a start-up log: whether its figures follow from the model, the flags and the printed bytes.

A figure follows when some number of bytes within the printed interval gives it to the digit. When none does, the check
says by how much it misses, what bytes would give it, and which other setting would explain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvledger.engines.plan import Deployment, KvMemory, Plan
from kvledger.engines.vllm.log_variants import name_setting
from kvledger.engines.vllm.planner import make_plan
from kvledger.engines.vllm.startup import StartUp
from kvledger.engines.vllm.version import parse_version
from kvledger.model import ModelSpec
from kvledger.units import GIB, format_bytes

__all__ = [
    "LogCheck",
    "agrees",
    "check_start_up",
    "compare",
    "deployment_of",
    "memory_of",
    "printed_blocks",
]

_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "custom_class")
_FIRST_V1 = (0, 7)
"""The first release whose V1 core is known."""
_MOST_BLOCKS = 4096
"""Block counts tried within an interval; 0.01 GiB holds fewer unless a block is below 2.6 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """What the comparison found."""

    follows: bool
    printed_tokens: int | None
    printed_concurrency: float | None
    predicted_tokens: tuple[int, int] | None
    """Smallest and largest number of tokens that the printed bytes can give."""
    blocks: int | None
    """The blocks that give the printed figures, when they follow."""
    kv_bytes: int | None
    """Bytes within the printed interval that give those blocks."""
    explanation: str
    """One or two sentences; with the numbers when the figures do not follow."""


def deployment_of(log: StartUp, asked: Deployment) -> Deployment:
    """Return the deployment with what the log says filled in where nothing was asked for explicitly."""
    options = dict(asked.options)
    if log.hybrid_off:
        options.setdefault("disable_hybrid_kv_cache_manager", "true")
    if log.override is not None:
        options.setdefault("num_gpu_blocks_override", str(log.override))
    if log.core is not None and not (log.core == "v1" and parse_version(asked.version) < _FIRST_V1):
        options.setdefault("core", log.core)
    proposed = asked.speculative_tokens or log.speculative_tokens or 0
    if proposed and log.speculative_method is not None:
        options.setdefault("speculative_method", _method(log.speculative_method))
    return replace(
        asked,
        speculative_tokens=proposed,
        device=log.device if asked.device == "cuda" else asked.device,
        tp=asked.tp if asked.tp > 1 else (log.flag("tp") or 1),
        pp=asked.pp if asked.pp > 1 else (log.flag("pp") or 1),
        dcp=asked.dcp if asked.dcp > 1 else (log.flag("dcp") or 1),
        dp=asked.dp if asked.dp > 1 else (log.flag("dp") or 1),
        max_model_len=asked.max_model_len or log.max_model_len or log.flag("max_model_len"),
        max_num_batched_tokens=asked.max_num_batched_tokens or log.max_num_batched_tokens,
        prefix_caching=log.prefix_caching if asked.prefix_caching is None else asked.prefix_caching,
        kv_dtype=log.kv_dtype or "auto" if asked.kv_dtype == "auto" else asked.kv_dtype,
        options=options,
    )


def _method(name: str) -> str:
    """Return what a method keeps a cache for: the model's own layers, a draft of its own, or nothing."""
    if name.endswith("mtp"):
        return "mtp"
    if name in _WITHOUT_CACHE:
        return "ngram"
    return name if name in ("eagle", "eagle3") else "draft_model"


def check_start_up(model: ModelSpec, deployment: Deployment, log: StartUp) -> LogCheck:
    """Compare the figures a log printed with those its bytes give.

    Raises:
        SourceError: The log does not name the memory.
    """
    low, high = _ends(log)
    plans = list(_plans_within(model, deployment, low, high))
    tokens = [plan.printed_tokens or 0 for plan in plans]
    predicted = (min(tokens), max(tokens))
    if log.tokens is None and log.concurrency is None and printed_blocks(log) is None:
        return _compare_error(model, deployment, log, plans)
    match = next((plan for plan in plans if agrees(plan, log)), None)
    if match is not None:
        return compare(
            log,
            predicted,
            follows=True,
            match=match,
            explanation=f"{match.pools[0].units} blocks of {_unit(match)} give the printed figures to the digit",
        )
    return compare(log, predicted, follows=False, explanation=_explain(model, deployment, log, predicted))


def _compare_error(model: ModelSpec, deployment: Deployment, log: StartUp, plans: list[Plan]) -> LogCheck:
    """Compare what the error of a start says, where nothing else was printed."""
    tokens = [plan.printed_tokens or 0 for plan in plans]
    predicted = (min(tokens), max(tokens))
    if log.needed is None:
        return compare(log, predicted, follows=True, explanation="the log prints no size to compare with")
    asked = format_bytes(sum(log.needed) // 2)
    needs = [plan.failure.needed_bytes for plan in plans if plan.failure is not None]
    if any(_fails_alike(plan, log) for plan in plans):
        fits = "" if log.estimated_length is None else f", and {log.estimated_length:,} tokens fit at most, as it says"
        explanation = f"one request of the longest length takes the {asked} that the error asks for{fits}"
        return compare(log, predicted, follows=True, explanation=explanation)
    takes = f"takes {format_bytes(needs[0])} by this model's layers" if needs else "fits into the printed bytes"
    explanation = f"one request of the longest length {takes}, but the error asks for {asked}"
    if needs and log.needed[0] <= needs[0] <= log.needed[1]:
        longest = [plan.failure.largest_max_model_len for plan in plans if plan.failure is not None]
        explanation = (
            f"one request of the longest length takes the {asked} that the error asks for, but {min(longest):,} to "
            f"{max(longest):,} tokens fit at most by this model's layers, and the error says {log.estimated_length:,}"
        )
    other = _other_setting(model, deployment, log)
    advice = f"it follows if {other}" if other else "check the model, the KV dtype, the version and the parallelism"
    return compare(log, predicted, follows=False, explanation=f"{explanation}: {advice}")


def _fails_alike(plan: Plan, log: StartUp) -> bool:
    """Tell whether a plan fails with the bytes, and the longest length, that the log's error names."""
    if plan.failure is None or log.needed is None:
        return False
    same = log.estimated_length in (None, plan.failure.largest_max_model_len)
    return same and log.needed[0] <= plan.failure.needed_bytes <= log.needed[1]


def memory_of(log: StartUp, check: LogCheck) -> KvMemory:
    """Return the memory of a log: where its printed size fixes the blocks, bytes that give those.

    Raises:
        SourceError: The log does not name the memory.
    """
    memory = log.memory()
    if check.kv_bytes is None:
        return memory
    is_fixed = log.tokens is not None or printed_blocks(log) is not None
    ends = (check.kv_bytes, check.kv_bytes) if is_fixed else (memory.low_bytes, memory.high_bytes)
    return replace(
        memory,
        per_rank_bytes=(check.kv_bytes,),
        low_bytes=ends[0],
        high_bytes=ends[1],
        source=f"{memory.source}; within them, bytes that give the {check.blocks:,} blocks of its size line",
    )


def compare(
    log: StartUp, predicted: tuple[int, int], *, follows: bool, explanation: str, match: Plan | None = None
) -> LogCheck:
    """Put together what a comparison found; ``match`` is the plan that gives the printed figures."""
    return LogCheck(
        follows=follows,
        printed_tokens=log.tokens,
        printed_concurrency=log.concurrency,
        predicted_tokens=predicted,
        blocks=match.pools[0].units if match is not None else None,
        kv_bytes=match.ranks[0].kv_bytes if match is not None else None,
        explanation=explanation,
    )


def _ends(log: StartUp) -> tuple[int, int]:
    memory = log.memory()
    return memory.low_bytes, memory.high_bytes


def _unit(plan: Plan) -> str:
    return format_bytes(max(size for rank in plan.ranks for size in rank.unit_bytes.values()))


def _plan(model: ModelSpec, deployment: Deployment, kv_bytes: int) -> Plan:
    return make_plan(model, deployment, KvMemory.given(kv_bytes))


def _plans_within(model: ModelSpec, deployment: Deployment, low: int, high: int) -> Iterator[Plan]:
    """Yield one plan for each block count that the interval can stand for, its ends included."""
    first, last = _plan(model, deployment, low), _plan(model, deployment, high)
    yield first
    unit = max(size for rank in first.ranks for size in rank.unit_bytes.values())
    start, stop = low // unit + 1, high // unit
    for blocks in range(start, min(stop, start + _MOST_BLOCKS)):
        yield _plan(model, deployment, blocks * unit)
    yield last


def printed_blocks(log: StartUp) -> int | None:
    """Return the blocks of V0 and 0.7; a forced number says nothing about the bytes."""
    return None if log.override is not None else log.blocks


def agrees(plan: Plan, log: StartUp) -> bool:
    """Tell whether a plan gives every figure that the log prints."""
    blocks = printed_blocks(log)
    tokens = log.tokens is None or plan.printed_tokens == log.tokens
    tokens = tokens and (blocks is None or plan.pools[0].units == blocks)
    tokens = tokens and log.block_tokens in (None, plan.deployment.block_tokens)
    if log.concurrency is None or plan.printed_concurrency is None:
        return tokens
    low, high = log.concurrency_ends
    return tokens and low <= plan.printed_concurrency <= high


def _explain(model: ModelSpec, deployment: Deployment, log: StartUp, predicted: tuple[int, int]) -> str:
    other = _other_setting(model, deployment, log)
    if other:
        return f"the printed figures follow if {other}"
    low, high = predicted
    printed = log.tokens
    blocks = printed_blocks(log)
    if printed is None and blocks is not None:
        return f"the printed bytes would give {low:,} to {high:,} tokens, but {blocks:,} blocks were printed"
    if printed is None:
        return "the printed concurrency does not follow from the model, the flags and the printed bytes"
    mine = _plan(model, deployment, _ends(log)[0]).deployment.block_tokens
    if log.block_tokens not in (None, mine):
        return (
            f"the log widens the block to {log.block_tokens:,} tokens, this model's states need {mine:,} by these "
            "settings: check the model, the KV dtype, the tensor parallelism and the tokens that a draft proposes"
        )
    gives = f"the printed bytes would give {low:,} to {high:,} tokens, but {printed:,} were printed"
    advice = "check the model, the KV dtype and the tensor parallelism"
    if low <= printed <= high:
        return (
            f"the printed tokens lie within the {low:,} to {high:,} that the printed bytes give, but no number of "
            f"blocks gives them and the printed concurrency: {advice}"
        )
    if printed > high:
        return f"{gives}: a token costs less than this model's layers say; {advice}"
    missing = _bytes_for(model, deployment, log, printed)
    needs = f", which {missing / GIB:.2f} GiB give" if missing else ""
    if deployment.ranks == 1:
        return (
            f"{gives}{needs}: a token costs more than this model's layers say; {advice}, and whether there is a draft"
        )
    return (
        f"{gives}{needs}: another rank had less memory than the line shows, and the engine takes the smallest; "
        "give the lines of all ranks"
    )


def _bytes_for(model: ModelSpec, deployment: Deployment, log: StartUp, printed: int) -> int:
    """Return the least bytes that give the printed tokens; 0 when none up to the printed bytes do."""
    low, high = 0, _ends(log)[1]
    while high - low > 2**16:
        middle = (low + high) // 2
        tokens = _plan(model, deployment, middle).printed_tokens or 0
        low, high = (middle, high) if tokens < printed else (low, middle)
    return high


def _other_setting(model: ModelSpec, deployment: Deployment, log: StartUp) -> str | None:
    """Name other settings with which the printed figures follow, or the error where there are none."""
    is_error = log.tokens is None and log.concurrency is None and printed_blocks(log) is None
    is_told = _fails_alike if is_error else agrees

    def explains(changed: Deployment) -> bool:
        return _is_possible(model, changed, log) and any(
            is_told(plan, log) for plan in _plans_within(model, changed, *_ends(log))
        )

    return name_setting(model, deployment, explains, is_version_told=log.version is not None)


def _is_possible(model: ModelSpec, deployment: Deployment, log: StartUp) -> bool:
    """Tell whether the printed tokens lie between those of the least and the most bytes; only two plans are made."""
    if log.tokens is None:
        return True
    low, high = (_plan(model, deployment, kv_bytes).printed_tokens or 0 for kv_bytes in _ends(log))
    return low <= log.tokens <= high
