"""Multi-head latent attention (MLA): DeepSeek V2 to V3.2, GLM-5, Kimi K2, with or without a sparse indexer."""

from __future__ import annotations

from dataclasses import replace

from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_LAYERS, Decoder, LayerPlan
from kvledger.model.layers import AttentionCache, Indexer, LatentCache, Layer, Role
from kvledger.units import counted

__all__ = ["draft_copies", "latent_cache", "read_double_latent", "read_latent"]

_SPARSE = ("indexed_attention", "deepseek_sparse_attention")


def latent_cache(decoder: Decoder) -> LatentCache:
    """Return the cache of one MLA layer, without indexer.

    Raises:
        ModelError: ``kv_lora_rank`` or ``qk_rope_head_dim`` is missing.
    """
    fields = decoder.fields
    latent = fields.need_integer("kv_lora_rank", high=MAX_HEAD_SIZE)
    rope = fields.need_integer("qk_rope_head_dim", low=0, high=MAX_HEAD_SIZE)
    nope = fields.integer("qk_nope_head_dim", low=0, high=MAX_HEAD_SIZE)
    value = fields.integer("v_head_dim", high=MAX_HEAD_SIZE)
    fields.accept("head_dim", "num_key_value_heads", "qk_head_dim")
    expanded = None
    if nope is not None and value is not None:
        expanded = AttentionCache(kv_heads=decoder.query_heads(), key_size=nope + rope, value_size=value)
    return LatentCache(latent_size=latent, rope_size=rope, expanded=expanded)


def read_latent(decoder: Decoder) -> LayerPlan:
    """Read a model whose layers are all MLA; an ``index_head_dim`` adds the keys of a sparse indexer.

    Raises:
        ModelError: A size is missing, or the list of indexers does not fit the layers.
    """
    fields = decoder.fields
    count = decoder.layer_count()
    cache = latent_cache(decoder)
    kinds = fields.texts("layer_types")
    if kinds is not None and (len(kinds) != count or set(kinds) - {*_SPARSE, "full_attention"}):
        raise fields.refusal("layer_types", kinds, f"is not a list of {count} MLA layers")
    indexers = _indexers(decoder, count)
    if kinds is not None and indexers[0] is not None and "full_attention" in kinds:
        raise fields.refusal("layer_types", kinds, "names layers without indexer beside `index_head_dim`")
    layers = tuple(
        Layer(index=i, cache=replace(cache, indexer=indexer), origin=_origin(indexer))
        for i, indexer in enumerate(indexers)
    )
    own = replace(indexers[0], shares_with=None) if indexers[0] else None
    return LayerPlan(layers=layers, draft_layers=draft_copies(decoder, count, replace(cache, indexer=own)))


def read_double_latent(decoder: Decoder) -> LayerPlan:
    """Read LongCat-Flash, whose blocks hold two MLA layers each."""
    count = decoder.layer_count()
    cache = latent_cache(decoder)
    layers = tuple(
        Layer(index=i, cache=cache, origin=f"MLA {half} of 2 in the block") for i in range(count) for half in (1, 2)
    )
    return LayerPlan(layers=layers, draft_layers=draft_copies(decoder, count, cache))


def draft_copies(decoder: Decoder, first: int, cache: LatentCache | AttentionCache) -> tuple[Layer, ...]:
    """Return the MTP layers a config announces, each with the given cache."""
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
    count = decoder.fields.integer(*names, low=0, high=MAX_LAYERS, default=0) or 0
    return tuple(
        Layer(index=first + i, cache=cache, role=Role.DRAFT, origin=f"next-token layer {i + 1} of {count}")
        for i in range(count)
    )


def _origin(indexer: Indexer | None) -> str:
    if indexer is None:
        return "MLA"
    if indexer.shares_with is None:
        return "MLA with its own indexer"
    return f"MLA, indexer shared with layer {indexer.shares_with}"


def _indexers(decoder: Decoder, count: int) -> list[Indexer | None]:
    """Return the indexer of each layer; shared ones reuse the selection of the last layer that has its own."""
    fields = decoder.fields
    size = fields.integer("index_head_dim", high=MAX_HEAD_SIZE)
    if size is None:
        return [None] * count
    own = Indexer(key_size=size, topk_tokens=fields.integer("index_topk"))
    result: list[Indexer | None] = []
    last = 0
    for i, kind in enumerate(_indexer_kinds(decoder, count)):
        if kind == "full":
            last = i
            result.append(own)
        else:
            result.append(replace(own, shares_with=last))
    return result


def _indexer_kinds(decoder: Decoder, count: int) -> list[str]:
    """Return ``full`` or ``shared`` for each layer (rule of GLM-5.2, Transformers 5.24 ``glm_moe_dsa``)."""
    fields = decoder.fields
    given = fields.texts("indexer_types")
    if given is None and isinstance(fields.raw.get("index_topk_pattern"), str):
        pattern = fields.text("index_topk_pattern") or ""
        given = tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern)
    if given is not None:
        if len(given) != count or set(given) - {"full", "shared"} or given[0] != "full":
            raise fields.refusal(
                "indexer_types", given, f"is not `full` or `shared` for each of {counted(count, 'layer')}"
            )
        return list(given)
    step = fields.integer("index_topk_freq", default=1) or 1
    offset = fields.integer("index_skip_topk_offset", low=0, default=2) or 0
    return ["full" if max(i - offset + 1, 0) % step == 0 else "shared" for i in range(count)]
