"""The caches llama.cpp allocates: cells of full, windowed, index and recurrent layers, and the bytes of a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from kvledger.engines.layout import LayerGroup, Part, group_layers
from kvledger.engines.llamacpp.context import Context
from kvledger.engines.llamacpp.settings import Flags, find_cache_type
from kvledger.engines.plan import Claim, ClaimKind, Deployment, Pool
from kvledger.errors import ModelError, UsageError
from kvledger.model import (
    AttentionCache,
    Dtype,
    KvFormat,
    LatentCache,
    Layer,
    ModelSpec,
    StateCache,
    Storage,
    TensorRole,
)
from kvledger.units import counted

__all__ = ["CacheTypes", "Sides", "find_sides", "find_state_bytes", "find_types", "make_parts", "row_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTypes:
    """The element types of keys and values."""

    key: KvFormat
    value: KvFormat
    key_name: str
    value_name: str

    @property
    def storage(self) -> Storage:
        """The storage, for the shared records (one rank; sizes come from the functions of this module).

        Index keys have the type of keys; states are f32 (:func:`find_state_bytes`).
        """
        return Storage(kv=self.key, values=self.value, index=self.key, conv=Dtype.FLOAT32, state=Dtype.FLOAT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Elements of keys and values of one token in one layer."""

    key_elements: int
    value_elements: int


def find_types(deployment: Deployment, flags: Flags) -> CacheTypes:
    """Return the cache types a deployment asks for.

    Raises:
        UsageError: A type does not exist, is asked for twice, or needs flash attention.
    """
    both = deployment.kv_dtype
    if both != "auto" and (flags.cache_type_k or flags.cache_type_v):
        raise UsageError("`kv_dtype` and `cache_type_k` or `cache_type_v` are both given", hint="give one of them")
    key, key_name = find_cache_type(flags.cache_type_k or both)
    value, value_name = find_cache_type(flags.cache_type_v or both)
    if value.group_elements and flags.flash_attn == "off":
        raise UsageError(
            f"llama.cpp refuses values of type `{value_name}` without flash attention",
            hint="use `--set flash_attn=on`, or `--set cache_type_v=f16`",
        )
    return CacheTypes(key=key, value=value, key_name=key_name, value_name=value_name)


def find_sides(layer: Layer, *, mla_tensors: bool) -> Sides:
    """Return what a layer stores for a token; an absorbed latent counts as keys, and there are no values.

    Raises:
        ModelError: The full heads of a latent layer are not known.
    """
    cache = layer.cache
    if isinstance(cache, LatentCache):
        if mla_tensors:
            return Sides(key_elements=cache.latent_size + cache.rope_size, value_elements=0)
        if cache.expanded is None:
            raise ModelError(
                f"the full heads of latent layer {layer.index} are not known, and a GGUF file without MLA tensors "
                "stores them",
                hint="give the model's full config",
            )
        cache = cache.expanded
    if isinstance(cache, AttentionCache):
        return Sides(key_elements=cache.kv_heads * cache.key_size, value_elements=cache.kv_heads * cache.value_size)
    return Sides(key_elements=0, value_elements=0)


def row_bytes(elements: int, kv_format: KvFormat) -> int:
    """Return the bytes of a row of elements; quantised rows are whole blocks of 32.

    Raises:
        UsageError: The row is no whole number of blocks.
    """
    if kv_format.group_elements and elements % kv_format.group_elements:
        raise UsageError(
            f"a row of {counted(elements, 'element')} is no whole number of blocks of {kv_format.group_elements}, "
            f"so llama.cpp cannot store it as `{kv_format.name}`",
            hint="use f16",
        )
    return kv_format.side_bytes(elements)


def find_state_bytes(layer: Layer) -> tuple[int, int]:
    """Return the bytes of one row of R (convolution) and of S (recurrent state): always f32.

    A state that was stated in bytes counts as S, as it is.
    """
    if not isinstance(layer.cache, StateCache):
        return 0, 0
    convolution = recurrent = 0
    for tensor in layer.cache.tensors:
        elements = prod(tensor.shape())
        match tensor.role:
            case TensorRole.CONV:
                convolution += elements * 4
            case TensorRole.STATE:
                recurrent += elements * 4
            case TensorRole.OPAQUE:
                recurrent += elements * tensor.dtype.bytes
    return convolution, recurrent


def _attention_bytes(types: CacheTypes, flags: Flags, widest: int | None) -> Callable[[Layer, Storage], int]:
    def cell(layer: Layer, _: Storage) -> int:
        sides = find_sides(layer, mla_tensors=flags.mla_tensors)
        values = sides.value_elements if widest is None or not sides.value_elements else widest
        return row_bytes(sides.key_elements, types.key) + row_bytes(values, types.value)

    return cell


def _widest_value(layers: tuple[Layer, ...], flags: Flags) -> int | None:
    """Elements every layer's values are padded to: without flash attention, when they differ."""
    if flags.flash_attn != "off":
        return None
    elements = {find_sides(layer, mla_tensors=flags.mla_tensors).value_elements for layer in layers} - {0}
    return max(elements) if len(elements) > 1 else None


def _cells(name: str, cells: int, context: Context, null: int = 0) -> Pool:
    return Pool(name=name, units=cells * context.streams, unit_name="cell", null_units=null)


def _full_claim(name: str, kind: ClaimKind, layers: int, cells: int, context: Context) -> Claim:
    reserve = None if context.unified else cells
    return Claim(name=name, pool=name, kind=kind, layers=layers, unit_tokens=1, reserve_tokens=reserve)


def _window_part(group: LayerGroup, context: Context, flags: Flags, cell: Callable[[Layer, Storage], int]) -> Part:
    window = group.cap_tokens or 0
    cells = context.n_ctx_seq if flags.swa_full else context.count_window_cells(window)
    claim = replace(_full_claim("swa", ClaimKind.WINDOW, len(group.layers), cells, context), window_tokens=window)
    null = 0
    if context.unified and not flags.swa_full:
        claim = replace(claim, reach_tokens=window)
        null = max(0, cells - window * context.slots)
    return Part(pool=_cells("swa", cells, context, null), claim=claim, layers=group.layers, unit_bytes=cell)


def _state_part(group: LayerGroup, context: Context, flags: Flags) -> Part:
    rows = 1 + flags.rs_seq

    def slot(layer: Layer, _: Storage) -> int:
        return rows * sum(find_state_bytes(layer))

    claim = Claim(
        name="state", pool="state", kind=ClaimKind.STATE, layers=len(group.layers), unit_tokens=0, state_units=1
    )
    pool = Pool(name="state", units=context.slots, unit_name="cell")
    return Part(pool=pool, claim=claim, layers=group.layers, unit_bytes=slot)


def _index_part(layers: tuple[Layer, ...], context: Context, types: CacheTypes) -> Part | None:
    """Keys of a sparse-attention indexer: one head a layer, in the keys' type, in a cache of their own."""

    def cell(layer: Layer, _: Storage) -> int:
        indexer = layer.cache.indexer if isinstance(layer.cache, AttentionCache | LatentCache) else None
        if indexer is None or indexer.shares_with is not None:
            return 0
        return row_bytes(indexer.heads * indexer.key_size, types.key)

    owners = tuple(layer for layer in layers if cell(layer, types.storage))
    if not owners:
        return None
    claim = _full_claim("index", ClaimKind.FULL, len(owners), context.n_ctx_seq, context)
    return Part(pool=_cells("index", context.n_ctx_seq, context), claim=claim, layers=owners, unit_bytes=cell)


def make_parts(model: ModelSpec, context: Context, flags: Flags, types: CacheTypes) -> tuple[Part, ...]:
    """Return llama.cpp's caches of a model: ``full``, ``index``, ``swa`` and ``state``, those that exist.

    Layers that share the cache of an earlier one get nothing. Windows are used by alternating models only; where
    every layer has the same window, llama.cpp stores the whole context.

    Raises:
        ModelError: The model has windows of several lengths, or layers no rule covers.
    """
    groups = group_layers(model.layers)
    capped = [group for group in groups if group.kind in (ClaimKind.WINDOW, ClaimKind.CHUNK)]
    if len(capped) > 1:
        lengths = ", ".join(str(group.cap_tokens) for group in capped)
        raise ModelError(f"llama.cpp has one window length, but the layers have {lengths}")
    if any(group.kind is ClaimKind.CROSS for group in groups):
        raise ModelError(
            "the cross attention of encoder-decoder models is not in llama.cpp's server caches",
            hint="plan this model for another engine",
        )
    attention = tuple(
        layer
        for group in groups
        if group.kind in (ClaimKind.FULL, ClaimKind.WINDOW, ClaimKind.CHUNK)
        for layer in group.layers
    )
    cell = _attention_bytes(types, flags, _widest_value(attention, flags))
    alternating = any(group.kind is ClaimKind.FULL for group in groups)
    parts = []
    for group in groups:
        if group.kind is ClaimKind.STATE:
            parts.append(_state_part(group, context, flags))
        elif group.kind is ClaimKind.FULL or not alternating:
            claim = replace(
                _full_claim("full", ClaimKind.FULL, len(group.layers), context.n_ctx_seq, context),
                window_tokens=group.cap_tokens,
            )
            pool = _cells("full", context.n_ctx_seq, context)
            parts.append(Part(pool=pool, claim=claim, layers=group.layers, unit_bytes=cell))
            index = _index_part(group.layers, context, types)
            if index is not None:
                parts.append(index)
        else:
            parts.append(_window_part(group, context, flags, cell))
    if not parts:
        raise ModelError("no layer of this model keeps a cache", hint="check the model's config")
    return tuple(parts)
