"""Parameters: how many a model has, estimated from its matrices.

Norms, biases and routers are left out (under 1 % together). Answered only where every layer is plain attention or MLA
with an ordinary feed-forward part; else the estimate is absent, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.errors import ModelError
from kvledger.ledger import Accuracy
from kvledger.model.decoder import Decoder, LayerPlan
from kvledger.model.fields import Fields
from kvledger.model.layers import AttentionCache, LatentCache, Layer, NoCache, SharedCache
from kvledger.model.spec import Parameters

__all__ = ["estimate_parameters"]

_UNGATED = frozenset(
    ("opt", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "falcon", "starcoder2", "bloom", "phi", "mpt", "nemotron")
)
"""Types whose feed-forward part has two matrices; the others have a gate, so three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FeedForward:
    count: int
    active: int


def estimate_parameters(decoder: Decoder, plan: LayerPlan) -> Parameters | None:
    """Estimate the parameters of the main layers and the embeddings, or return None where a part is not known."""
    try:
        if decoder.fields.integer("hidden_size_per_layer_input", low=0):
            return None
        hidden, queries = decoder.hidden_size(), decoder.query_heads()
        vocabulary = decoder.fields.integer("vocab_size")
        if vocabulary is None:
            return None
        count = active = hidden * vocabulary * (1 if _tied(decoder) else 2)
        for layer in plan.layers:
            attention = _attention(layer, decoder, hidden, queries)
            mlp = _feed_forward(decoder, layer.index, hidden)
            if attention is None or mlp is None:
                return None
            count += attention + mlp.count
            active += attention + mlp.active
    except ModelError:
        return None
    source = "matrices of attention, feed-forward and embeddings; norms and biases left out"
    return Parameters(count=count, active=active, accuracy=Accuracy.MODELLED, source=source)


def _tied(decoder: Decoder) -> bool:
    for fields in (decoder.fields, decoder.outer):
        for section in (fields.raw, fields.defaults):
            value = section.get("tie_word_embeddings")
            if isinstance(value, bool):
                return value
    return False


def _attention(layer: Layer, decoder: Decoder, hidden: int, queries: int) -> int | None:
    cache = layer.cache
    if isinstance(cache, SharedCache):
        return hidden * queries * cache.cache.key_size * 2
    if isinstance(cache, AttentionCache):
        own = cache.kv_heads * (cache.key_size + cache.value_size)
        return hidden * (queries * (cache.key_size + cache.value_size) + own)
    if isinstance(cache, NoCache):
        return 0
    if isinstance(cache, LatentCache) and cache.expanded is not None:
        heads = cache.expanded
        down = decoder.fields.integer("q_lora_rank")
        query = queries * heads.key_size
        projected = hidden * query if down is None else down * (hidden + query)
        compressed = hidden * (cache.latent_size + cache.rope_size)
        up = cache.latent_size * queries * (heads.key_size - cache.rope_size + heads.value_size)
        return projected + compressed + up + hidden * queries * heads.value_size
    return None


def _feed_forward(decoder: Decoder, index: int, hidden: int) -> _FeedForward | None:
    fields = decoder.fields
    matrices = 2 if decoder.model_type in _UNGATED else 3
    width = fields.integer("intermediate_size", "ffn_dim", "n_inner")
    if width is None and decoder.model_type in _UNGATED:
        width = 4 * hidden
    experts = fields.integer("num_local_experts", "n_routed_experts", "num_experts", low=0)
    if not experts:
        return None if width is None else _dense(matrices * hidden * width)
    if not _has_experts(fields, index):
        wide = fields.integer("intermediate_size_mlp") or width
        return None if wide is None else _dense(matrices * hidden * wide)
    narrow = fields.integer("moe_intermediate_size") or width
    chosen = fields.integer("num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    if narrow is None or chosen is None:
        return None
    one = matrices * hidden * narrow
    shared_width = fields.integer("shared_expert_intermediate_size", low=0)
    if shared_width is None:
        shared_width = narrow * (fields.integer("n_shared_experts", "num_shared_experts", low=0) or 0)
        if decoder.model_type in ("llama4_text", "llama4"):
            shared_width = narrow
        elif fields.raw.get("enable_moe_block") is True:
            shared_width = width or 0
    shared = matrices * hidden * shared_width
    return _FeedForward(count=experts * one + shared, active=chosen * one + shared)


def _dense(count: int) -> _FeedForward:
    return _FeedForward(count=count, active=count)


def _has_experts(fields: Fields, index: int) -> bool:
    for name in ("moe_layer_freq", "mlp_layer_types"):
        listed = fields.raw.get(name)
        if isinstance(listed, list | tuple) and index < len(listed):
            return listed[index] in (1, "sparse", "moe")
    first = fields.integer("first_k_dense_replace", low=0, default=0) or 0
    step = fields.integer("interleave_moe_layer_step", default=1) or 1
    return index >= first and (index + 1) % step == 0
