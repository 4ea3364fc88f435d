"""From the options of ``replay`` to its report: reads the trace and the model, runs the policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvledger.cli.clocks import (
    clock_at,
    clock_of,
    default_clock,
    fit_part,
    fitted,
    notes_on_weights,
    recorded_policy,
)
from kvledger.cli.cost import Cost, cost_of, pool_of
from kvledger.cli.grouping import grouped, notes_on_groups
from kvledger.cli.output import refuse_input, refuse_overwrite
from kvledger.cli.proving import Proofs, find
from kvledger.cli.question import Question
from kvledger.cli.recorded import OF_RECORDING, as_recorded, clock_source, is_recorded, warnings_of
from kvledger.cli.remarks import (
    OF_MODEL,
    notes_on_blocks,
    notes_on_content,
    notes_on_the_length,
    notes_on_the_start,
)
from kvledger.cli.running import KernelNotice, progress_bar
from kvledger.cli.sampling import notes_on_samples, with_answers
from kvledger.cli.swapping import check_swap_space, notes_on_swapping
from kvledger.cli.trying import Change, TryContext, check_tries, notes_on_tries, parse_tries, run_tries
from kvledger.errors import CapacityError, UsageError
from kvledger.pool.policy import Eviction, Kind, Placement, Policy, Preemption, Sampling, parse_policies
from kvledger.replay.clock import Clock
from kvledger.replay.mitigation import Mitigation, mitigate
from kvledger.replay.moments import take_snapshots
from kvledger.replay.outcome import Outcome, SeriesRows
from kvledger.replay.samples import check_sampling
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.simulate import replay
from kvledger.replay.snapshot import Snapshot
from kvledger.replay.tables import NEEDS_CACHE
from kvledger.replay.what_if import Scenario, Setting, WhatIf
from kvledger.replay.workload import Workload
from kvledger.sources.files import load_trace
from kvledger.traces import Trace, with_rate
from kvledger.units import parse_bytes

if TYPE_CHECKING:
    from kvledger.report.replay import ReplayReport

__all__ = ["ask", "source_name"]


def ask(question: Question, *, load: Callable[..., Trace] = load_trace) -> ReplayReport:
    """Answer the question: load, replay, and gather the report.

    Args:
        question: The options.
        load: Loads the trace, as `load_trace` does; for callers that keep traces between questions.

    Raises:
        UsageError: A setting cannot be used.
        SourceError: The trace or the model cannot be read.
        CapacityError: The pool has not even one block.
    """
    from kvledger.report.replay import ReplayReport

    recorded = _trace(question, load, identity=False) if is_recorded(question) else None
    question, said = as_recorded(question, None if recorded is None else recorded.served)
    mitigated, changes = _mitigated(question), parse_tries(question.tries)
    policies = _joined(_policies(question, question.policies), mitigated)
    cost = cost_of(question, needs_layers=any(policy.kind is Kind.VMM for policy in policies))
    policies = [_grouped(policy, cost, question) for policy in policies]
    pool = pool_of(question, cost)
    warned = () if recorded is None else warnings_of(question, recorded.served, pool)
    policies, left_out = _runnable(policies, pool)
    clock_text, assumed = _clock_text(question, cost)
    part = fit_part(clock_text)
    clock = replace(clock_of(clock_text, cost), block_overhead_tokens=question.block_overhead)
    clock = replace(clock, name=clock_source(question, clock.name))
    trace = recorded or _trace(
        question, load, identity=_needs_identity(policies, changes, proving=question.findings == Proofs.ALL)
    )
    length, origin = _max_model_len(question, cost, trace.workload)
    settings = _settings_of(question, clock, length)
    notice, fit = KernelNotice(quiet=question.quiet), None
    if part is not None:
        fit = fitted(trace, recorded_policy(policies), pool, settings, part_ratio=part, notice=notice)
        block = recorded_policy(policies).block_tokens
        clock = fit.clock if block is None else fit.clock.with_overhead(question.block_overhead, block_tokens=block)
        settings = replace(settings, clock=clock)
    targets = _series_targets(question, policies)
    runner = _Runner(trace.workload, pool, settings, notice=notice)
    context = _context(
        question, cost, clock_text, Scenario(policy=recorded_policy(policies), pool=pool, settings=settings)
    )
    for policy in policies:
        check_sampling(policy, trace.workload)
        check_swap_space(policy, pool)
    check_tries(changes, context, trace.workload)
    outcomes = [runner.run(policy, series=targets.get(policy.name), force=question.force) for policy in policies]
    replayed = list(zip(policies, outcomes, strict=True))
    return ReplayReport(
        source=source_name(question.trace),
        trace=trace,
        model=cost.name,
        pool=pool,
        settings=settings,
        fit=fit,
        max_model_len_origin=origin,
        policies=policies,
        outcomes=outcomes,
        mitigations=runner.mitigate(mitigated, outcomes),
        what_ifs=runner.try_all(changes, context, outcomes),
        tried=context.base.policy.name,
        layouts=runner.look(replayed) if question.layout else {},
        findings=find(question.findings, trace.workload, context, replayed, run=runner.prove),
        left_out=left_out,
        notes=(
            *warned,
            *said,
            *cost.notes,
            *(f"`{name}` is left out: {why}" for name, why in left_out.items()),
            *assumed,
            *notes_on_weights(clock_text, cost, pool.total_bytes(policies[0])),
            *_notes_on_policies(policies, pool, settings, cost, trace, origin),
            *notes_on_swapping([policy.name for policy in policies if policy.swaps], changes, settings.clock),
            *notes_on_tries(changes, clock_text, settings.clock),
        ),
    )


def _joined(policies: list[Policy], others: list[Policy]) -> list[Policy]:
    """Return the policies, and the others whose names are not among them."""
    named = {policy.name for policy in policies}
    return [*policies, *(policy for policy in others if policy.name not in named)]


def _grouped(policy: Policy, cost: Cost, question: Question) -> Policy:
    return grouped(policy, cost, kv_dtype=question.kv_dtype, window_ratio=question.swa_full_tokens_ratio)


def _settings_of(question: Question, clock: Clock, length: int) -> Settings:
    return Settings(
        max_model_len=length,
        max_num_seqs=question.max_num_seqs,
        max_num_batched_tokens=question.max_num_batched_tokens,
        clock=clock,
        restart_every_seconds=question.restart_every,
        restart_down_seconds=60.0 if question.restart_every else 0.0,
    )


def _notes_on_policies(
    policies: list[Policy], pool: Pool, settings: Settings, cost: Cost, trace: Trace, origin: str
) -> tuple[str, ...]:
    return (
        *notes_on_blocks(policies, pool),
        *notes_on_the_start(policies, pool, settings),
        *notes_on_the_length(policies, origin, settings, trace.workload),
        *notes_on_groups(policies, cost),
        *notes_on_content(policies, trace),
        *notes_on_samples(policies, trace.workload),
    )


def _runnable(policies: list[Policy], pool: Pool) -> tuple[list[Policy], dict[str, str]]:
    """Leave out policies of which not even one unit fits the pool, and say why, before anything is read or run.

    Raises:
        CapacityError: None is left.
    """
    kept, left_out, first = [], {}, None
    for policy in policies:
        try:
            pool.divide(policy)
            kept.append(policy)
        except CapacityError as error:
            first = first or error
            left_out[policy.name] = error.message
    if first is not None and not kept:
        raise first
    return kept, left_out


def _clock_text(question: Question, cost: Cost) -> tuple[str, tuple[str, ...]]:
    """Choose a clock where none was given: a roofline with the model's own parameters, if it states them."""
    if question.clock is not None:
        return question.clock, ()
    clock = default_clock(cost)
    if cost.model is not None and cost.model.parameters is not None:
        return clock, ()
    return clock, (f"no --clock was given and the parameters are not known, so time is that of {clock}, modelled",)


def _needs_identity(policies: list[Policy], changes: list[Change], *, proving: bool) -> bool:
    tried = any(change.setting is Setting.PREFIX_CACHING for change in changes)
    return tried or proving or any(policy.caches for policy in policies)


def _trace(question: Question, load: Callable[..., Trace], *, identity: bool) -> Trace:
    trace = load(
        question.trace,
        columns=question.columns,
        seed=question.seed,
        identity=identity,
        session_starts=question.session_starts,
        content=question.content,
    )
    if question.rate is not None:
        trace = with_rate(trace, question.rate, seed=question.seed)
    return with_answers(trace, question)


def _context(question: Question, cost: Cost, clock_text: str, base: Scenario) -> TryContext:
    def at(bytes_per_token: int, ranks: int) -> Clock:
        return clock_at(clock_text, base.settings.clock, cost, bytes_per_token=bytes_per_token, ranks=ranks)

    return TryContext(base=base, cost=cost, kv_dtype=question.kv_dtype, clock_at=at)


class _Runner:
    """Runs policies over one workload, with the notices and the files that go with it."""

    def __init__(self, workload: Workload, pool: Pool, settings: Settings, *, notice: KernelNotice) -> None:
        self._workload, self._pool, self._settings = workload, pool, settings
        self._notice, self._quiet = notice, notice.quiet

    def run(self, policy: Policy, *, series: Path | None = None, force: bool = False) -> Outcome:
        with (
            self._notice.around(policy, self._workload),
            progress_bar(policy.name, len(self._workload), quiet=self._quiet) as progress,
            _series_writer(series, force=force) as write,
        ):
            return replay(
                self._workload, policy, pool=self._pool, settings=self._settings, series=write, progress=progress
            )

    def prove(self, workload: Workload, scenario: Scenario) -> Outcome:
        """Replay a scenario that nobody asked for, so without a bar."""
        with self._notice.around(scenario.policy, workload):
            return replay(workload, scenario.policy, pool=scenario.pool, settings=scenario.settings)

    def look(self, replayed: list[tuple[Policy, Outcome]]) -> dict[str, list[Snapshot]]:
        return {
            policy.name: take_snapshots(
                self._workload, policy, pool=self._pool, settings=self._settings, outcome=outcome
            )
            for policy, outcome in replayed
        }

    def try_all(self, changes: list[Change], context: TryContext, outcomes: list[Outcome]) -> list[WhatIf]:
        before = next(outcome for outcome in outcomes if outcome.policy == context.base.policy.name)

        def run(scenario: Scenario) -> Outcome:
            return _Runner(self._workload, scenario.pool, scenario.settings, notice=self._notice).run(scenario.policy)

        return run_tries(changes, context, before=before, run=run)

    def mitigate(self, policies: list[Policy], outcomes: list[Outcome]) -> dict[str, list[Mitigation]]:
        known = {outcome.policy: outcome for outcome in outcomes}
        tables = {}
        for policy in policies:
            before = known[policy.name]
            tables[policy.name] = list(
                mitigate(self._workload, policy, pool=self._pool, settings=self._settings, before=before)
            )
        return tables


def _policies(question: Question, text: str) -> list[Policy]:
    try:
        placement = Placement(question.placement)
    except ValueError:
        raise UsageError(
            f"unknown placement `{question.placement}`", hint=f"the placements are {', '.join(Placement)}"
        ) from None
    base = Policy(
        name="",
        kind=Kind.PAGED,
        placement=placement,
        buffer_tokens=question.buffer,
        granularity_tokens=question.granularity,
        growth_step_tokens=question.grow_step,
        block_size=question.block_size,
        watermark_ratio=question.watermark,
        full_sequence_must_fit=question.full_sequence_must_fit,
        prefix_caching=question.prefix_caching == "on",
        eviction=Eviction(question.eviction),
        sampling=None if question.samples_as is None else Sampling(question.samples_as),
        preemption=Preemption(question.preemption),
        swap_bytes=parse_bytes(question.swap_space),
    )
    policies = parse_policies(text, base=base)
    if base.eviction is not Eviction.LRU and not any(policy.caches for policy in policies):
        raise UsageError(f"--eviction {base.eviction} chooses among cached blocks, and none are", hint=NEEDS_CACHE)
    return policies


def _mitigated(question: Question) -> list[Policy]:
    policies = _policies(question, question.mitigations) if question.mitigations is not None else []
    for policy in policies:
        if policy.kind is not Kind.CONTIGUOUS:
            raise UsageError(f"`{policy.name}` has no extents to mitigate", hint="name max, declared, pow2 or exact")
    return policies


def _max_model_len(question: Question, cost: Cost, workload: Workload) -> tuple[int, str]:
    if question.max_model_len is not None:
        is_taken = "max_model_len" in (question.defaulted or ())
        return question.max_model_len, OF_RECORDING if is_taken else "given"
    if cost.max_model_len is not None:
        return cost.max_model_len, OF_MODEL
    return max(2, workload.longest_tokens), "the longest request of the trace"


def source_name(text: str) -> str:
    """Return what reports call a trace: its name without folders."""
    if text.startswith("synthetic:"):
        return text
    if text == "-":
        return "standard input"
    name = Path(text).name or "this folder"
    return "".join(c if c.isprintable() else "?" for c in name)


def _series_targets(question: Question, policies: list[Policy]) -> dict[str, Path]:
    if question.series is None:
        return {}
    path = Path(question.series)
    if question.series == "-":
        raise UsageError("--series writes a file, not standard output", hint="give --series a file name")
    if not path.name:
        raise UsageError(f"`{question.series}` is a folder", hint="give --series a file name")
    if len(policies) == 1:
        targets = {policies[0].name: path}
    else:
        names = {p.name: p.name.replace(":", "-") for p in policies}  # a file name on any system
        targets = {p: path.with_name(f"{path.stem}.{name}{path.suffix or '.csv'}") for p, name in names.items()}
    for target in targets.values():
        refuse_input(target, question.trace)
        refuse_overwrite(target, force=question.force)
    return targets


@contextmanager
def _series_writer(path: Path | None, *, force: bool) -> Iterator[Callable[[SeriesRows], None] | None]:
    """Yield what writes rows to ``path``, or None; the file appears only when it is whole."""
    if path is None:
        yield None
        return
    from kvledger.cli.output import new_file
    from kvledger.report.series import SeriesFile

    with new_file(str(path), force=force) as stream:
        file = SeriesFile(stream)
        yield file.write
        file.close()
