"""What findings look at: results that exist already, and how a change to them would be proved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvledger.engines.facts import EngineLog, EngineSnapshot
from kvledger.engines.plan import Deployment, KvMemory, Plan
from kvledger.engines.size import SizeOutcome
from kvledger.ledger import Account
from kvledger.measure.log_check import LogCheck
from kvledger.measure.snapshots import SnapshotSheet
from kvledger.measure.summary import EngineSummary
from kvledger.model.spec import ModelSpec
from kvledger.pool.policy import Kind
from kvledger.replay.outcome import Outcome
from kvledger.replay.what_if import Scenario
from kvledger.replay.workload import Workload

__all__ = ["LogCase", "MeasureCase", "Prover", "ReplayCase", "SizeCase", "SnapshotCase", "wasted_bytes"]

_WASTE = (Account.RESERVED, Account.INTERNAL, Account.EXTERNAL)


@dataclass(slots=True)
class Prover:
    """Replays a scenario for a proof, unless ``run`` is None or refuses by returning None; counts what it refused."""

    run: Callable[[Workload, Scenario], Outcome | None] | None = None
    refused: int = 0

    def prove(self, workload: Workload, scenario: Scenario) -> Outcome | None:
        """Return the outcome, or None when the replay is not allowed."""
        outcome = self.run(workload, scenario) if self.run is not None else None
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
    """One vLLM engine over a window."""

    subject: str
    summary: EngineSummary
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """The labels of ``vllm:cache_config_info``."""
    model: ModelSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCase:
    """One instant of another engine."""

    subject: str
    snapshot: EngineSnapshot
    sheets: tuple[SnapshotSheet, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCase:
    """A log: what was read, and what follows for each engine of its last start."""

    subject: str
    log: EngineLog
    checks: tuple[LogCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCase:
    """The plan of one engine; ``plan`` makes another one, for proofs."""

    outcome: SizeOutcome
    plan: Callable[[Deployment, KvMemory], Plan]

    @property
    def subject(self) -> str:
        """How the plan is called in findings."""
        deployment = self.outcome.plan.deployment
        return f"{deployment.engine} {deployment.version}"
