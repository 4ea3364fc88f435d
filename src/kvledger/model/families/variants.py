"""Families with one rule of their own: Llama 4, Falcon, DBRX, MPT, ChatGLM, BigCode, MiniMax-M3, NAS models."""

from __future__ import annotations

from dataclasses import replace

from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_HEADS, Decoder, LayerPlan
from kvledger.model.families.attention import read_attention
from kvledger.model.families.latent import draft_copies
from kvledger.model.fields import Fields
from kvledger.model.formats import KV_FORMATS
from kvledger.model.layers import AttentionCache, Indexer, Layer, NoCache
from kvledger.units import counted

__all__ = [
    "read_bigcode",
    "read_chatglm",
    "read_falcon",
    "read_llama4",
    "read_minimax_m3",
    "read_nas",
    "read_nested_attention",
    "read_with_drafts",
]


def _all_layers(decoder: Decoder, kv_heads: int, source: str) -> LayerPlan:
    decoder.fields.note("kv_heads", kv_heads, source)
    decoder.fields.accept("num_key_value_heads")
    size = decoder.head_size()
    cache = AttentionCache(kv_heads=kv_heads, key_size=size, value_size=size)
    return LayerPlan(layers=tuple(Layer(index=i, cache=cache, origin=source) for i in range(decoder.layer_count())))


def read_with_drafts(decoder: Decoder) -> LayerPlan:
    """Read plain attention with next-token layers of the same shape (GLM-4.5, MiMo, MiniMax-M2, Qwen style)."""
    fields = decoder.fields
    fields.accept("mtp_transformer_layers")
    if fields.raw.get("use_sliding_window") is False:
        fields.accept("use_sliding_window", "sliding_window", "max_window_layers")
    kinds = fields.integers("attn_type_list", high=1)
    plan = read_attention(decoder)
    if kinds is not None and (len(kinds) != len(plan.layers) or 0 in kinds):
        raise fields.refusal("attn_type_list", kinds, "does not say full attention for each layer")
    drafts = plan.draft_layers or draft_copies(decoder, len(plan.layers), decoder.head_shape().cache())
    return replace(plan, draft_layers=drafts)


def read_llama4(decoder: Decoder) -> LayerPlan:
    """Read Llama 4: layers with positions are chunked, those without (``no_rope_layers`` 0) are full."""
    fields = decoder.fields

    def rule(_: Decoder, layers: int) -> list[str]:
        if fields.integer("attention_chunk_size") is None:
            fields.accept("no_rope_layers", "no_rope_layer_interval")
            return ["full"] * layers
        flags = fields.integers("no_rope_layers", high=1)
        step = fields.integer("no_rope_layer_interval", default=4) or 4
        if not flags:
            fields.note("layer_types", f"one full layer in {step}", "no_rope_layer_interval")
            flags = tuple(int((i + 1) % step != 0) for i in range(layers))
        if len(flags) != layers:
            raise fields.refusal("no_rope_layers", flags, f"does not describe {counted(layers, 'layer')}")
        return ["chunked" if flag else "full" for flag in flags]

    return read_attention(decoder, rule)


def read_falcon(decoder: Decoder) -> LayerPlan:
    """Read Falcon: ``multi_query`` without the new architecture means one KV head."""
    fields = decoder.fields
    new, single = fields.flag("new_decoder_architecture"), fields.flag("multi_query", default=True)
    if single and not new:
        fields.accept("num_kv_heads", "n_head_kv")
        return _all_layers(decoder, 1, "multi_query = true, new_decoder_architecture = false")
    if not new:
        fields.accept("num_kv_heads", "n_head_kv")
        return _all_layers(decoder, decoder.query_heads(), "multi_query = false: one for each query head")
    return read_attention(decoder)


def read_bigcode(decoder: Decoder) -> LayerPlan:
    """Read GPT-BigCode: ``multi_query`` means one KV head."""
    if decoder.fields.flag("multi_query", default=True):
        return _all_layers(decoder, 1, "multi_query = true")
    return _all_layers(decoder, decoder.query_heads(), "multi_query = false: one for each query head")


def read_chatglm(decoder: Decoder) -> LayerPlan:
    """Read ChatGLM: ``multi_query_group_num`` counts only with ``multi_query_attention``."""
    if decoder.fields.flag("multi_query_attention"):
        return read_attention(decoder)
    decoder.fields.accept("multi_query_group_num")
    return _all_layers(decoder, decoder.query_heads(), "multi_query_attention = false: one for each query head")


def read_nested_attention(decoder: Decoder) -> LayerPlan:
    """Read DBRX and MPT, whose KV heads are in ``attn_config.kv_n_heads``."""
    section = decoder.fields.section("attn_config") or Fields({}, path="attn_config")
    window = section.raw.get("sliding_window_size")
    if window not in (None, -1):
        raise section.refusal("sliding_window_size", window, "is a window this reader does not know")
    heads = section.integer("kv_n_heads", high=MAX_HEADS)
    if heads is not None:
        return _all_layers(decoder, heads, f"attn_config.kv_n_heads = {heads}")
    if section.raw.get("attn_type") == "multiquery_attention":
        return _all_layers(decoder, 1, "attn_config.attn_type = multiquery_attention")
    return _all_layers(decoder, decoder.query_heads(), "one for each query head: attn_config names no KV heads")


def read_minimax_m3(decoder: Decoder) -> LayerPlan:
    """Read MiniMax-M3: grouped heads everywhere, and one index key a token in the sparse layers (bf16 in vLLM)."""
    fields = decoder.fields
    count = decoder.layer_count()
    cache = decoder.head_shape().cache()
    section = fields.section("sparse_attention_config") or Fields({}, path="sparse_attention_config")
    flags = section.integers("sparse_attention_freq", high=1)
    kinds = fields.texts("layer_types")
    if kinds is not None:
        flags = tuple(int(kind == "minimax_m3_sparse") for kind in kinds)
        if set(kinds) - {"minimax_m3_sparse", "full_attention"}:
            raise fields.refusal("layer_types", kinds, "names a layer MiniMax-M3 does not have")
    if section.raw.get("use_sparse_attention") is False:
        flags = (0,) * count
    if flags is None or len(flags) != count:
        raise section.refusal("sparse_attention_freq", flags, f"does not describe {counted(count, 'layer')}")
    values = section.integers("sparse_disable_index_value", high=1)
    if values is not None and any(on and not off for on, off in zip(flags, values, strict=False)):
        raise section.refusal("sparse_disable_index_value", values, "asks for index values, whose cache is not known")
    size = section.integer("sparse_index_dim", high=MAX_HEAD_SIZE)
    size = size or fields.integer("index_head_dim", high=MAX_HEAD_SIZE, default=128) or 128
    indexer = Indexer(key_size=size, key_format=KV_FORMATS["bfloat16"])
    sparse = replace(cache, indexer=indexer)
    fields.accept("num_mtp_modules", "mtp_transformer_layers")
    fields.accept("index_block_size", "index_topk_blocks", "index_local_blocks")
    layers = tuple(
        Layer(index=i, cache=sparse if on else cache, origin=f"sparse_attention_freq[{i}] = {on}")
        for i, on in enumerate(flags)
    )
    return LayerPlan(layers=layers, draft_layers=draft_copies(decoder, count, cache))


def read_nas(decoder: Decoder) -> LayerPlan:
    """Read a Nemotron-NAS (DeciLM) model, whose ``block_configs`` give each layer its own KV heads or none."""
    fields = decoder.fields
    blocks = fields.sections("block_configs")
    count = decoder.layer_count()
    if blocks is None or len(blocks) != count:
        raise fields.refusal("block_configs", len(blocks or ()), f"does not describe {counted(count, 'layer')}")
    fields.accept("num_key_value_heads", "num_key_value_heads_per_layer")
    return LayerPlan(layers=tuple(_nas_layer(decoder, i, block) for i, block in enumerate(blocks)))


def _nas_layer(decoder: Decoder, index: int, block: Fields) -> Layer:
    attention = block.section("attention")
    if attention is None:
        raise block.missing("attention")
    where = f"block_configs[{index}].attention"
    for name in ("no_op", "replace_with_linear"):
        if attention.flag(name):
            return Layer(index=index, cache=NoCache(reason=name), origin=f"{where}.{name} = true")
    for name in ("window_length", "sparsify", "num_sink_tokens", "mamba", "llama4", "sliding_window"):
        if attention.raw.get(name):
            raise attention.refusal(name, attention.raw[name], "is a kind of block this reader does not know")
    heads = attention.integer("num_key_value_heads", high=MAX_HEADS)
    if heads is None:
        group = attention.need_integer("n_heads_in_group", high=MAX_HEADS)
        queries = decoder.query_heads()
        if queries % group:
            raise attention.refusal("n_heads_in_group", group, f"does not divide {counted(queries, 'query head')}")
        heads = queries // group
    size = decoder.head_size()
    cache = AttentionCache(kv_heads=heads, key_size=size, value_size=size)
    return Layer(index=index, cache=cache, origin=f"{where}: {heads} KV heads")
