"""DeepSeek-V4: a sliding window in every layer, and compressed keys behind it in most."""

from __future__ import annotations

from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_LAYERS, Decoder, LayerPlan
from kvledger.model.layers import CompressedCache, Indexer, Layer, Role

__all__ = ["read_compressed"]

_RATIOS = (0, 4, 128)
_RATES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def read_compressed(decoder: Decoder) -> LayerPlan:
    """Read DeepSeek-V4: ``compress_ratios`` gives each layer 0 (window only), 4 (with indexer) or 128.

    Raises:
        ModelError: The ratios are missing, of another length, or of another value.
    """
    fields = decoder.fields
    count = decoder.layer_count()
    ratios, drafts = _ratios(decoder, count)
    head = fields.need_integer("head_dim", high=MAX_HEAD_SIZE)
    rope = fields.need_integer("qk_rope_head_dim", high=MAX_HEAD_SIZE)
    window = fields.need_integer("sliding_window")
    indexer = Indexer(
        key_size=fields.need_integer("index_head_dim", high=MAX_HEAD_SIZE), topk_tokens=fields.integer("index_topk")
    )
    if fields.integer("num_key_value_heads") not in (None, 1):
        raise fields.refusal("num_key_value_heads", fields.raw.get("num_key_value_heads"), "is not 1")

    def cache(ratio: int) -> CompressedCache:
        return CompressedCache(
            ratio=ratio,
            head_size=head,
            rope_size=rope,
            window_tokens=window,
            indexer=indexer if ratio == 4 else None,
        )

    layers = tuple(
        Layer(index=i, cache=cache(ratio), origin=f"compress_ratios[{i}] = {ratio}") for i, ratio in enumerate(ratios)
    )
    draft_layers = tuple(
        Layer(index=count + i, cache=cache(ratio), role=Role.DRAFT, origin=f"compress_ratios[{count + i}] = {ratio}")
        for i, ratio in enumerate(drafts)
    )
    return LayerPlan(layers=layers, draft_layers=draft_layers)


def _ratios(decoder: Decoder, count: int) -> tuple[list[int], list[int]]:
    """Return the ratios of main and of draft layers; a list may end with those of the next-token layers."""
    fields = decoder.fields
    drafts = fields.integer("num_nextn_predict_layers", low=0, high=MAX_LAYERS, default=0) or 0
    given = fields.integers("compress_ratios")
    kinds = fields.texts("layer_types")
    if given is None and kinds is not None:
        unknown = [kind for kind in kinds if kind not in _RATES]
        if unknown:
            raise fields.refusal("layer_types", unknown[0], "is not a layer of DeepSeek-V4")
        given = tuple(_RATES[kind] for kind in kinds)
    if given is None:
        raise fields.missing("compress_ratios")
    if len(given) not in (count, count + drafts) or set(given) - set(_RATIOS):
        raise fields.refusal("compress_ratios", given, f"is not 0, 4 or 128 for each of {count} (+ {drafts}) layers")
    return list(given[:count]), list(given[count:]) or [0] * drafts
