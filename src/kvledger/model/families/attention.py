"""Attention in every layer: full, sliding, chunked or mixed, with or without layers that share a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS, Decoder, HeadShape, LayerPlan
from kvledger.model.fields import Fields
from kvledger.model.layers import AttentionCache, Layer, Role, SharedCache
from kvledger.units import counted

__all__ = [
    "Rule",
    "after_first",
    "every",
    "full",
    "hybrid_pattern",
    "letters",
    "none_first",
    "read_attention",
    "windowed",
]

Rule = Callable[[Decoder, int], Sequence[str]]
"""What a family does when the config lists no layer types: (decoder, layers) to ``full`` or ``sliding`` for each."""

_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "global": "full",
    "full": "full",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "local_attention": "sliding",
    "local": "sliding",
    "sliding": "sliding",
    "chunked_attention": "chunked",
}
GEMMA_4 = ("gemma4", "gemma4_text", "gemma4_unified_text")
_PERIODS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
_WINDOW = ("sliding_window", "sliding_window_size", "window_size")


def full(decoder: Decoder, layers: int) -> Sequence[str]:
    """Say that every layer attends to everything; a window that is not switched off is refused elsewhere."""
    if decoder.fields.raw.get("use_sliding_window") is False:
        decoder.fields.accept(*_WINDOW, "use_sliding_window", "max_window_layers")
    if decoder.fields.raw.get("use_cla") is False:
        decoder.fields.accept("cla_share_factor")
    return ["full"] * layers


def windowed(decoder: Decoder, layers: int) -> Sequence[str]:
    """Say that every layer has the window, if the config has one (Mistral 7B v0.1, Mixtral, Phi-3, StarCoder2)."""
    return ["sliding" if _has_window(decoder) else "full"] * layers


def none_first(decoder: Decoder, layers: int) -> Sequence[str]:
    """Say that layers from ``max_window_layers`` on have the window, if ``use_sliding_window`` (Qwen2, Qwen3)."""
    if decoder.fields.flag("use_sliding_window"):
        return after_first(decoder, layers)
    decoder.fields.accept(*_WINDOW, "max_window_layers")
    return ["full"] * layers


def after_first(decoder: Decoder, layers: int) -> Sequence[str]:
    """Say that layers from ``max_window_layers`` on have the window, if there is one (dots.llm1)."""
    first = decoder.fields.integer("max_window_layers", low=0)
    if not _has_window(decoder) or first is None:
        return ["full"] * layers
    return ["full" if i < first else "sliding" for i in range(layers)]


def every(period: int, *names: str, offset: int = 0) -> Rule:
    """Return the rule: one full layer in each ``period`` (or in what the config says in one of ``names``)."""

    def rule(decoder: Decoder, layers: int) -> Sequence[str]:
        step = (decoder.fields.integer(*names) if names else None) or period
        if not names:
            source = f"one full layer in {step}, the rule of `{decoder.model_type}`"
            decoder.fields.note("layer_types", f"{step - 1} sliding to 1 full", source)
        return ["sliding" if (i + 1 - offset) % step else "full" for i in range(layers)]

    return rule


def letters(decoder: Decoder, layers: int) -> Sequence[str]:
    """Read ``sliding_window_pattern`` as letters (``LLLG``) or as a period (EXAONE 4); the last layer is full."""
    fields = decoder.fields
    if not _has_window(decoder):
        fields.accept("sliding_window_pattern")
        return ["full"] * layers
    if isinstance(fields.raw.get("sliding_window_pattern"), str):
        pattern = fields.text("sliding_window_pattern") or ""
        if not pattern or set(pattern) - {"L", "G"}:
            raise fields.refusal("sliding_window_pattern", pattern, "is not made of L and G")
        kinds = ["sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(layers)]
    else:
        kinds = list(every(4, "sliding_window_pattern")(decoder, layers))
    return [*kinds[:-1], "full"]


def hybrid_pattern(decoder: Decoder, layers: int) -> Sequence[str]:
    """Read ``hybrid_layer_pattern``: 0 is full, 1 is sliding (MiMo-V2)."""
    pattern = decoder.fields.integers("hybrid_layer_pattern", high=1)
    if pattern is None or len(pattern) != layers:
        raise decoder.fields.refusal("hybrid_layer_pattern", pattern, f"does not describe {counted(layers, 'layer')}")
    chunk = decoder.fields.integer("attention_chunk_size")
    if chunk not in (None, decoder.fields.integer(*_WINDOW)):
        raise decoder.fields.refusal("attention_chunk_size", chunk, "is not the sliding window")
    return ["sliding" if kind else "full" for kind in pattern]


def read_attention(decoder: Decoder, rule: Rule = full) -> LayerPlan:
    """Read a model whose layers are all attention.

    Raises:
        ModelError: A layer type is unknown, the list has another length, or a window is announced and not given.
    """
    count = decoder.layer_count()
    drafts = decoder.fields.integer("num_nextn_predict_layers", low=0, high=MAX_LAYERS, default=0) or 0
    kinds, draft_kinds = layer_kinds(decoder, count, drafts, rule)
    by_kind = {kind: _cache(decoder, kind) for kind in dict.fromkeys((*kinds, *draft_kinds))}
    overrides = _overrides(decoder, count)
    layers = tuple(
        Layer(
            index=i,
            cache=_override(by_kind[kind], overrides[i]) if i in overrides else by_kind[kind],
            origin=f"{kind} attention" + (f", per_layer_config[{i}]" if i in overrides else ""),
        )
        for i, kind in enumerate(kinds)
    )
    draft_layers = tuple(
        Layer(index=count + i, cache=by_kind[kind], role=Role.DRAFT, origin=f"{kind} attention of a next-token layer")
        for i, kind in enumerate(draft_kinds)
    )
    return LayerPlan(layers=_share(decoder, layers, kinds), draft_layers=draft_layers)


def layer_kinds(decoder: Decoder, count: int, drafts: int, rule: Rule) -> tuple[list[str], list[str]]:
    """Return ``full``, ``sliding`` or ``chunked`` for each layer, from ``layer_types`` or else the family's rule.

    The second list is of the next-token layers, where ``layer_types`` goes on with them or ``mtp_layer_types`` names
    them (Step 3.5).

    Raises:
        ModelError: A layer type is unknown, or the list has another length.
    """
    fields = decoder.fields
    given, after = fields.texts("layer_types"), fields.texts("mtp_layer_types") or ()
    if given is None:
        return list(rule(decoder, count)), [_kind(fields, kind) for kind in after]
    if len(given) == count + drafts:
        given, after = given[:count], given[count:] or after
    if len(given) != count:
        raise fields.refusal("layer_types", given, f"lists {counted(len(given), 'layer')}, the model has {count}")
    kinds = [_kind(fields, kind) for kind in given]
    if fields.raw.get("use_sliding_window") is False:
        fields.accept(*_WINDOW, "use_sliding_window", "max_window_layers")
        return ["full"] * count, ["full"] * len(after)
    fields.accept("use_sliding_window", "max_window_layers", *_PERIODS)
    if "sliding" not in kinds:
        fields.accept(*_WINDOW)
    return kinds, [_kind(fields, kind) for kind in after]


def _kind(fields: Fields, kind: str) -> str:
    if kind not in _KINDS:
        raise fields.refusal("layer_types", kind, "is not an attention layer this family has")
    return _KINDS[kind]


def _has_window(decoder: Decoder) -> bool:
    """Return whether the config names a window; null and 0 switch it off."""
    return bool(decoder.fields.integer(*_WINDOW, low=0))


def window_tokens(decoder: Decoder) -> int:
    """Return the sliding window.

    Raises:
        ModelError: The config gives none.
    """
    return decoder.fields.need_integer(*_WINDOW)


def _cache(decoder: Decoder, kind: str) -> AttentionCache:
    if kind == "chunked":
        return decoder.head_shape().cache(chunk_tokens=decoder.fields.need_integer("attention_chunk_size"))
    if kind == "sliding":
        return sliding_shape(decoder).cache(window_tokens=window_tokens(decoder))
    return full_shape(decoder).cache()


def full_shape(decoder: Decoder) -> HeadShape:
    """Return the heads of full-attention layers; Gemma 4 gives them their own size and number."""
    shape, fields = decoder.head_shape(), decoder.fields
    if decoder.model_type not in GEMMA_4 or fields.has("per_layer_config"):
        return shape
    size = fields.integer("global_head_dim", high=MAX_HEAD_SIZE, default=512) or 512
    if "global_head_dim" not in fields.raw:
        fields.note("global_head_dim", size, f"class default of {decoder.model_type}")
    heads = fields.integer("num_global_key_value_heads", high=MAX_HEADS) if fields.flag("attention_k_eq_v") else None
    fields.accept("num_global_key_value_heads", "attention_k_eq_v")
    return HeadShape(kv_heads=heads or shape.kv_heads, key_size=size, value_size=size)


def sliding_shape(decoder: Decoder) -> HeadShape:
    """Return the heads of sliding layers, which MiMo-V2 (``swa_*``) and Step 3.5 (``attention_other_setting``) name."""
    shape, fields = decoder.head_shape(), decoder.fields
    other = fields.section("attention_other_setting")
    if other is not None:
        kind = other.text("attention_type")
        if kind != "sliding_attention":
            raise other.refusal("attention_type", kind, "is not `sliding_attention`")
        other.accept("num_attention_heads", "true_head_dim")
        size = other.integer("head_dim", high=MAX_HEAD_SIZE, default=shape.key_size) or shape.key_size
        heads = other.integer("num_attention_groups", high=MAX_HEADS, default=shape.kv_heads) or shape.kv_heads
        return HeadShape(kv_heads=heads, key_size=size, value_size=size)
    key_size = fields.integer("swa_head_dim", high=MAX_HEAD_SIZE, default=shape.key_size) or shape.key_size
    value_size = fields.integer("swa_v_head_dim", high=MAX_HEAD_SIZE)
    if value_size is None:
        value_size = shape.value_size if key_size == shape.key_size else key_size
    heads = fields.integer("swa_num_key_value_heads", high=MAX_HEADS, default=shape.kv_heads) or shape.kv_heads
    return HeadShape(kv_heads=heads, key_size=key_size, value_size=value_size)


def _overrides(decoder: Decoder, count: int) -> dict[int, Fields]:
    """Return the entries of ``per_layer_config`` (Transformers 5), whose keys are layer numbers as text."""
    section = decoder.fields.section("per_layer_config")
    found: dict[int, Fields] = {}
    for key in section.raw if section else ():
        if not (key.isdecimal() and len(key) < 6 and int(key) < count):
            raise decoder.fields.refusal(
                "per_layer_config", key, f"is not the number of one of {counted(count, 'layer')}"
            )
        entry = section.section(key) if section else None
        if entry is not None:
            found[int(key)] = entry
    return found


def _override(cache: AttentionCache, entry: Fields) -> AttentionCache:
    known = {"head_dim", "v_head_dim", "num_key_value_heads", "sliding_window"}
    harmless = {"num_attention_heads", "intermediate_size", "rope_theta", "rope_parameters", "hidden_act"}
    for name in sorted(set(entry.raw) - known - harmless):
        raise entry.refusal(name, entry.raw[name], "is an override this reader does not know")
    size = entry.integer("head_dim", high=MAX_HEAD_SIZE)
    return replace(
        cache,
        key_size=size or cache.key_size,
        value_size=entry.integer("v_head_dim", high=MAX_HEAD_SIZE) or size or cache.value_size,
        kv_heads=entry.integer("num_key_value_heads", high=MAX_HEADS) or cache.kv_heads,
        window_tokens=entry.integer("sliding_window") or cache.window_tokens,
    )


def _share(decoder: Decoder, layers: tuple[Layer, ...], kinds: Sequence[str]) -> tuple[Layer, ...]:
    """Let the last ``num_kv_shared_layers`` read the last earlier layer of their own kind (Gemma 3n and 4)."""
    shared = decoder.fields.integer("num_kv_shared_layers", low=0, high=len(layers), default=0) or 0
    if not shared:
        return layers
    own = len(layers) - shared
    result = list(layers[:own])
    for layer in layers[own:]:
        earlier = [i for i in range(own) if kinds[i] == kinds[layer.index]]
        if not earlier or not isinstance(layer.cache, AttentionCache):
            raise decoder.fields.refusal(
                "num_kv_shared_layers", shared, f"leaves layer {layer.index} no earlier {kinds[layer.index]} layer"
            )
        cache = SharedCache(shares_with=earlier[-1], cache=layer.cache)
        origin = f"num_kv_shared_layers = {shared}: reads layer {earlier[-1]}"
        result.append(Layer(index=layer.index, cache=cache, origin=origin))
    return tuple(result)
