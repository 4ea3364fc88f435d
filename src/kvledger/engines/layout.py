"""Layers as engines lay them out: alike layers together, pipeline stages, and the bytes each rank stores in a unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kvledger.engines.plan import Claim, ClaimKind, Deployment, KvMemory, Pool, RankPlan, UnitContent
from kvledger.errors import ModelError, UsageError
from kvledger.model.layers import (
    AttentionCache,
    CompressedCache,
    CrossAttentionCache,
    LatentCache,
    Layer,
    NoCache,
    SharedCache,
    StateCache,
    heads_per_rank,
)
from kvledger.model.spec import ModelSpec
from kvledger.model.storage import Storage
from kvledger.units import counted

__all__ = [
    "ExtraLayer",
    "LayerGroup",
    "Part",
    "SharedLayers",
    "build_ranks",
    "group_layers",
    "key_bytes",
    "split_stages",
    "value_bytes",
]


class SharedLayers(StrEnum):
    """What an engine does with layers that read the cache of an earlier one."""

    SKIP = "skip"
    ALLOCATE = "allocate"


class ExtraLayer(StrEnum):
    """Which pipeline stages get the layers that are left over."""

    LAST_STAGE = "last stage takes all"
    LAST_STAGES = "one each for the last stages"
    EVEN_ONLY = "the rule is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers of one kind and, for windows and chunks, of one length."""

    kind: ClaimKind
    cap_tokens: int | None
    layers: tuple[Layer, ...]


def _sort(layer: Layer, shared: SharedLayers) -> tuple[ClaimKind, int | None, Layer] | None:
    cache = layer.cache
    if isinstance(cache, SharedCache) and shared is SharedLayers.ALLOCATE:
        layer = replace(layer, cache=cache.cache)
        cache = cache.cache
    match cache:
        case AttentionCache(chunk_tokens=int() as chunk):
            return ClaimKind.CHUNK, chunk, layer
        case AttentionCache(window_tokens=int() as window):
            return ClaimKind.WINDOW, window, layer
        case AttentionCache() | LatentCache():
            return ClaimKind.FULL, None, layer
        case StateCache():
            return ClaimKind.STATE, None, layer
        case CrossAttentionCache(encoder_tokens=tokens):
            return ClaimKind.CROSS, tokens, layer
        case SharedCache() | NoCache():
            return None
        case CompressedCache():
            raise ModelError(
                "how this engine stores compressed attention (DeepSeek-V4) is not known well enough to plan it",
                hint="plan it for vLLM, or measure the running server",
                layer=layer.index,
            )


def group_layers(layers: Sequence[Layer], *, shared: SharedLayers = SharedLayers.SKIP) -> tuple[LayerGroup, ...]:
    """Put alike layers together: full attention, each window, each chunk, states, cross attention.

    Raises:
        ModelError: A layer is of a kind that none of these engines' rules covers.
    """
    groups: dict[tuple[ClaimKind, int | None], list[Layer]] = {}
    for layer in layers:
        sorted_layer = _sort(layer, shared)
        if sorted_layer is not None:
            kind, cap, kept = sorted_layer
            groups.setdefault((kind, cap), []).append(kept)
    order = list(ClaimKind)
    keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1] or 0))
    return tuple(LayerGroup(kind=kind, cap_tokens=cap, layers=tuple(groups[kind, cap])) for kind, cap in keys)


def key_bytes(layer: Layer, storage: Storage) -> int:
    """Return the bytes of one token's keys in one layer on one rank; a latent record counts as keys."""
    match layer.cache:
        case (
            AttentionCache(kv_heads=heads, key_size=head_size) | CrossAttentionCache(kv_heads=heads, key_size=head_size)
        ):
            return heads_per_rank(heads, storage.tp) * storage.kv.side_bytes(head_size)
        case LatentCache(latent_size=latent, rope_size=rope):
            return storage.kv.latent_bytes(latent, rope)
        case _:
            return 0


def value_bytes(layer: Layer, storage: Storage) -> int:
    """Return the bytes of one token's values in one layer on one rank; 0 where the latent record holds both."""
    match layer.cache:
        case (
            AttentionCache(kv_heads=heads, value_size=head_size)
            | CrossAttentionCache(kv_heads=heads, value_size=head_size)
        ):
            return heads_per_rank(heads, storage.tp) * storage.kv.side_bytes(head_size)
        case _:
            return 0


def split_stages(model: ModelSpec, pp: int, extra: ExtraLayer, partition: Sequence[int] | None = None) -> list[range]:
    """Return the blocks of each pipeline stage.

    Raises:
        UsageError: The partition does not fit, or the blocks cannot be divided by a known rule.
    """
    blocks = model.block_count
    if partition is not None:
        if len(partition) != pp or sum(partition) != blocks:
            raise UsageError(
                f"the layer partition {tuple(partition)} does not give {blocks:,} layers to {counted(pp, 'stage')}"
            )
        counts = list(partition)
    else:
        base, left = divmod(blocks, pp)
        counts = [base] * pp
        if left and extra is ExtraLayer.EVEN_ONLY:
            raise UsageError(
                f"{blocks:,} layers over {counted(pp, 'pipeline stage')} leave {left} over, and where this engine "
                "puts them is not known",
                hint="choose a number of stages that divides the layers",
            )
        if left and extra is ExtraLayer.LAST_STAGE:
            counts[-1] += left
        elif left:
            counts = [base + (stage >= pp - left) for stage in range(pp)]
    if min(counts) < 1:
        raise UsageError(f"{counted(blocks, 'layer')} cannot be divided among {counted(pp, 'pipeline stage')}")
    starts = [sum(counts[:stage]) for stage in range(pp)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One pool with the one claim that takes its units, and what a layer stores in a unit."""

    pool: Pool
    claim: Claim
    layers: tuple[Layer, ...]
    unit_bytes: Callable[[Layer, Storage], int]
    """Bytes one layer stores in one unit on one rank."""

    def rank_bytes(self, stage: range, storage: Storage) -> int:
        """Return the bytes of one unit on a rank of one stage; draft layers stand on the last stage."""
        return sum(self.unit_bytes(layer, storage) for layer in self.layers if layer.index in stage)


def _stage_memory(memory: KvMemory, stage: int, deployment: Deployment) -> int:
    figures = memory.per_rank_bytes
    if len(figures) == deployment.pp:
        return figures[stage]
    if len(figures) == deployment.pp * deployment.tp:
        return min(figures[stage * deployment.tp : (stage + 1) * deployment.tp])
    return memory.smallest_bytes


def build_ranks(
    parts: Sequence[Part], *, stages: Sequence[range], deployment: Deployment, memory: KvMemory, storage: Storage
) -> tuple[RankPlan, ...]:
    """Return what each rank allocates: one entry a pipeline stage, since tensor-parallel ranks are equal."""
    whole = replace(storage, tp=1)
    copies = deployment.tp * deployment.dp
    ranks = []
    for number, stage in enumerate(stages):
        blocks = range(stage.start, 2**31) if number == len(stages) - 1 else stage
        contents = []
        for part in parts:
            payload = part.rank_bytes(blocks, storage)
            distinct = min(payload * deployment.tp, part.rank_bytes(blocks, whole))
            contents.append(UnitContent(claim=part.claim.name, payload_bytes=payload, distinct_bytes=distinct))
        ranks.append(
            RankPlan(
                name=f"stage {number}" if len(stages) > 1 else "rank",
                count=copies,
                kv_bytes=_stage_memory(memory, number, deployment),
                unit_bytes={
                    part.pool.name: content.payload_bytes for part, content in zip(parts, contents, strict=True)
                },
                contents=tuple(contents),
            )
        )
    return tuple(ranks)
