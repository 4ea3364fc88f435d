"""Sizing: from groups and bytes to blocks, concurrency, printed tokens and the check before start-up.

vLLM 0.8 to 0.33, ``get_kv_cache_configs`` and what it calls; V0 (before 0.8) is the case of one group without check by
bytes. Given the bytes, every number here is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvledger.engines.plan import Claim
from kvledger.engines.vllm.demand import Demand, layer_claim, make_claims
from kvledger.engines.vllm.grouping import Group, Groups, form_groups
from kvledger.engines.vllm.rules import Check, Grouping, Rules
from kvledger.engines.vllm.specs import LayerSpec, SpecKind, merge_specs
from kvledger.errors import ModelError

__all__ = ["Limits", "Shortage", "Sizing", "Stage", "Worker", "size_pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers of one pipeline stage, in order."""

    specs: tuple[LayerSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process: its stage and the bytes it may spend."""

    stage: int
    kv_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The numbers of the error with which the engine refuses to start."""

    needed_bytes: int
    available_bytes: int
    largest_length: int
    """0: not even one token fits, and the engine names no length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the planner decides for a model, all workers together."""

    groups: Groups
    """Groups of the whole model (of the first stage up to 0.10)."""
    stages: tuple[tuple[Group, ...], ...]
    """The same groups, cut down to each stage's layers."""
    claims: tuple[Claim, ...]
    unit_bytes: tuple[int, ...]
    """Bytes of a block, by stage."""
    profiled_blocks: tuple[int, ...]
    """Blocks each worker's bytes give, before an override and before the minimum."""
    blocks: int
    printed_tokens: int
    concurrency: float
    max_model_len: int
    """As given, or as fitted."""
    shortage: Shortage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the caller fixes."""

    max_model_len: int
    auto_fit: bool = False
    """Take the longest length up to ``max_model_len`` that fits."""
    blocks_override: int | None = None
    hybrid: bool = True
    shards: int = 1
    """Context-parallel ranks the printed tokens are multiplied by (up to 0.19)."""


def size_pool(
    stages: Sequence[Stage], workers: Sequence[Worker], rules: Rules, demand: Demand, *, limits: Limits
) -> Sizing:
    """Size the pool of a model.

    Args:
        stages: The layers of each pipeline stage.
        workers: Every process, in any order; bytes of different processes may differ.
        rules: The release.
        demand: What decides the blocks of a request beside its length.
        limits: The length, and what overrides the computed blocks.

    Raises:
        ModelError: The release refuses the combination of layers.
    """
    groups, cut = _group_stages(stages, rules, hybrid=limits.hybrid)
    claims = make_claims(groups.groups, demand)
    unit_bytes = tuple(max(group.page_bytes for group in stage) for stage in cut)
    if not all(unit_bytes):
        raise ModelError(
            f"pipeline stage {unit_bytes.index(0)} holds no layer with a KV cache; vLLM cannot size it",
            hint="use fewer stages, or the option `layer_partition`",
        )
    whole_bytes = max(group.page_bytes for group in groups.groups)
    uneven = len(groups.groups) == 1 and merge_specs(groups.groups[0].specs) is None
    divisors = (whole_bytes,) * len(stages) if uneven and rules.divides_by_whole_model else unit_bytes
    profiled = tuple(max(0, w.kv_bytes // divisors[w.stage]) for w in workers)
    override = limits.blocks_override
    if override is not None and rules.override_replaces_memory:
        workers = [Worker(stage=w.stage, kv_bytes=override * unit_bytes[w.stage]) for w in workers]
    needs = _needs(stages, workers, rules, demand, pool=_PoolShape(claims, unit_bytes, whole_bytes))
    length, shortage = _check_length(needs, limits)
    blocks = override if override is not None else min(profiled)
    per_request = sum(claim.count_units(length) for claim in claims)
    concurrency, tokens = _printed(blocks, per_request, groups.groups, rules, length=length, shards=limits.shards)
    return Sizing(
        groups=groups,
        stages=cut,
        claims=claims,
        unit_bytes=unit_bytes,
        profiled_blocks=profiled,
        blocks=blocks,
        printed_tokens=tokens,
        concurrency=concurrency,
        max_model_len=length,
        shortage=shortage,
    )


def _group_stages(
    stages: Sequence[Stage], rules: Rules, *, hybrid: bool
) -> tuple[Groups, tuple[tuple[Group, ...], ...]]:
    if rules.grouping is not Grouping.STRIDED:
        formed = [form_groups(stage.specs, rules, hybrid=hybrid) for stage in stages]
        return formed[0], _match_groups([groups.groups for groups in formed])
    owner = [index for index, stage in enumerate(stages) for _ in stage.specs]
    groups = form_groups([spec for stage in stages for spec in stage.specs], rules, hybrid=hybrid)
    return groups, tuple(
        tuple(_cut(group, [owner[layer] == stage for layer in group.layers]) for group in groups.groups)
        for stage in range(len(stages))
    )


def _match_groups(stages: Sequence[tuple[Group, ...]]) -> tuple[tuple[Group, ...], ...]:
    """Bring the groups of every stage into the order of the first (``unify_kv_cache_configs``, which asserts it can).

    Raises:
        ModelError: Stages come to different groups.
    """
    matched = []
    for groups in stages:
        left = list(groups)
        for wanted in stages[0]:
            same = next((group for group in left if _kind(group) == _kind(wanted)), None)
            if same is None or len(groups) != len(stages[0]):
                counts = " and ".join(str(len(other)) for other in (stages[0], groups))
                raise ModelError(
                    f"this release of vLLM groups the layers of every pipeline stage by themselves, and the stages of "
                    f"this model come to different groups ({counts} of them), for which one block table cannot do",
                    hint="choose a `--pp` or `--set layer_partition` that gives every stage the same mix of layers, "
                    "or a later version",
                )
            left.remove(same)
            matched.append(same)
    size = len(stages[0])
    return tuple(tuple(matched[start : start + size]) for start in range(0, len(matched), size))


def _kind(group: Group) -> tuple[SpecKind, int | None, int | None]:
    return group.spec.kind, group.spec.window_tokens, group.spec.chunk_tokens


def _cut(group: Group, mine: Sequence[bool]) -> Group:
    kept = [i for i, is_mine in enumerate(mine) if is_mine]
    return Group(layers=tuple(group.layers[i] for i in kept), specs=tuple(group.specs[i] for i in kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """One comparison the engine makes before it starts."""

    available_bytes: int
    count_bytes: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class _PoolShape:
    claims: tuple[Claim, ...]
    unit_bytes: tuple[int, ...]
    whole_bytes: int
    """Bytes a block would have on a worker that held the whole model."""

    def count_bytes(self, unit_bytes: int, length: int) -> int:
        return unit_bytes * sum(claim.count_units(length) for claim in self.claims)


def _needs(
    stages: Sequence[Stage],
    workers: Sequence[Worker],
    rules: Rules,
    demand: Demand,
    *,
    pool: _PoolShape,
) -> list[_Need]:

    if rules.check_counts_first_group:
        pool = replace(pool, claims=pool.claims[:1])
    match rules.check:
        case Check.LAYERS:
            return [
                _Need(available_bytes=w.kv_bytes, count_bytes=_count_layer_bytes(stages[w.stage], demand))
                for w in workers
            ]
        case Check.MODEL:
            least = min(w.kv_bytes for w in workers)
            return [_Need(available_bytes=least, count_bytes=partial(pool.count_bytes, pool.whole_bytes))]
        case Check.WORKER:
            null = 1 if rules.check_keeps_null_block else 0
            return [
                _Need(
                    available_bytes=w.kv_bytes - null * pool.unit_bytes[w.stage],
                    count_bytes=partial(pool.count_bytes, pool.unit_bytes[w.stage]),
                )
                for w in workers
            ]


def _count_layer_bytes(stage: Stage, demand: Demand) -> Callable[[int], int]:
    claims = [(spec, layer_claim(spec, demand, name="", layers=1)) for spec in stage.specs]

    def count(length: int) -> int:
        return sum(spec.page_bytes * claim.count_units(length) for spec, claim in claims)

    return count


def _check_length(needs: Sequence[_Need], limits: Limits) -> tuple[int, Shortage | None]:
    length = limits.max_model_len
    if limits.auto_fit:
        length = min(_find_longest(need, length) for need in needs) or length
    for need in needs:
        needed = need.count_bytes(length)
        if need.available_bytes <= 0 or needed > need.available_bytes:
            longest = _find_longest(need, length)
            shortage = Shortage(needed_bytes=needed, available_bytes=need.available_bytes, largest_length=longest)
            return length, shortage
    return length, None


def _find_longest(need: _Need, limit: int) -> int:
    """Return the longest length up to ``limit`` whose bytes are available; 0 when one token does not fit."""
    if need.count_bytes(limit) <= need.available_bytes:
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need.count_bytes(middle) <= need.available_bytes else (low, middle)
    return low


def _printed(
    blocks: int, per_request: int, groups: Sequence[Group], rules: Rules, *, length: int, shards: int
) -> tuple[float, int]:
    """Return the concurrency and the tokens that the release prints, in its own floating-point steps."""
    if rules.tokens_from_concurrency:
        concurrency = blocks / per_request
        return concurrency, int(concurrency * length)
    smallest = min(group.spec.block_tokens for group in groups)
    tokens = blocks // len(groups) * smallest
    if len(groups) == 1 or rules.multiplies_hybrid_by_dcp:
        tokens *= shards
    if rules.grouping is Grouping.NONE:
        return tokens / length, tokens
    return blocks / per_request, tokens
