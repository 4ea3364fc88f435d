"""The decoder section of a config, and the shapes every family of models reads from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvledger.errors import ModelError
from kvledger.model.fields import STATE_BY_HAND, Fields
from kvledger.model.formats import Dtype
from kvledger.model.layers import AttentionCache, Layer

__all__ = ["Decoder", "HeadShape", "LayerPlan"]

MAX_LAYERS = 4096
MAX_HEADS = 2**16
MAX_HEAD_SIZE = 2**16

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim", "hidden_dim")
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
    "num_query_groups",
)
_HEAD_SIZE = ("head_dim", "hidden_size_per_head", "kv_channels", "attention_head_dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """KV heads of a layer and the sizes of their keys and values."""

    kv_heads: int
    key_size: int
    value_size: int

    def cache(self, *, window_tokens: int | None = None, chunk_tokens: int | None = None) -> AttentionCache:
        """Return the cache of a layer with these heads."""
        return AttentionCache(
            kv_heads=self.kv_heads,
            key_size=self.key_size,
            value_size=self.value_size,
            window_tokens=window_tokens,
            chunk_tokens=chunk_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What a family makes of a config."""

    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()


@dataclass(slots=True, kw_only=True)
class Decoder:
    """The section of a config that describes the decoder, while it is being read."""

    fields: Fields
    outer: Fields
    """The whole config; the same object where nothing is nested."""
    model_type: str
    dtype: Dtype
    """What the model is served in."""
    notes: list[str] = field(default_factory=list)

    def layer_count(self) -> int:
        """Return the number of main blocks.

        Raises:
            ModelError: No field gives it, or it is not between 1 and 4096.
        """
        return self.fields.need_integer(*_LAYERS, high=MAX_LAYERS)

    def query_heads(self) -> int:
        """Return the number of query heads.

        Raises:
            ModelError: No field gives it.
        """
        return self.fields.need_integer(*_HEADS, high=MAX_HEADS)

    def hidden_size(self) -> int:
        """Return the width of the residual stream.

        Raises:
            ModelError: No field gives it.
        """
        return self.fields.need_integer(*_HIDDEN)

    def kv_heads(self) -> int:
        """Return the KV heads: the field that names them, else one for each query head (vLLM 0.32 rule)."""
        found = self.fields.integer(*_KV_HEADS, high=MAX_HEADS)
        if found is not None:
            return found
        heads = self.query_heads()
        self.fields.note("kv_heads", heads, "one for each query head: the config names no KV heads")
        return heads

    def head_size(self) -> int:
        """Return the head size: the field that names it, else hidden size / query heads (vLLM 0.32 rule).

        Raises:
            ModelError: The hidden size is no multiple of the heads.
        """
        found = self.fields.integer(*_HEAD_SIZE, low=0, high=MAX_HEAD_SIZE)
        if found:
            return found
        hidden, heads = self.hidden_size(), self.query_heads()
        if hidden % heads:
            raise ModelError(
                f"the config names no head size, and hidden_size {hidden} is no multiple of {heads:,} attention heads",
                hint=STATE_BY_HAND,
                field="head_dim",
            )
        self.fields.note("head_size", hidden // heads, f"hidden_size / num_attention_heads = {hidden} / {heads}")
        return hidden // heads

    def head_shape(self) -> HeadShape:
        """Return KV heads, key size and value size; values are as long as keys unless ``v_head_dim`` says otherwise."""
        key_size = self.head_size()
        value_size = self.fields.integer("v_head_dim", high=MAX_HEAD_SIZE, default=key_size) or key_size
        return HeadShape(kv_heads=self.kv_heads(), key_size=key_size, value_size=value_size)
