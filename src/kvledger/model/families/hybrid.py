"""Attention beside recurrent states: Jamba, Granite 4, Nemotron-H, Qwen3-Next and 3.5, Kimi Linear, LFM2 and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvledger.model.decoder import MAX_LAYERS, Decoder, LayerPlan
from kvledger.model.families.latent import draft_copies, latent_cache
from kvledger.model.families.state_shapes import (
    conv_cache,
    delta_net_cache,
    kda_cache,
    lightning_cache,
    mamba1_cache,
    mamba2_cache,
)
from kvledger.model.layers import AttentionCache, Cache, Layer, NoCache, Role
from kvledger.units import counted

__all__ = [
    "read_bailing_linear",
    "read_delta_net",
    "read_falcon_h1",
    "read_jamba",
    "read_kimi_linear",
    "read_lfm2",
    "read_mamba1",
    "read_mamba2",
    "read_mamba_hybrid",
    "read_minimax_text",
    "read_nemotron_h",
]

_ATTENTION = ("attention", "full_attention")
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

Builder = Callable[[], Cache]


def _attention(decoder: Decoder) -> AttentionCache:
    return decoder.head_shape().cache()


def _build(
    decoder: Decoder, kinds: Sequence[str], builders: dict[str, Builder], *, name: str = "layer_types"
) -> tuple[Layer, ...]:
    """Return one layer for each kind; a kind without builder is refused."""
    decoder.fields.accept("num_key_value_heads", "head_dim", "attention_head_dim")
    caches: dict[str, Cache] = {}
    for kind in dict.fromkeys(kinds):
        if kind not in builders:
            raise decoder.fields.refusal(name, kind, f"is not a layer of `{decoder.model_type}`")
        caches[kind] = builders[kind]()
    return tuple(Layer(index=i, cache=caches[kind], origin=f"{name}[{i}] = {kind}") for i, kind in enumerate(kinds))


def _listed(decoder: Decoder, count: int, *names: str) -> tuple[str, ...] | None:
    kinds = decoder.fields.texts(*names)
    if kinds is not None and len(kinds) != count:
        raise decoder.fields.refusal(names[0], kinds, f"lists {counted(len(kinds), 'layer')}, the model has {count}")
    return kinds


def _interval(decoder: Decoder, count: int, *names: str, default: int | None = None) -> list[str]:
    """Return one full-attention layer at the end of each group of so many layers, the others linear."""
    step = decoder.fields.integer(*names, default=default)
    if step is None:
        raise decoder.fields.missing("layer_types", *names)
    decoder.fields.note("layer_types", f"one full layer in {step}", decoder.fields.source(names[0]))
    return ["full_attention" if (i + 1) % step == 0 else "linear_attention" for i in range(count)]


def _none(reason: str) -> Builder:
    return lambda: NoCache(reason=reason)


def read_jamba(decoder: Decoder) -> LayerPlan:
    """Read Jamba: attention where ``i % attn_layer_period == attn_layer_offset``, Mamba-1 elsewhere."""
    count = decoder.layer_count()
    kinds = _listed(decoder, count, "layers_block_type", "layer_types")
    period, offset = decoder.fields.integer("attn_layer_period"), decoder.fields.integer("attn_layer_offset", low=0)
    if kinds is None:
        if period is None or offset is None:
            raise decoder.fields.missing("attn_layer_period")
        kinds = tuple("attention" if i % period == offset else "mamba" for i in range(count))
    builders: dict[str, Builder] = dict.fromkeys(_ATTENTION, lambda: _attention(decoder))
    mamba: Builder = lambda: mamba1_cache(decoder)  # noqa: E731
    return LayerPlan(layers=_build(decoder, kinds, {**builders, "mamba": mamba, "linear_attention": mamba}))


def read_mamba_hybrid(decoder: Decoder) -> LayerPlan:
    """Read Granite 4 and Bamba: ``layer_types`` or ``attn_layer_indices`` name attention, Mamba-2 elsewhere."""
    fields = decoder.fields
    count = decoder.layer_count()
    kinds = _listed(decoder, count, "layer_types", "layers_block_type")
    places = fields.integers("attn_layer_indices", high=count - 1)
    if kinds is None:
        if places is None and decoder.model_type == "bamba":
            raise fields.missing("attn_layer_indices", "layers_block_type")
        kinds = tuple("attention" if i in set(places or ()) else "mamba" for i in range(count))
        fields.note("layer_types", kinds, "attn_layer_indices" if places else f"class rule of {decoder.model_type}")
    builders: dict[str, Builder] = dict.fromkeys(_ATTENTION, lambda: _attention(decoder))
    mamba: Builder = lambda: mamba2_cache(decoder)  # noqa: E731
    return LayerPlan(layers=_build(decoder, kinds, {**builders, "mamba": mamba, "linear_attention": mamba}))


def read_nemotron_h(decoder: Decoder) -> LayerPlan:
    """Read Nemotron-H and Nemotron 3: M is Mamba-2, * attention, - and E keep nothing."""
    fields = decoder.fields
    kinds = _nemotron_kinds(decoder, "layers_block_type", "hybrid_override_pattern")
    if kinds is None:
        raise fields.missing("hybrid_override_pattern", "layers_block_type")
    fields.integer("num_hidden_layers", high=MAX_LAYERS)
    builders: dict[str, Builder] = {
        **dict.fromkeys(_ATTENTION, lambda: _attention(decoder)),
        **dict.fromkeys(("mamba", "linear_attention"), lambda: mamba2_cache(decoder)),
        "mlp": _none("MLP"),
        "moe": _none("experts"),
    }
    layers = _build(decoder, kinds, builders, name="layers_block_type")
    repeats = fields.integer("num_nextn_predict_layers", low=0, high=64, default=0) or 0
    block = _nemotron_kinds(decoder, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    drafts = _build(decoder, (block or ("attention", "moe")) * repeats, builders, name="mtp_layers_block_type")
    draft_layers = tuple(replace(d, index=len(layers) + d.index, role=Role.DRAFT) for d in drafts)
    return LayerPlan(layers=layers, draft_layers=draft_layers)


def _nemotron_kinds(decoder: Decoder, listed: str, lettered: str) -> tuple[str, ...] | None:
    fields = decoder.fields
    kinds, letters = fields.texts(listed), fields.text(lettered)
    if kinds is None and letters is not None:
        unknown = set(letters) - set(_LETTERS)
        if unknown:
            raise fields.refusal(lettered, letters, f"has letters other than {' '.join(_LETTERS)}")
        kinds = tuple(_LETTERS[letter] for letter in letters)
    if kinds is not None and len(kinds) > MAX_LAYERS:
        raise fields.refusal(listed, len(kinds), f"lists more than {MAX_LAYERS} layers")
    return kinds


def read_delta_net(decoder: Decoder) -> LayerPlan:
    """Read Qwen3-Next, Qwen3.5 and OLMo hybrid: Gated DeltaNet, with full attention every so many layers."""
    fields = decoder.fields
    count = decoder.layer_count()
    kinds = _listed(decoder, count, "layer_types")
    if kinds is None:
        kinds = tuple(_interval(decoder, count, "full_attention_interval", default=4))
    fields.accept("full_attention_interval", "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max")
    fields.accept("linear_dt_init_floor", "linear_allow_neg_eigval")
    builders: dict[str, Builder] = {
        "full_attention": lambda: _attention(decoder),
        "linear_attention": lambda: delta_net_cache(decoder),
    }
    layers = _build(decoder, kinds, builders)
    return LayerPlan(layers=layers, draft_layers=draft_copies(decoder, count, _attention(decoder)))


def read_kimi_linear(decoder: Decoder) -> LayerPlan:
    """Read Kimi Linear and K3: MLA in ``full_attn_layers``, Kimi delta attention in ``kda_layers`` (counted from 1)."""
    fields = decoder.fields
    count = decoder.layer_count()
    section = fields.section("linear_attn_config")
    kinds = _listed(decoder, count, "layer_types")
    if kinds is None:
        if section is None:
            raise fields.missing("linear_attn_config", "layer_types")
        full = set(section.integers("full_attn_layers", low=1, high=count) or ())
        linear = set(section.integers("kda_layers", low=1, high=count) or ())
        if full & linear or full | linear != set(range(1, count + 1)):
            raise section.refusal(
                "kda_layers", sorted(linear), f"and full_attn_layers do not cover {counted(count, 'layer')} once"
            )
        kinds = tuple("full_attention" if i + 1 in full else "linear_attention" for i in range(count))
    builders: dict[str, Builder] = {
        "full_attention": lambda: latent_cache(decoder),
        "linear_attention": lambda: kda_cache(decoder, section),
    }
    layers = _build(decoder, kinds, builders)
    return LayerPlan(layers=layers, draft_layers=draft_copies(decoder, count, latent_cache(decoder)))


def read_bailing_linear(decoder: Decoder) -> LayerPlan:
    """Read Ling 2.5 and 3 (``layer_group_size``): MLA or grouped heads at the end of each group, linear elsewhere."""
    fields = decoder.fields
    count = decoder.layer_count()
    kinds = _listed(decoder, count, "layer_types")
    if kinds is None:
        kinds = tuple(_interval(decoder, count, "layer_group_size"))
    fields.accept("layer_group_size")
    latent = fields.has("kv_lora_rank")
    delta = fields.has("short_conv_kernel_size") or "short_conv_kernel_size" in fields.defaults
    head_size = fields.integer("linear_head_dim", "head_dim") or decoder.hidden_size() // decoder.query_heads()
    attention = latent_cache(decoder) if latent else _attention(decoder)
    builders: dict[str, Builder] = {
        "full_attention": lambda: attention,
        "linear_attention": lambda: (
            kda_cache(decoder, None, head_size=head_size) if delta else lightning_cache(decoder, head_size)
        ),
    }
    layers = _build(decoder, kinds, builders)
    return LayerPlan(layers=layers, draft_layers=draft_copies(decoder, count, attention))


def read_minimax_text(decoder: Decoder) -> LayerPlan:
    """Read MiniMax-Text-01 and M1: ``attn_type_list`` 0 is lightning attention, 1 is full."""
    fields = decoder.fields
    count = decoder.layer_count()
    kinds = _listed(decoder, count, "layer_types")
    flags = fields.integers("attn_type_list", high=1)
    if kinds is None and flags is not None:
        kinds = tuple("full_attention" if flag else "linear_attention" for flag in flags)
    if kinds is None or len(kinds) != count:
        raise fields.refusal("attn_type_list", flags, f"does not describe {counted(count, 'layer')}")
    fields.accept("full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor")
    fields.accept("linear_attn_beta_factor", "layernorm_linear_attention_alpha", "layernorm_linear_attention_beta")
    fields.accept("layernorm_full_attention_alpha", "layernorm_full_attention_beta")
    builders: dict[str, Builder] = {
        "full_attention": lambda: _attention(decoder),
        "linear_attention": lambda: lightning_cache(decoder, decoder.head_size()),
    }
    return LayerPlan(layers=_build(decoder, kinds, builders))


def read_lfm2(decoder: Decoder) -> LayerPlan:
    """Read LFM2: short convolutions, with attention in some layers."""
    fields = decoder.fields
    count = decoder.layer_count()
    kinds = _listed(decoder, count, "layer_types")
    places = fields.integers("full_attn_idxs", high=count - 1)
    if kinds is None:
        if places is None:
            raise fields.missing("layer_types", "full_attn_idxs")
        kinds = tuple("full_attention" if i in set(places) else "conv" for i in range(count))
    fields.accept(
        "conv_L_cache", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_use_xavier_init", "conv_bias"
    )
    builders: dict[str, Builder] = {
        "full_attention": lambda: _attention(decoder),
        "conv": lambda: conv_cache(decoder),
    }
    return LayerPlan(layers=_build(decoder, kinds, builders))


def read_falcon_h1(decoder: Decoder) -> LayerPlan:
    """Read Falcon-H1, whose blocks hold attention and Mamba-2 side by side."""
    caches: tuple[tuple[str, Cache], ...] = (
        ("attention", _attention(decoder)),
        ("Mamba-2", mamba2_cache(decoder)),
    )
    layers = tuple(
        Layer(index=i, cache=cache, origin=f"{kind}, side by side in each block")
        for i in range(decoder.layer_count())
        for kind, cache in caches
    )
    return LayerPlan(layers=layers)


def read_mamba1(decoder: Decoder) -> LayerPlan:
    """Read a pure Mamba-1 model (Mamba, Falcon-Mamba)."""
    cache = mamba1_cache(decoder)
    return LayerPlan(layers=tuple(Layer(index=i, cache=cache, origin="Mamba-1") for i in range(decoder.layer_count())))


def read_mamba2(decoder: Decoder) -> LayerPlan:
    """Read a pure Mamba-2 model."""
    cache = mamba2_cache(decoder)
    return LayerPlan(layers=tuple(Layer(index=i, cache=cache, origin="Mamba-2") for i in range(decoder.layer_count())))
