"""From what `measure` and `size` read to findings: the cases, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvledger.engines.registry import load_planner
from kvledger.findings.evidence import LogCase, MeasureCase, PoolsCase, SizeCase
from kvledger.findings.search import find_in_log, find_in_measure, find_in_pools, find_in_size

if TYPE_CHECKING:
    from kvledger.engines.facts import EngineLog, EngineSnapshot
    from kvledger.engines.vllm.metrics import VllmEngine
    from kvledger.findings.finding import FindingsReport
    from kvledger.measure.log_check import LogCheck
    from kvledger.measure.pool_summary import PoolSummary
    from kvledger.measure.summary import EngineSummary
    from kvledger.report.size import EngineAnswer

__all__ = ["look_at_engines", "look_at_log", "look_at_plans", "look_at_pools"]


def look_at_engines(found: Sequence[tuple[str, EngineSummary, VllmEngine | None]]) -> FindingsReport:
    """Look at the engines of a measurement, each with its server's name and its last scrape."""
    several = len(found) > 1
    return find_in_measure(
        [
            MeasureCase(
                subject=f"{name}, engine {summary.engine_index}" if several else summary.model or "the server",
                summary=summary,
                engine=engine,
            )
            for name, summary, engine in found
        ]
    )


def look_at_log(log: EngineLog, checks: Sequence[LogCheck]) -> FindingsReport:
    """Look at every engine of a log."""
    several = len(checks) > 1
    return find_in_log(
        [
            LogCase(
                subject=f"engine {check.engine_index}" if several else check.model or str(check.engine),
                log=log,
                check=check,
            )
            for check in checks
        ]
    )


def look_at_pools(found: Sequence[tuple[str, PoolSummary, EngineSnapshot]]) -> FindingsReport:
    """Look at the pools of engines that tell them themselves, those of one engine (or rank) together.

    Each comes with its server's name and its last snapshot.
    """
    groups: dict[tuple[str, str, int, str], list[PoolSummary]] = {}
    last: dict[tuple[str, str, int, str], EngineSnapshot] = {}
    for name, pool, snapshot in found:
        key = (name, str(pool.key.engine), pool.key.index, pool.key.rank)
        groups.setdefault(key, []).append(pool)
        last[key] = snapshot
    several = len(groups) > 1
    return find_in_pools(
        [
            PoolsCase(
                subject=" ".join(filter(None, (f"{key[0]},", key[1], key[3]))) if several else pools[0].model or key[1],
                pools=tuple(pools),
                snapshot=last[key],
            )
            for key, pools in groups.items()
        ]
    )


def look_at_plans(answers: Sequence[EngineAnswer]) -> FindingsReport:
    """Look at every plan that was made."""
    return find_in_size(
        [SizeCase(outcome=one.outcome, planner=load_planner(one.engine)) for one in answers if one.outcome is not None]
    )
