"""Plans for continuous batching (``transformers serve --continuous-batching``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TypeGuard

from kvledger.engines.layout import LayerGroup, SharedLayers, group_layers
from kvledger.engines.plan import (
    Claim,
    ClaimKind,
    Deployment,
    KvMemory,
    Plan,
    Pool,
    PrintedLine,
    RankPlan,
    StartFailure,
    UnitContent,
)
from kvledger.engines.transformers.paged import (
    BlockGroup,
    MemoryModel,
    SectorGeometry,
    count_storable_requests,
)
from kvledger.engines.transformers.settings import Settings
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, Cache, ModelSpec, Storage, heads_per_rank
from kvledger.units import MIB, counted

__all__ = ["find_geometry", "plan_continuous"]

_DEFAULT_BATCH_TOKENS = 8192
_DEFAULT_PAGE_TOKENS = 256


def _shape(groups: Sequence[LayerGroup], tp: int) -> AttentionCache:
    caches = [layer.cache for group in groups for layer in group.layers]
    shapes = {(c.kv_heads, c.key_size, c.value_size) if _is_paged(c) else None for c in caches}
    if None in shapes or not shapes:
        raise ModelError(
            "continuous batching of Transformers 5.24 serves full and sliding-window attention only",
            hint="use `--set cache=dynamic`",
        )
    first = next(c for c in caches if _is_paged(c))
    if len(shapes) > 1 or first.key_size != first.value_size:
        raise ModelError(
            "continuous batching of Transformers 5.24 has one head size and one number of heads for all layers",
            hint="use `--set cache=dynamic`",
        )
    if tp > 1 and first.kv_heads % tp:
        raise UsageError(f"{counted(first.kv_heads, 'key-value head')} cannot be divided among {counted(tp, 'rank')}")
    return first


def _is_paged(cache: Cache) -> TypeGuard[AttentionCache]:
    return isinstance(cache, AttentionCache) and cache.chunk_tokens is None and cache.indexer is None


def find_geometry(model: ModelSpec, *, page_tokens: int, storage: Storage) -> SectorGeometry:
    """Return the blocks of each attention type; layers that share a cache are given one all the same.

    Raises:
        ModelError: A layer is neither full nor sliding-window attention, or shapes differ.
    """
    groups = group_layers(model.layers, shared=SharedLayers.ALLOCATE)
    shape = _shape(groups, storage.tp)
    heads = heads_per_rank(shape.kv_heads, storage.tp)
    page_bytes = 2 * heads * storage.kv.side_bytes(shape.key_size) * page_tokens
    windows = {group.cap_tokens for group in groups if group.kind is ClaimKind.WINDOW}
    if len(windows) > 1:
        raise ModelError("continuous batching has one window length, but the layers have several")
    return SectorGeometry(
        groups=tuple(
            BlockGroup(
                name="full_attention" if group.kind is ClaimKind.FULL else "sliding_attention",
                layers=len(group.layers),
                page_tokens=page_tokens,
                page_bytes=page_bytes,
                window_tokens=group.cap_tokens if group.kind is ClaimKind.WINDOW else None,
            )
            for group in groups
        )
    )


def _memory_model(model: ModelSpec, geometry: SectorGeometry, settings: Settings, storage: Storage) -> MemoryModel:
    if model.hidden_size is None or model.vocabulary_size is None or model.query_heads is None:
        raise ModelError(
            "sizing needs the hidden size, the vocabulary and the query heads of the model, which are not known",
            hint="give the model's full config, or `num_blocks`",
        )
    shape = next(layer.cache for layer in model.layers if isinstance(layer.cache, AttentionCache))
    flash = settings.attention == "flash_attention"
    width = settings.max_blocks_per_request
    return MemoryModel(
        geometry=geometry,
        hidden_size=model.hidden_size,
        vocabulary_size=model.vocabulary_size,
        query_heads=model.query_heads // storage.tp,
        kv_heads=heads_per_rank(shape.kv_heads, storage.tp),
        head_size=shape.key_size,
        dtype_bytes=storage.kv.bits // 8,
        flash=flash,
        logits_to_keep=settings.logits_to_keep,
        asynchronous=settings.use_async_batching,
        logprobs=settings.return_logprobs,
        max_blocks_per_request=(32 if flash else 0) if width is None else width,
        max_requests_per_batch=settings.max_requests_per_batch,
    )


def plan_continuous(
    model: ModelSpec, deployment: Deployment, memory: KvMemory, settings: Settings, storage: Storage
) -> Plan:
    """Return the sectors that memory gives; ``memory`` is what may be used, activations and masks included."""
    page = deployment.block_tokens or _DEFAULT_PAGE_TOKENS
    if page < 4:
        raise UsageError(f"`page_size` is {page}, but must be at least 4")
    geometry = find_geometry(model, page_tokens=page, storage=storage)
    batch = deployment.max_num_batched_tokens or _DEFAULT_BATCH_TOKENS
    available = memory.smallest_bytes
    if settings.num_blocks is not None:
        sectors = max(1, ceil(settings.num_blocks * geometry.model_block_bytes / geometry.sector_bytes))
        needed = sectors * geometry.sector_bytes
    else:
        sizing = _memory_model(model, geometry, settings, storage)
        sectors = sizing.count_sectors(available, batch)
        needed = sizing.count_footprint(batch, 1)
    longest = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    pool = Pool(name="sectors", units=max(0, sectors) + 2, unit_name="sector", null_units=2)
    claims = tuple(_make_claim(group, geometry) for group in geometry.groups)
    return Plan(
        deployment=replace(
            deployment,
            kv_dtype=storage.kv.name,
            block_tokens=page,
            max_model_len=longest,
            max_num_batched_tokens=batch,
        ),
        storage=storage,
        pools=(pool,),
        claims=claims,
        ranks=(
            RankPlan(
                name="rank",
                count=deployment.tp,
                kv_bytes=available,
                unit_bytes={"sectors": geometry.sector_bytes},
                contents=tuple(_make_content(group, geometry, deployment.tp) for group in geometry.groups),
            ),
        ),
        lines=_make_lines(geometry, sectors, batch, available),
        accuracy=Accuracy.DERIVED,
        failure=None
        if sectors > 0
        else StartFailure(
            text=f"Invalid values: max_batch_tokens = {batch}, num_sectors = {sectors}",
            needed_bytes=needed,
            available_bytes=available,
            largest_max_model_len=0,
        ),
        notes=_notes(geometry, settings, sectors, available, longest),
        length_limit_tokens=longest,
        request_limit=settings.max_requests_per_batch,
    )


def _make_claim(group: BlockGroup, geometry: SectorGeometry) -> Claim:
    return Claim(
        name=group.name,
        pool="sectors",
        kind=ClaimKind.FULL if group.window_tokens is None else ClaimKind.WINDOW,
        layers=group.layers,
        unit_tokens=group.page_tokens * geometry.blocks_per_sector(group),
        window_tokens=group.window_tokens,
        reach_tokens=group.window_tokens,
    )


def _make_content(group: BlockGroup, geometry: SectorGeometry, tp: int) -> UnitContent:
    payload = geometry.blocks_per_sector(group) * group.block_bytes
    return UnitContent(
        claim=group.name,
        payload_bytes=payload,
        page_padding_bytes=geometry.sector_bytes - payload,
        distinct_bytes=payload * tp,
    )


def _make_lines(geometry: SectorGeometry, sectors: int, batch: int, available: int) -> tuple[PrintedLine, ...]:
    return (
        PrintedLine(
            text=f"Memory available for cache allocation: {available // MIB} MB",
            meaning="MiB that the cache, activations, inputs and attention masks share",
            accuracy=Accuracy.DERIVED,
        ),
        PrintedLine(
            text=f"Paged cache initialized: self.max_batch_tokens = {batch}, self.num_sectors = {sectors}, "
            f"mb_per_sector = {geometry.sector_bytes // MIB}",
            meaning=f"sectors of {geometry.sector_bytes} bytes, two more for padding; mb_per_sector is whole MiB, cut",
            accuracy=Accuracy.DERIVED,
        ),
    )


def _notes(
    geometry: SectorGeometry, settings: Settings, sectors: int, available: int, longest: int | None
) -> tuple[str, ...]:
    notes = []
    cache = max(0, sectors + 2) * geometry.sector_bytes
    if settings.num_blocks is None and available:
        notes.append(f"the cache takes {100 * cache / available:.0f} % of the memory; activations and masks the rest")
    if settings.attention != "flash_attention":
        notes.append("without flash attention the masks grow with the cache and take most of the memory")
    if len(geometry.groups) > 1 and longest and sectors > 0:
        together = count_storable_requests(geometry, sectors, longest)
        notes.append(
            f"counts here give every request sectors of its own; sharing them, {counted(together, 'request')} of "
            f"{longest:,} tokens fit"
        )
    return tuple(notes)
