"""The answer of ``size`` as text: in words first, then what the engine prints, what requests cost, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvledger.engines.plan import Plan
from kvledger.engines.size import Fit, RequestCost, SizeOutcome
from kvledger.engines.structure import Sheet, StructuralLedger
from kvledger.engines.vllm.logcheck import LogCheck
from kvledger.errors import Error
from kvledger.findings.finding import FindingsReport
from kvledger.ledger import Account
from kvledger.model.gpus import Gpu
from kvledger.report.chips import account_chip
from kvledger.report.findings import findings_sections
from kvledger.report.tables import heading, new_table, percent
from kvledger.units import counted, format_bytes

__all__ = ["EngineAnswer", "SizeReport", "answer", "size_text"]

_NEARLY_ALL_RATIO = 0.99
_OUTSIDE = (
    ("outside the pool", 1, "given, but less than a block or more than another rank has or the engine allocates"),
    ("beyond what was given", -1, "the engine allocates so much more than it was given"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """What one engine's planner said: an outcome, or why there is none."""

    engine: str
    version: str
    outcome: SizeOutcome | None
    error: Error | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeReport:
    """Everything ``size`` shows."""

    model: str
    answers: tuple[EngineAnswer, ...]
    log: LogCheck | None = None
    notes: tuple[str, ...] = ()
    findings: FindingsReport | None = None
    gpu: Gpu | None = None
    """The device that the memory was estimated from."""


def size_text(report: SizeReport) -> RenderableType:
    """Return the report, ready to print with rich."""
    if len(report.answers) == 1 and report.answers[0].outcome is not None:
        return Group(*_one(report, report.answers[0].outcome))
    return Group(*_several(report), *findings_sections(report.findings))


def _one(report: SizeReport, outcome: SizeOutcome) -> Iterator[RenderableType]:
    yield _question(report.model, outcome)
    yield Text()
    yield Text(answer(outcome), style="bold")
    if report.log is not None:
        yield heading("What the log says", "the printed figures against those that follow from its bytes")
        yield Text(_log_words(report.log))
    if outcome.plan.lines or outcome.plan.failure is not None:
        yield heading("What the engine prints", "and what each line means")
        yield _lines(outcome.plan)
    yield heading("What requests cost", "on all ranks of one replica; `in use` is keys, values and states, stored once")
    yield _costs(outcome)
    if outcome.structure is not None:
        yield heading("Where every byte goes at full load", _load_words(outcome.structure))
        yield _sheets(outcome.structure)
    if outcome.load is not None:
        yield heading("Where every byte goes at the load you asked for", _load_words(outcome.load))
        yield _sheets(outcome.load)
    yield from findings_sections(report.findings)
    yield heading("How these numbers are known")
    yield _provenance(outcome)


def _question(model: str, outcome: SizeOutcome) -> Text:
    deployment = outcome.plan.deployment
    parallel = ", ".join(
        f"{name} {value}" for name in ("tp", "pp", "dcp", "pcp", "dp") if (value := getattr(deployment, name)) > 1
    )
    memory = f"{format_bytes(outcome.memory.smallest_bytes)} of KV memory a rank"
    low, high = format_bytes(outcome.memory.low_bytes), format_bytes(outcome.memory.high_bytes)
    if low != high:
        memory += f" ({low} to {high})"
    lines = [
        f"{model} on {deployment.engine} {deployment.version}" + (f", {parallel}" if parallel else ""),
        f"{memory}; KV dtype {deployment.kv_dtype}, max_model_len {deployment.max_model_len or 0:,}",
        f"{outcome.growth_bytes:,} bytes a further token, {format_bytes(outcome.fixed_bytes)} a sequence besides",
    ]
    return Text("\n".join(lines))


def answer(outcome: SizeOutcome) -> str:
    """Say in words what fits."""
    plan = outcome.plan
    if outcome.fitted is not None:
        return _fitted_words(outcome)
    if plan.failure is not None:
        return _failure_words(outcome)
    fits = [cost for cost in outcome.costs if cost.requests]
    if not fits:
        return "Not one request fits."
    short, long = _typical(outcome)
    words = f"The memory holds {_requests(long.requests, long.length_tokens)} at once"
    if short.length_tokens != long.length_tokens:
        words += f", or {short.requests:,} of {short.length_tokens:,}"
    limit = outcome.per_request_limit
    if limit is not None and limit < short.requests:
        words += f"; the engine runs at most {limit:,} at once"
    if outcome.structure is not None:
        sheet = outcome.structure.deployment
        words += f". At full load {percent(sheet.ledger.utilisation)} of the pool holds tokens or states in use"
    return f"{words}.{_asked_words(outcome)}"


def _failure_words(outcome: SizeOutcome) -> str:
    """Say why the engine does not start, and with which length it does."""
    failure, longest = outcome.plan.failure, outcome.largest_max_model_len
    assert failure is not None
    instead = f"It starts with --max-model-len {longest:,}" if longest else "It starts with no length at all"
    fitted = outcome.fitted
    if longest and fitted is not None and fitted.shortened_requests is not None:
        instead += f", and then {_requests(fitted.shortened_requests, _fitted_length(outcome))} can run at once"
    return (
        f"It does not start: one request of max_model_len {outcome.plan.deployment.max_model_len:,} needs "
        f"{format_bytes(failure.needed_bytes)}, {format_bytes(max(0, failure.available_bytes))} are there. {instead}."
    )


def _asked_words(outcome: SizeOutcome) -> str:
    """Say whether the load that was asked for fits."""
    length, count = outcome.question.length_tokens, outcome.question.concurrency
    if length is None or count is None:
        return ""
    most = next(cost.requests for cost in outcome.costs if cost.length_tokens == length)
    limit = min(most, outcome.per_request_limit or most)
    if count <= limit:
        return f" {_requests(count, length)} can run at once."
    return f" {_requests(count, length)} cannot run at once, {limit:,} can."


def _typical(outcome: SizeOutcome) -> tuple[RequestCost, RequestCost]:
    asked = outcome.question.length_tokens
    short = next((c for c in outcome.costs if c.length_tokens == (asked or 800)), outcome.costs[0])
    return short, outcome.costs[-1]


def _fitted_length(outcome: SizeOutcome) -> int:
    return outcome.question.length_tokens or outcome.plan.deployment.max_model_len or 0


def _fitted_words(outcome: SizeOutcome) -> str:
    fitted, question = outcome.fitted, outcome.question
    assert fitted is not None
    length = _fitted_length(outcome)
    match fitted.fit:
        case Fit.MEMORY:
            words = (
                f"{_requests(question.concurrency or 1, length)}: {format_bytes(fitted.value)} "
                f"({fitted.value:,} bytes) of KV memory on every rank are needed"
            )
            if fitted.shorter_bytes is None:
                return f"{words}."
            return (
                f"{words}, so much because the engine makes room for a max_model_len of "
                f"{outcome.plan.deployment.max_model_len or 0:,}: with --max-model-len {length:,}, "
                f"{format_bytes(fitted.shorter_bytes)} are enough."
            )
        case Fit.CONCURRENCY:
            if outcome.plan.failure is not None:
                return _failure_words(outcome)
            return f"{_requests(fitted.value, length)} run at once."
        case Fit.MAX_MODEL_LEN:
            if not fitted.value:
                return "The engine starts with no length: not even one token fits."
            return f"The engine starts with --max-model-len {fitted.value:,} and no longer."


def _lines(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    table.add_column(overflow="fold")
    if plan.failure is not None:
        table.add_row(Text(f"ERROR {plan.failure.text}"))
    for line in plan.lines:
        table.add_row(Text(line.text))
        table.add_row(Text(f"    {line.meaning} ({line.accuracy})", style="dim"))
    return table


def _costs(outcome: SizeOutcome) -> Table:
    unit = outcome.plan.pools[0].unit_name if len(outcome.plan.pools) == 1 else "unit"
    table = new_table("length, tokens", f"{unit}s", "held", "in use", "share", "fit at once")
    for cost in outcome.costs:
        table.add_row(
            f"{cost.length_tokens:,}",
            f"{cost.units:,}",
            format_bytes(cost.held_bytes),
            format_bytes(cost.needed_bytes),
            percent(cost.used_ratio),
            f"{cost.requests:,}",
        )
    return table


def _load_words(structure: StructuralLedger) -> str:
    when = "as the engine counts them" if structure.moment == "admission" else "while they decode"
    return f"{_requests(structure.requests, structure.length_tokens)}, {when}"


def _sheets(structure: StructuralLedger) -> Table:
    sheets = [*structure.ranks]
    if structure.deployment.ranks > 1:
        sheets.append(structure.deployment)
    table = new_table("", *(_sheet_name(sheet) for sheet in sheets), price=True)
    table.columns[-1].header = "why"
    names = list(dict.fromkeys(entry.name for sheet in sheets for entry in sheet.entries))
    reasons = {entry.name: (entry.account, entry.why) for sheet in sheets for entry in sheet.entries}
    for name in sorted(names, key=lambda n: list(Account).index(reasons[n][0])):
        account, why = reasons[name]
        table.add_row(Text.assemble(account_chip(account), f": {name}"), *(_cell(sheet, name) for sheet in sheets), why)
    for name, sign, why in _OUTSIDE:
        amounts = [max(0, sign * sheet.unallocated_bytes) for sheet in sheets]
        if any(amounts):
            table.add_row(name, *map(format_bytes, amounts), why)
    return table


def _sheet_name(sheet: Sheet) -> str:
    return f"{sheet.name}, {counted(sheet.ranks, 'rank')}" if sheet.ranks > 1 else sheet.name


def _cell(sheet: Sheet, name: str) -> str:
    value = sheet.find(name)
    share = value / sheet.ledger.capacity if sheet.ledger.capacity else 0.0
    return f"{format_bytes(value)} {share:6.1%}"


def _log_words(check: LogCheck) -> str:
    word = "They follow" if check.follows else "They do not follow"
    return f"{word}: {check.explanation}"


def _provenance(outcome: SizeOutcome) -> Text:
    plan, memory = outcome.plan, outcome.memory
    lines = [
        f"KV memory: {memory.accuracy}, {memory.source}",
        "blocks, tokens, concurrency: derived from it by the engine's own rules for this version",
    ]
    lines.extend(
        f"  {term.name}: {format_bytes(term.value_bytes)} ({format_bytes(term.low_bytes)} to "
        f"{format_bytes(term.high_bytes)}), {term.accuracy}: {term.why}"
        for term in memory.terms
    )
    if outcome.low is not None and outcome.high is not None:
        lines.append(
            f"  over that interval the engine prints {outcome.low.printed_tokens or 0:,} to "
            f"{counted(outcome.high.printed_tokens or 0, 'token')}"
        )
    lines.append(f"largest --max-model-len that starts: {outcome.largest_max_model_len or 0:,} (derived)")
    lines.extend(f"note: {note}" for note in plan.notes)
    return Text("\n".join(lines))


def _requests(count: int, length: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'} of {length:,} token{'' if length == 1 else 's'}"


def _several(report: SizeReport) -> Iterator[RenderableType]:
    yield Text(report.model)
    yield heading("What each engine makes of it", "requests of max_model_len at once; share of the pool in use then")
    table = new_table("engine", "KV memory a rank", "max_model_len", "requests", "of 800", "in use", "starts up to")
    for one in report.answers:
        table.add_row(f"{one.engine} {one.version}", *_row(one))
    yield table
    yield from (Text(words) for one in report.answers if (words := _allocated_words(one)))
    refused = [one for one in report.answers if one.error is not None]
    if refused:
        yield heading("Not planned")
        yield Text("\n".join(f"{one.engine}: {one.error.message if one.error else ''}" for one in refused))


def _allocated_words(one: EngineAnswer) -> str:
    """Say what an engine allocates when it leaves much of what it was given outside its pool."""
    if one.outcome is None or not one.outcome.plan.ranks:
        return ""
    plan = one.outcome.plan
    rank = min(plan.ranks, key=lambda rank: rank.kv_bytes)
    taken = sum(pool.units * rank.unit_bytes[pool.name] for pool in plan.pools)
    if plan.failure is not None or taken >= rank.kv_bytes * _NEARLY_ALL_RATIO:
        return ""
    return (
        f"{one.engine} allocates {format_bytes(taken)} of its {format_bytes(rank.kv_bytes)} a rank: its settings fix "
        f"the size of the cache, {format_bytes(rank.kv_bytes - taken)} stay outside; `in use` is a share of the "
        f"{format_bytes(taken)}"
    )


def _row(one: EngineAnswer) -> list[str]:
    outcome = one.outcome
    if outcome is None:
        return ["-"] * 6
    short, long = _typical(outcome)
    used = percent(outcome.structure.deployment.ledger.utilisation) if outcome.structure is not None else "-"
    return [
        format_bytes(outcome.memory.smallest_bytes),
        f"{outcome.plan.deployment.max_model_len or 0:,}",
        f"{min(long.requests, outcome.per_request_limit or long.requests):,}",
        f"{min(short.requests, outcome.per_request_limit or short.requests):,}",
        used,
        f"{outcome.largest_max_model_len or 0:,}",
    ]
