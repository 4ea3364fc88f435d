"""The option ``--try``: from its words to scenarios that differ from the replay in one setting."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from kvledger.cli.clocks import is_roofline
from kvledger.cli.cost import Cost, token_bytes
from kvledger.cli.grouping import grouped
from kvledger.cli.swapping import check_swap_space
from kvledger.errors import UsageError
from kvledger.pool.policy import Eviction, Kind, Policy, Preemption, PrefixIndex
from kvledger.replay.clock import Clock
from kvledger.replay.outcome import Outcome
from kvledger.replay.samples import check_sampling
from kvledger.replay.settings import Pool
from kvledger.replay.tables import NEEDS_CACHE
from kvledger.replay.what_if import Scenario, Setting, WhatIf
from kvledger.replay.workload import Workload
from kvledger.units import counted, format_bytes, parse_bytes

if TYPE_CHECKING:
    from kvledger.model.spec import ModelSpec

__all__ = ["Change", "TryContext", "check_tries", "notes_on_tries", "parse_tries", "run_tries", "scenario_of"]

_MOST_CHANGES = 64
_EXAMPLE = "write --try block-size=16,32 or --try kv-dtype=fp8"
_NEED_BLOCKS = (Setting.BLOCK_SIZE, Setting.PREFIX_CACHING, Setting.EVICTION, Setting.PREEMPTION)
_NEED_MODEL = (Setting.KV_DTYPE, Setting.TP)
_BOUNDS = {
    Setting.BLOCK_SIZE: (1, 2**20),
    Setting.TP: (1, 1024),
    Setting.MAX_MODEL_LEN: (2, 2**40),
    Setting.MAX_NUM_SEQS: (1, 2**20),
    Setting.MAX_NUM_BATCHED_TOKENS: (1, 2**40),
}
"""The least and the most, as of the options of the same names."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting with another value."""

    setting: Setting
    value: str

    def __str__(self) -> str:
        """Return it as it was asked for."""
        return f"{self.setting}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TryContext:
    """What the changes are applied to. ``clock_at(cost, tp)`` is the clock when a token costs that much."""

    base: Scenario
    cost: Cost
    kv_dtype: str | None
    clock_at: Callable[[int, int], Clock]


def parse_tries(tries: Sequence[str]) -> list[Change]:
    """Read ``SETTING=VALUE,...``, several times.

    Raises:
        UsageError: A setting is unknown, has no value, or there are too many.
    """
    changes: dict[Change, None] = {}
    for text in tries:
        name, sign, values = text.partition("=")
        try:
            setting = Setting(name.strip())
        except ValueError:
            near = difflib.get_close_matches(name[:40], list(Setting), n=1)
            meant = f"did you mean `{near[0]}`? " if near else ""
            raise UsageError(
                f"--try cannot change `{name[:40]}`", hint=f"{meant}the settings are {', '.join(Setting)}"
            ) from None
        listed = [value.strip() for value in values.split(",")] if sign else []
        if not listed or not all(listed):
            raise UsageError(f"--try {text[:80]} lacks a value", hint=_EXAMPLE)
        changes |= dict.fromkeys(Change(setting, value[:40]) for value in listed)
    if len(changes) > _MOST_CHANGES:
        raise UsageError(
            f"--try asks for {len(changes):,} changes, more than {_MOST_CHANGES}", hint="try fewer at a time"
        )
    return list(changes)


def run_tries(
    changes: Sequence[Change], context: TryContext, *, before: Outcome, run: Callable[[Scenario], Outcome]
) -> list[WhatIf]:
    """Replay every change alone; one that changes nothing has the outcome of ``before``."""
    scenarios = [(change, *_apply(change, context)) for change in changes]
    return [
        WhatIf(
            change=str(change),
            scenario=scenario,
            outcome=before if scenario == context.base else run(scenario),
            price=price,
        )
        for change, scenario, price in scenarios
    ]


def scenario_of(change: Change, context: TryContext) -> Scenario:
    """Return the scenario with one change.

    Raises:
        UsageError: The value is none, the policy has no such setting, or a model is needed.
        ModelError: The model's cache has no such dtype.
    """
    return _apply(change, context)[0]


def check_tries(changes: Sequence[Change], context: TryContext, workload: Workload) -> None:
    """Say what cannot be tried before anything runs.

    Raises:
        UsageError: A value is none, the policy has no such setting or cannot have it, or a model is needed.
        CapacityError: A pool would not have even one block.
    """
    for change in changes:
        scenario, _ = _apply(change, context)
        scenario.pool.divide(scenario.policy)
        check_sampling(scenario.policy, workload)


def notes_on_tries(changes: Sequence[Change], text: str, clock: Clock) -> Iterator[str]:
    """Yield what was assumed about the changes; ``text`` is the clock as it was asked for."""
    settings = {change.setting for change in changes}
    if Setting.BLOCK_SIZE in settings and not clock.block_overhead_tokens and clock.c:
        yield (
            "--try block-size: small blocks are read as fast as large ones with this clock; what reading one costs can "
            "be given with --block-overhead (3.7 tokens meet the kernel of the PagedAttention paper)"
        )
    if Setting.TP in settings:
        yield (
            "--try tp: memory and bytes per token are those of one rank; the memory that smaller weights leave free is "
            "not added (give it with --try memory=...), and communication between ranks takes no time"
        )
        if not is_roofline(text):
            yield "--try tp: the clock is no roofline, so ranks only read faster here; they would compute faster, too"
    if Setting.KV_DTYPE in settings:
        yield "--try kv-dtype: the pool keeps its bytes, so it holds more or fewer tokens"


def _apply(change: Change, context: TryContext) -> tuple[Scenario, str]:
    """Return the scenario with one change, and the price that the replay cannot show."""
    base, setting = context.base, change.setting
    policy, pool, settings = base.policy, base.pool, base.settings
    if setting in _NEED_BLOCKS and policy.kind is not Kind.PAGED:
        raise UsageError(
            f"`{policy.name}` has no prefix cache and no blocks on demand, so --try {change} changes nothing",
            hint="name `paged` in --policy",
        )
    if setting in _NEED_MODEL:
        return _recost(change, context)
    match setting:
        case Setting.BLOCK_SIZE:
            resized_policy = replace(policy, block_size=_integer(change))
            return replace(base, policy=grouped(resized_policy, context.cost, kv_dtype=context.kv_dtype)), ""
        case Setting.PREEMPTION:
            return _with_preemption(base, change)
        case Setting.PREFIX_CACHING:
            return replace(base, policy=_with_caching(policy, change)), ""
        case Setting.EVICTION:
            return replace(base, policy=_with_eviction(policy, change)), ""
        case Setting.MEMORY:
            more = parse_bytes(change.value) - pool.total_bytes(policy)
            resized = _of_bytes(pool, parse_bytes(change.value))
            return replace(base, pool=resized), f"it takes {format_bytes(more)} more memory" if more > 0 else ""
        case Setting.MAX_MODEL_LEN:
            return replace(base, settings=replace(settings, max_model_len=_integer(change))), ""
        case Setting.MAX_NUM_SEQS:
            return replace(base, settings=replace(settings, max_num_seqs=_integer(change))), ""
        case Setting.MAX_NUM_BATCHED_TOKENS:
            return replace(base, settings=replace(settings, max_num_batched_tokens=_integer(change))), ""
        case Setting.KV_DTYPE | Setting.TP:
            raise AssertionError(setting)
        case _ as never:
            assert_never(never)


def _with_caching(policy: Policy, change: Change) -> Policy:
    if change.value not in ("on", "off"):
        raise UsageError(f"--try {change} is neither on nor off", hint="write --try prefix-caching=off")
    if change.value == "off":
        return replace(policy, prefix_caching=False, index=PrefixIndex.BLOCKS)
    return replace(policy, prefix_caching=True)


def _with_eviction(policy: Policy, change: Change) -> Policy:
    if change.value not in list(Eviction):
        raise UsageError(f"--try {change} is none of {', '.join(Eviction)}", hint="write --try eviction=fifo")
    if not policy.prefix_caching:
        raise UsageError(f"`{policy.name}` caches nothing, so --try {change} changes nothing", hint=NEEDS_CACHE)
    return replace(policy, eviction=Eviction(change.value))


def _with_preemption(base: Scenario, change: Change) -> tuple[Scenario, str]:
    if change.value not in list(Preemption):
        raise UsageError(f"--try {change} is neither recompute nor swap", hint="write --try preemption=swap")
    policy = replace(base.policy, preemption=Preemption(change.value))
    check_swap_space(policy, base.pool)
    price = f"{format_bytes(policy.swap_bytes)} of the host's memory" if policy.swaps else ""
    return replace(base, policy=policy), price


def _recost(change: Change, context: TryContext) -> tuple[Scenario, str]:
    """Change what a token costs: another dtype, or the share of one of several ranks."""
    base, model = context.base, context.cost.model
    if model is None:
        raise UsageError(
            f"--try {change} changes what a model's token costs, and no model was given", hint="give --model"
        )
    storage = model.storage(context.kv_dtype)
    ranks, price = 1, ""
    if change.setting is Setting.TP:
        ranks = _integer(change)
        _check_heads(model, change, ranks)
        storage = replace(storage, tp=ranks)
        price = f"{ranks} GPUs for each replica, and communication between them" if ranks > 1 else ""
    else:
        old = token_bytes(model, storage)
        storage = model.storage(change.value)
        if token_bytes(model, storage) < old:
            price = f"keys and values are rounded to {storage.kv.name}, which can change answers"
    per_token = token_bytes(model, storage)
    pool = replace(_of_bytes(base.pool, base.pool.total_bytes(base.policy)), bytes_per_token=per_token)
    clock = context.clock_at(per_token, ranks)
    kv_dtype = context.kv_dtype if change.setting is Setting.TP else change.value
    policy = grouped(base.policy, context.cost, kv_dtype=kv_dtype, ranks=ranks)
    return replace(base, policy=policy, pool=pool, settings=replace(base.settings, clock=clock)), price


def _check_heads(model: ModelSpec, change: Change, ranks: int) -> None:
    """Refuse ranks that no engine starts with, as `kvledger size --tp` does."""
    from kvledger.model.layers import AttentionCache

    for layer in model.caching_layers():
        heads = layer.cache.kv_heads if isinstance(layer.cache, AttentionCache) else ranks
        if heads % ranks and ranks % heads:
            raise UsageError(
                f"--try {change}: {heads} KV heads of `{model.name}` cannot be divided among "
                f"{counted(ranks, 'rank')}, nor copied evenly",
                hint="try a number of ranks that divides the heads or is a multiple of them",
            )


def _of_bytes(pool: Pool, size: int) -> Pool:
    return replace(pool, memory_bytes=size, capacity_tokens=None, num_blocks=None)


def _integer(change: Change) -> int:
    text, (least, most) = change.value, _BOUNDS[change.setting]
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--try {change} is not a whole number", hint=_EXAMPLE)
    if not least <= int(text) <= most:
        raise UsageError(f"--try {change} is not from {least:,} to {most:,}")
    return int(text)
