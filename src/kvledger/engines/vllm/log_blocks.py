"""The blocks that a log's figures stand for where no line names the bytes: printed tokens grow with the blocks."""

from __future__ import annotations

from kvledger.engines.plan import Deployment, KvMemory, Plan
from kvledger.engines.vllm.log_variants import name_setting
from kvledger.engines.vllm.logcheck import LogCheck, agrees, compare, printed_blocks
from kvledger.engines.vllm.planner import make_plan
from kvledger.engines.vllm.startup import StartUp
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec
from kvledger.units import format_bytes

__all__ = ["derive_start_up"]

_MOST_BYTES = 2**50
_MOST_BLOCKS = 4096
"""Block counts tried one by one; figures rounded to two decimals leave fewer."""


def derive_start_up(model: ModelSpec, deployment: Deployment, log: StartUp) -> tuple[LogCheck, KvMemory]:
    """Return the blocks that give the printed tokens, blocks and concurrency, and the bytes that make them.

    Raises:
        SourceError: The log prints no size of the pool, or none that this model has with these settings.
    """
    if log.override is not None or (log.tokens is None and log.concurrency is None and printed_blocks(log) is None):
        log.memory()  # the error says what to look for
    ends = _find_blocks(model, deployment, log)
    if ends is None:
        other = name_setting(
            model,
            deployment,
            lambda changed: _find_blocks(model, changed, log) is not None,
            is_version_told=log.version is not None,
        )
        raise SourceError(
            f"no number of blocks gives {_figures(log)}" + (f", but some would if {other}" if other else ""),
            hint="check the model, the version and the flags; `--kv-memory` gives the bytes where they are known",
        )
    first, last = ends
    unit = max(size for rank in first.ranks for size in rank.unit_bytes.values())
    low, high = first.pools[0].units * unit, (last.pools[0].units + 1) * unit - 1
    several = first.pools[0].units != last.pools[0].units
    blocks = f"{first.pools[0].units}" + (f" to {last.pools[0].units}" if several else "")
    check = compare(
        log,
        (first.printed_tokens or 0, last.printed_tokens or 0),
        follows=True,
        match=first,
        explanation=f"{blocks} blocks of {format_bytes(unit)} give the printed figures; no line names the memory, "
        f"but these take {format_bytes(low)} on a rank",
    )
    memory = KvMemory(
        per_rank_bytes=(low,),
        accuracy=Accuracy.DERIVED,
        source=f"the {blocks} blocks that {_figures(log)} stand for, less than a block besides",
        low_bytes=low,
        high_bytes=high,
    )
    return check, memory


def _figures(log: StartUp) -> str:
    blocks = printed_blocks(log)
    told = [f"{blocks:,} printed blocks"] if blocks is not None else []
    told += [f"{log.tokens:,} printed tokens"] if log.tokens is not None else []
    told += [f"a concurrency of {log.concurrency:.2f}"] if log.concurrency is not None else []
    return " and ".join(told)


def _find_blocks(model: ModelSpec, deployment: Deployment, log: StartUp) -> tuple[Plan, Plan] | None:
    """Return the plans with the fewest and the most blocks that give the printed figures; None when none does."""
    largest = make_plan(model, deployment, KvMemory.given(_MOST_BYTES))
    unit = max(size for rank in largest.ranks for size in rank.unit_bytes.values())

    def plan(blocks: int) -> Plan:
        return make_plan(model, deployment, KvMemory.given(blocks * unit))

    def find_first(least: float) -> int:
        low, high = 0, _MOST_BYTES // unit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _growing_figure(plan(middle), log) >= least else (middle, high)
        return high

    low, high = _growing_ends(log)
    start, stop = find_first(low), find_first(high)
    found = [made for blocks in range(start, min(stop, start + _MOST_BLOCKS)) if agrees(made := plan(blocks), log)]
    return (found[0], found[-1]) if found else None


def _growing_figure(plan: Plan, log: StartUp) -> float:
    """Return the figure that is searched for: of the printed ones the one that tells most about the blocks."""
    if printed_blocks(log) is not None:
        return plan.pools[0].units
    return (plan.printed_tokens or 0) if log.tokens is not None else (plan.printed_concurrency or 0.0)


def _growing_ends(log: StartUp) -> tuple[float, float]:
    """Return the least value of that figure that is printed as it was, and the first that is not."""
    blocks = printed_blocks(log)
    told = blocks if blocks is not None else log.tokens
    if told is not None:
        return told, told + 1
    return log.concurrency_ends
