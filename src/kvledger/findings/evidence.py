"""What findings look at: results that exist already, and how a change to them would be proved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvledger.engines.facts import EngineLog, EngineSnapshot, PeriodicSample, StartupFacts
from kvledger.engines.plan import Plan, Planner
from kvledger.engines.size import SizeOutcome
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.errors import CapacityError, Error, UsageError
from kvledger.ledger import Account
from kvledger.measure.log_check import LogCheck
from kvledger.measure.pool import PoolShape
from kvledger.measure.pool_summary import PoolSummary
from kvledger.measure.sheet import Sheet
from kvledger.measure.summary import EngineSummary
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.replay.what_if import Scenario
from kvledger.replay.workload import Workload
from kvledger.units import counted

__all__ = ["LogCase", "MeasureCase", "PoolsCase", "Prover", "ReplayCase", "SizeCase", "wasted_bytes"]

_TYPICAL_TOKENS = 800
_WASTE = (Account.RESERVED, Account.INTERNAL, Account.EXTERNAL)


@dataclass(slots=True)
class Prover:
    """Replays a scenario for a proof, unless ``run`` is None or refuses by returning None; counts what it refused."""

    run: Callable[[Workload, Scenario], Outcome | None] | None = None
    refused: int = 0

    def prove(self, workload: Workload, scenario: Scenario) -> Outcome | None:
        """Return the outcome, or None when the replay is not allowed, or nothing replays what is asked together."""
        try:
            outcome = self.run(workload, scenario) if self.run is not None else None
        except (UsageError, CapacityError):  # such as a beam search beside a prefix cache
            return None
        self.refused += outcome is None
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCase:
    """One policy of a replay, beside the others that were replayed with it."""

    workload: Workload
    scenario: Scenario
    outcome: Outcome
    known: Sequence[tuple[Scenario, Outcome]] = ()
    """Everything replayed already."""
    prover: Prover = field(default_factory=Prover)
    recast: Callable[[Scenario, str], Scenario | None] = lambda _scenario, _dtype: None
    """Returns the scenario with keys and values in another dtype; None when no model tells its bytes."""

    @property
    def subject(self) -> str:
        """How the policy is called in findings."""
        return f"`{self.outcome.policy}`"

    def replay(self, scenario: Scenario) -> Outcome | None:
        """Return the outcome of a scenario: known already, or replayed if that is allowed."""
        found = next((outcome for other, outcome in self.known if other == scenario), None)
        return found if found is not None else self.prover.prove(self.workload, scenario)

    def replay_other(self, workload: Workload) -> Outcome | None:
        """Return the outcome of other traffic under the same policy, if that is allowed."""
        return self.prover.prove(workload, self.scenario)

    def replay_paged(self) -> Outcome | None:
        """Return what block tables on demand would have done: one that was replayed, else one of the same block."""
        here = self.scenario
        for other, outcome in self.known:
            plain = other.policy.kind is Kind.PAGED and not other.policy.prefix_caching
            if plain and (other.pool, other.settings) == (here.pool, here.settings):
                return outcome
        policy = replace(here.policy, name=f"paged@{here.policy.block_size}", kind=Kind.PAGED)
        return self.replay(replace(here, policy=policy))

    def bytes_of(self, account: Account) -> int:
        """Return the mean bytes of an account, while requests wait if they were held up, else while any runs."""
        return round(self.outcome.headline_ratio[account] * self.outcome.capacity_bytes)


def wasted_bytes(outcome: Outcome) -> int:
    """Return the mean bytes that hold nothing: reserved, internal and external."""
    return round(sum(outcome.headline_ratio[account] for account in _WASTE) * outcome.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureCase:
    """One vLLM engine over a window; ``engine`` is its last scrape."""

    subject: str
    summary: EngineSummary
    engine: VllmEngine | None = None

    @property
    def shape(self) -> PoolShape | None:
        """The pool, at the reading that is shown."""
        return self.summary.shown.shape

    @property
    def unit(self) -> str:
        """What amounts are counted in: bytes, or tokens where nothing tells what a token costs."""
        shape = self.shape
        return "bytes" if shape is not None and shape.pricing is not None else "tokens"

    def amount_of(self, tokens: float) -> float:
        """Return slots of the pool in the unit of the case."""
        shape = self.shape
        if shape is None or shape.pricing is None:
            return tokens
        return tokens * shape.pricing.block_bytes / shape.block_tokens

    @property
    def peak_held_tokens(self) -> int:
        """The most slots that were held at once."""
        peak = self.summary.peak
        return peak.balance.held if peak is not None and peak.balance is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsCase:
    """The pools of one engine (or rank) that tells them itself, over a window."""

    subject: str
    pools: tuple[PoolSummary, ...]
    snapshot: EngineSnapshot
    """What the engine said last, histograms included."""

    @property
    def sheets(self) -> tuple[Sheet, ...]:
        """The last sheet of each pool that has one."""
        return tuple(pool.last.sheet for pool in self.pools if pool.last.sheet is not None)

    @property
    def only(self) -> PoolSummary | None:
        """The pool, where there is one and it has a sheet."""
        return self.pools[0] if len(self.pools) == 1 and self.pools[0].last.sheet is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCase:
    """One engine of the last start of a log."""

    subject: str
    log: EngineLog
    check: LogCheck

    @property
    def startup(self) -> StartupFacts | None:
        """What the last start printed."""
        return self.log.startups[-1] if self.log.startups else None

    @property
    def samples(self) -> tuple[PeriodicSample, ...]:
        """The periodic lines of this engine since its last start."""
        first = self.startup.first_line if self.startup is not None else 0
        index = self.check.engine_index
        return tuple(s for s in self.log.samples if s.line >= first and s.engine_index == index)

    @property
    def pool_tokens(self) -> float | None:
        """Slots of the pool: as told, else those of the concurrency at the longest request."""
        tokens, times, longest = self.check.tokens, self.check.concurrency, self.check.max_model_len
        if tokens is not None:
            return float(tokens.value)
        return None if times is None or longest is None else float(times.value * longest.value)

    @property
    def unit(self) -> str:
        """What amounts are counted in: bytes where the log tells bytes and tokens, else tokens."""
        return "tokens" if self.token_bytes is None else "bytes"

    @property
    def token_bytes(self) -> float | None:
        """Bytes of the pool of one rank for each of its slots, where the log tells both."""
        size, tokens = self.check.size_bytes, self.pool_tokens
        return None if size is None or not tokens else size.value / tokens

    def amount_of(self, tokens: float) -> float:
        """Return slots of the pool in the unit of the case."""
        return tokens * (self.token_bytes or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCase:
    """The plan of one engine, and its planner for proofs."""

    outcome: SizeOutcome
    planner: Planner

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.outcome.plan

    @property
    def subject(self) -> str:
        """How the plan is called in findings."""
        return f"{self.plan.deployment.engine} {self.plan.deployment.version}"

    @property
    def length_tokens(self) -> int:
        """The length of a request that was asked for, else 800 or what is allowed."""
        longest = self.plan.deployment.max_model_len or _TYPICAL_TOKENS
        return min(self.outcome.question.length_tokens or _TYPICAL_TOKENS, longest)

    @property
    def length_words(self) -> str:
        """The length in words, with the remark that it is assumed where it is."""
        assumed = "" if self.outcome.question.length_tokens is not None else " (assumed; give --length)"
        return f"{counted(self.length_tokens, 'token')}{assumed}"

    def replan(self, *, options: Mapping[str, str] | None = None, **changes: Any) -> Plan | None:
        """Plan again with other settings and the same bytes; None where the engine refuses them."""
        question = self.outcome.question
        merged = dict(question.deployment.options) | dict(options or {})
        deployment = replace(question.deployment, options=merged, **changes)
        try:
            return self.planner.make_plan(question.model, deployment, self.outcome.memory)
        except Error:
            return None

    def saved_bytes(self, after: Plan) -> int:
        """Return what the requests of the load that is shown hold in all, minus what they would hold in ``after``."""
        load = self.outcome.load or self.outcome.structure
        if load is None:
            return 0
        one = self.plan.count_request_bytes(load.length_tokens) - after.count_request_bytes(load.length_tokens)
        return one * load.requests * self.plan.deployment.dp

    def count_requests(self, plan: Plan | None = None) -> int:
        """Return how many requests of `length_tokens` the memory of a plan holds at once."""
        memory_only = replace(plan or self.plan, request_limit=None)
        return memory_only.count_requests(self.length_tokens)
