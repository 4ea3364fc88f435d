"""The record that `measure`, `watch` and `check` report."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.findings.finding import FindingsReport
from kvledger.measure.pool_summary import PoolSummary
from kvledger.measure.summary import EngineSummary

__all__ = ["MeasureReport", "SourceReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One server: its engines, and the samples that failed."""

    name: str
    engines: tuple[EngineSummary, ...] = ()
    """Of vLLM."""
    pools: tuple[PoolSummary, ...] = ()
    """Of every other engine."""
    samples: int
    missed: int
    """Samples for which the server gave no answer that can be read."""
    last_error: str = ""
    failing: str = ""
    """Why the last of all samples failed; empty when it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureReport:
    """One measurement of one or several servers."""

    sources: tuple[SourceReport, ...]
    notes: tuple[str, ...] = ()
    """What was assumed, and what would make the numbers better."""
    findings: FindingsReport | None = None

    @property
    def engines(self) -> list[EngineSummary]:
        """All engines of vLLM of all servers."""
        return [engine for source in self.sources for engine in source.engines]

    @property
    def has_several(self) -> bool:
        """True when engines must be told apart; several pools of one engine are not several engines.

        A server that never answered is one too: what is told is not of all that was asked.
        """
        ranks = {
            (number, pool.key.engine, pool.key.index, pool.key.rank)
            for number, source in enumerate(self.sources)
            for pool in source.pools
        }
        silent = sum(not source.engines and not source.pools for source in self.sources)
        return len(self.engines) + len(ranks) + silent > 1

    @property
    def pools(self) -> list[PoolSummary]:
        """All pools of other engines of all servers."""
        return [pool for source in self.sources for pool in source.pools]
