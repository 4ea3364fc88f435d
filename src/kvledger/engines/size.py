"""The answer to "how much does it cost, and what fits": a plan read from every side.

Pure: the model, the deployment and the memory come in as records; :class:`SizeOutcome` goes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from kvledger.engines.plan import Deployment, KvMemory, Plan, Planner
from kvledger.engines.structure import Moment, StructuralLedger, draw_up
from kvledger.errors import CapacityError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec, Storage
from kvledger.units import agree, counted, format_bytes

__all__ = ["Fit", "FitResult", "RequestCost", "SizeOutcome", "SizeQuestion", "answer_size"]

_LADDER = (128, 800, 2048, 8192, 32_768, 131_072)
_LENGTH_OPTIONS = ("ctx_size", "num_ctx")
"""Settings of llama.cpp and Ollama that name a length, and exclude ``max_model_len``."""
_MOST_BYTES = 2**50
_MOST_LENGTH = 2**24


class Fit(StrEnum):
    """What to solve for."""

    MAX_MODEL_LEN = "max-model-len"
    """The longest ``max_model_len`` with which the engine starts."""
    CONCURRENCY = "concurrency"
    """How many requests of the given length fit."""
    MEMORY = "memory"
    """The least bytes a rank for the given length and concurrency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeQuestion:
    """What is asked about one engine; ``memory`` may be left out when it is what to solve for."""

    model: ModelSpec
    deployment: Deployment
    memory: KvMemory | None
    length_tokens: int | None = None
    concurrency: int | None = None
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """What requests of one length cost; bytes are those of all ranks of a replica."""

    length_tokens: int
    units: int
    held_bytes: int
    """Bytes the engine counts for one request."""
    needed_bytes: int
    """Bytes of its keys, values and states alone, stored once."""
    requests: int
    """Requests that the memory of one replica holds at once."""

    @property
    def used_ratio(self) -> float:
        """Needed over held (0-1)."""
        return self.needed_bytes / self.held_bytes if self.held_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """What was solved for."""

    fit: Fit
    value: int
    """Tokens, requests or bytes a rank; no requests at all when the engine does not start."""
    accuracy: Accuracy
    formula: str
    shorter_bytes: int | None = None
    """Bytes a rank that are enough when ``max_model_len`` is as short as the requests; ``None``: no fewer are."""
    shortened_requests: int | None = None
    """Requests at once with the longest ``max_model_len`` that starts, when the one given does not; ``None``: the
    requests are longer than that, or it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOutcome:
    """One engine's answer."""

    question: SizeQuestion
    memory: KvMemory
    plan: Plan
    low: Plan | None
    """The plan at the lower end of the memory's interval, when it is one."""
    high: Plan | None
    growth_bytes: int
    """Bytes a further token adds to a long sequence, whole model, stored once."""
    fixed_bytes: int
    """Bytes a sequence keeps beside its growth (states, full windows)."""
    costs: tuple[RequestCost, ...]
    structure: StructuralLedger | None
    """At full load with requests of ``max_model_len``; ``None`` when not even one fits."""
    load: StructuralLedger | None
    """At the length and concurrency asked for, while decoding."""
    largest_max_model_len: int | None
    """The longest length with which the engine starts; ``None`` when it does not depend on the memory."""
    fitted: FitResult | None

    @property
    def per_request_limit(self) -> int | None:
        """Requests the engine runs at once whatever memory is free."""
        return self.plan.request_limit


def answer_size(planner: Planner, question: SizeQuestion) -> SizeOutcome:
    """Answer a question about one engine.

    Raises:
        UsageError: The question lacks what it needs.
        CapacityError: No memory would be enough.
        ModelError: The engine's rule for this model is not known.
    """
    memory, fitted = question.memory, None
    if question.fit is Fit.MEMORY:
        memory, fitted = _fit_memory(planner, question)
    if memory is None:
        raise UsageError(
            "the KV memory is not given",
            hint="give `--kv-memory`, `--gpu` with `--weights`, `--log`, or `--fit memory`",
        )
    plan = planner.make_plan(question.model, question.deployment, memory)
    _check_length(question, plan)
    largest = _largest_start(planner, question, memory, plan)
    if question.fit is Fit.MAX_MODEL_LEN:
        fitted = FitResult(
            fit=Fit.MAX_MODEL_LEN,
            value=largest or 0,
            accuracy=memory.accuracy,
            formula="binary search over the engine's own check, up to the model's longest length",
        )
    if question.fit is Fit.CONCURRENCY:
        fitted = _fit_concurrency(planner, question, memory, plan, largest)
    storage = _whole(plan)
    return SizeOutcome(
        question=question,
        memory=memory,
        plan=plan,
        low=_plan_at(planner, question, memory, memory.low_bytes),
        high=_plan_at(planner, question, memory, memory.high_bytes),
        growth_bytes=question.model.bytes_per_token(storage),
        fixed_bytes=question.model.fixed_bytes_per_sequence(storage),
        costs=tuple(_cost(question, plan, length) for length in _lengths(question, plan)),
        structure=_full_load(plan),
        load=_load(question, plan),
        largest_max_model_len=largest,
        fitted=fitted,
    )


def _check_length(question: SizeQuestion, plan: Plan) -> None:
    length, longest = question.length_tokens, plan.deployment.max_model_len
    if length is not None and longest is not None and length > longest:
        raise UsageError(
            f"requests of {length:,} tokens are longer than max_model_len {longest:,}: the engine refuses them",
            hint="give a shorter `--length` or a larger `--max-model-len`",
        )


def _plan_at(planner: Planner, question: SizeQuestion, memory: KvMemory, kv_bytes: int) -> Plan | None:
    if memory.low_bytes == memory.high_bytes:
        return None
    return planner.make_plan(question.model, question.deployment, replace(memory, per_rank_bytes=(kv_bytes,)))


def _lengths(question: SizeQuestion, plan: Plan) -> list[int]:
    longest = plan.deployment.max_model_len or _MOST_LENGTH
    lengths = {length for length in _LADDER if length < longest} | {longest}
    if question.length_tokens is not None:
        lengths.add(question.length_tokens)
    return sorted(lengths)


def _cost(question: SizeQuestion, plan: Plan, length: int) -> RequestCost:
    return RequestCost(
        length_tokens=length,
        units=sum(plan.count_units(length).values()),
        held_bytes=plan.count_request_bytes(length),
        needed_bytes=question.model.sequence_bytes(_count_stored(plan, length), _whole(plan)),
        requests=replace(plan, request_limit=None).count_requests(length),
    )


def _whole(plan: Plan) -> Storage:
    """Return how the engine stores the whole model: not the model's own dtypes, which engines and settings replace."""
    return replace(plan.storage, tp=1)


def _count_stored(plan: Plan, length: int) -> int:
    """Return the tokens of a request that are really stored: some engines never store the last one."""
    unstored = [claim.offset_tokens for claim in plan.claims if claim.unit_tokens and claim.reserve_tokens is None]
    return max(min(1, length), length + min([0, *unstored]))


def _full_load(plan: Plan) -> StructuralLedger | None:
    length = plan.deployment.max_model_len
    if length is None or not replace(plan, request_limit=None).count_requests(length):
        return None
    return draw_up(plan)


def _load(question: SizeQuestion, plan: Plan) -> StructuralLedger | None:
    if question.length_tokens is None or question.fit is Fit.CONCURRENCY:
        return None
    most = replace(plan, request_limit=None).count_requests(question.length_tokens)
    if not most or (question.concurrency or 0) > most:
        return None
    return draw_up(plan, length_tokens=question.length_tokens, requests=question.concurrency, moment=Moment.DECODING)


def _largest_start(planner: Planner, question: SizeQuestion, memory: KvMemory, plan: Plan) -> int | None:
    """Find the longest ``max_model_len`` that starts: the engine's check, asked again for other lengths."""
    limit = question.model.max_model_len.tokens if question.model.max_model_len else _MOST_LENGTH
    limit = max(limit, question.deployment.max_model_len or 1)

    def starts(length: int) -> bool:
        deployment = _with_length(question.deployment, length)
        return planner.make_plan(question.model, deployment, memory).failure is None

    if plan.failure is None and (plan.deployment.max_model_len or 0) >= limit:
        return limit
    return _search(starts, limit)


def _with_length(deployment: Deployment, length: int) -> Deployment:
    """Return the deployment with another longest request, in place of the engine's own setting for it."""
    kept = {name: value for name, value in deployment.options.items() if name not in _LENGTH_OPTIONS}
    return replace(deployment, max_model_len=length, options=kept)


def _search(holds: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to ``limit`` that ``holds``; 0 when 1 does not."""
    if holds(limit):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _fit_concurrency(
    planner: Planner, question: SizeQuestion, memory: KvMemory, plan: Plan, largest: int | None
) -> FitResult:
    """Count the requests that fit; none run in an engine that does not start."""
    length = question.length_tokens or plan.deployment.max_model_len
    if length is None:
        raise UsageError("the length of a request is not known", hint="give `--length`")
    shortened = None
    if plan.failure is not None and largest and question.length_tokens and length <= largest:
        deployment = _with_length(question.deployment, largest)
        shortened = planner.make_plan(question.model, deployment, memory).count_requests(length)
    return FitResult(
        fit=Fit.CONCURRENCY,
        value=plan.count_requests(length) if plan.failure is None else 0,
        accuracy=plan.accuracy,
        shortened_requests=shortened,
        formula=f"usable units over those of a request of {length:,} tokens, rounded down; at most the engine's limit",
    )


def _fit_memory(planner: Planner, question: SizeQuestion) -> tuple[KvMemory, FitResult]:
    """Find the least bytes a rank with which the engine starts and holds the load."""
    least = _least_bytes(planner, question, question.deployment)
    if least is None:
        raise _too_many(planner, question)
    shorter = None
    if question.length_tokens is not None:
        shorter = _least_bytes(planner, question, _with_length(question.deployment, question.length_tokens))
    memory = KvMemory.given(least, source="fitted")
    return memory, FitResult(
        fit=Fit.MEMORY,
        value=least,
        accuracy=Accuracy.DERIVED,
        formula="the least bytes a rank with which the engine starts and holds the load",
        shorter_bytes=shorter if shorter is not None and shorter < least else None,
    )


def _too_many(planner: Planner, question: SizeQuestion) -> CapacityError:
    """Say why no memory is enough: a setting of the engine, or the most that is looked at."""
    plan = planner.make_plan(question.model, question.deployment, KvMemory.given(_MOST_BYTES))
    length = question.length_tokens or plan.deployment.max_model_len or 1
    requests = question.concurrency or 1
    load = f"{counted(requests, 'request')} of {counted(length, 'token')} {agree(requests, 'does', 'do')} not fit into"
    most = _count_by_memory(plan, length)
    twice = planner.make_plan(question.model, question.deployment, KvMemory.given(2 * _MOST_BYTES))
    if _count_by_memory(twice, length) > most:
        return CapacityError(
            f"{load} {format_bytes(_MOST_BYTES)} a rank, the most that is looked at, which holds {most:,}",
            hint="ask for fewer or shorter requests, or divide them among replicas",
        )
    return CapacityError(
        f"{load} any memory: a setting of the engine limits them",
        hint="raise the setting that limits requests or their length",
    )


def _count_by_memory(plan: Plan, length: int) -> int:
    return replace(plan, request_limit=None).count_requests(length)


def _least_bytes(planner: Planner, question: SizeQuestion, deployment: Deployment) -> int | None:
    requests = question.concurrency or 1

    def too_little(kv_bytes: int) -> bool:
        plan = planner.make_plan(question.model, deployment, KvMemory.given(kv_bytes))
        length = question.length_tokens or plan.deployment.max_model_len or 1
        return plan.failure is not None or replace(plan, request_limit=None).count_requests(length) < requests

    return None if too_little(_MOST_BYTES) else _search(too_little, _MOST_BYTES) + 1
