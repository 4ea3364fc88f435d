"""The record that `replay` and `demo` report: the question, and what each policy did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvledger.findings.finding import FindingsReport
from kvledger.pool.policy import Kind, Policy
from kvledger.replay.fit import ClockFit
from kvledger.replay.mitigation import Mitigation
from kvledger.replay.outcome import Outcome
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.snapshot import Snapshot
from kvledger.replay.what_if import WhatIf
from kvledger.traces.record import Trace

__all__ = ["ReplayReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """One replay of one trace under several policies.

    ``model`` names the model or says that bytes per token were given; ``max_model_len_origin`` and ``notes`` say what
    was not asked for but assumed. ``mitigations`` holds a table per contiguous policy. ``left_out`` says why policies
    were left out of which not even one unit fits the pool. ``what_ifs`` change one setting of the policy ``tried``.
    ``layouts`` holds what lies where, where it was asked for.
    ``fit`` says how good a fitted clock is.
    """

    source: str
    trace: Trace
    model: str
    pool: Pool
    settings: Settings
    max_model_len_origin: str
    policies: Sequence[Policy]
    outcomes: Sequence[Outcome]
    mitigations: Mapping[str, Sequence[Mitigation]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fit: ClockFit | None = None
    what_ifs: Sequence[WhatIf] = ()
    findings: FindingsReport | None = None
    tried: str = ""
    layouts: Mapping[str, Sequence[Snapshot]] = field(default_factory=dict)

    def outcome(self, policy: str) -> Outcome:
        """Return the outcome of the policy of that name."""
        return next(o for o in self.outcomes if o.policy == policy)

    @property
    def reserving(self) -> Outcome | None:
        """The first policy that gives each request one extent."""
        kinds = {p.name: p.kind for p in self.policies}
        return next((o for o in self.outcomes if kinds[o.policy] is Kind.CONTIGUOUS), None)

    @property
    def paged(self) -> Outcome | None:
        """The first policy of block tables on demand."""
        kinds = {p.name: p.kind for p in self.policies}
        return next((o for o in self.outcomes if kinds[o.policy] is Kind.PAGED), None)
