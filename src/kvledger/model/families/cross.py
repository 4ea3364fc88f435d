"""Attention to something outside the sequence: encoder-decoder models, and Llama 3.2 Vision."""

from __future__ import annotations

from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS, Decoder, LayerPlan
from kvledger.model.layers import AttentionCache, CrossAttentionCache, Layer, NoCache, Role
from kvledger.units import counted

__all__ = ["read_bart", "read_encoder", "read_mllama", "read_t5", "read_whisper"]


def _pairs(decoder: Decoder, count: int, heads: int, size: int, encoder_tokens: int) -> LayerPlan:
    """Return self and cross attention for each decoder block."""
    own = AttentionCache(kv_heads=heads, key_size=size, value_size=size)
    cross = CrossAttentionCache(kv_heads=heads, key_size=size, value_size=size, encoder_tokens=encoder_tokens)
    decoder.fields.accept("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim")
    layers = tuple(
        layer
        for i in range(count)
        for layer in (
            Layer(index=i, cache=own, origin="self attention of the decoder"),
            Layer(
                index=i,
                cache=cross,
                role=Role.CROSS,
                origin=f"cross attention to {counted(encoder_tokens, 'encoder token')}",
            ),
        )
    )
    return LayerPlan(layers=layers)


def _sizes(decoder: Decoder) -> tuple[int, int, int]:
    fields = decoder.fields
    count = fields.need_integer("decoder_layers", high=MAX_LAYERS)
    heads = fields.need_integer("decoder_attention_heads", high=MAX_HEADS)
    width = fields.need_integer("d_model")
    fields.accept("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    if width % heads:
        raise fields.refusal("decoder_attention_heads", heads, f"does not divide d_model {width}")
    return count, heads, width // heads


def read_encoder(decoder: Decoder) -> LayerPlan:
    """Read an encoder (BERT and its relatives): it sees its whole input at once and keeps nothing."""
    decoder.fields.accept(*decoder.fields.raw)
    cache = NoCache(reason="encoder")
    layers = tuple(Layer(index=i, cache=cache, origin="encoder") for i in range(decoder.layer_count()))
    return LayerPlan(layers=layers)


def read_whisper(decoder: Decoder) -> LayerPlan:
    """Read Whisper: self attention of at most ``max_target_positions``, cross attention to ``max_source_positions``."""
    count, heads, size = _sizes(decoder)
    return _pairs(decoder, count, heads, size, decoder.fields.need_integer("max_source_positions"))


def read_bart(decoder: Decoder) -> LayerPlan:
    """Read BART and its relatives: the encoder takes ``max_position_embeddings`` tokens."""
    count, heads, size = _sizes(decoder)
    return _pairs(decoder, count, heads, size, decoder.fields.need_integer("max_position_embeddings"))


def read_t5(decoder: Decoder) -> LayerPlan:
    """Read T5: head size ``d_kv``; positions are relative, so ``n_positions`` (512) is only what it was trained on."""
    fields = decoder.fields
    count = fields.integer("num_decoder_layers", high=MAX_LAYERS) or decoder.layer_count()
    heads = fields.need_integer("num_heads", high=MAX_HEADS)
    size = fields.need_integer("d_kv", high=MAX_HEAD_SIZE)
    tokens = fields.integer("n_positions", default=512) or 512
    fields.accept("relative_attention_num_buckets", "relative_attention_max_distance", "num_layers")
    decoder.notes.append(
        f"positions are relative: the encoder is taken at {counted(tokens, 'token')}, longer inputs cost more"
    )
    return _pairs(decoder, count, heads, size, tokens)


def read_mllama(decoder: Decoder) -> LayerPlan:
    """Read Llama 3.2 Vision: ``cross_attention_layers`` attend to image tokens, the others to the text.

    Image tokens: tiles x (patches a tile + 1), from ``vision_config``.
    """
    fields = decoder.fields
    count = decoder.layer_count()
    places = fields.integers("cross_attention_layers", high=count - 1)
    if places is None:
        raise fields.missing("cross_attention_layers")
    vision = decoder.outer.section("vision_config")
    if vision is None:
        raise decoder.outer.missing("vision_config")
    side = vision.need_integer("image_size") // vision.need_integer("patch_size")
    tokens = (vision.integer("max_num_tiles", default=4) or 4) * (side * side + 1)
    shape = decoder.head_shape()
    cross = CrossAttentionCache(
        kv_heads=shape.kv_heads, key_size=shape.key_size, value_size=shape.value_size, encoder_tokens=tokens
    )
    chosen = set(places)
    layers = tuple(
        Layer(index=i, cache=cross, role=Role.CROSS, origin=f"cross attention to {counted(tokens, 'image token')}")
        if i in chosen
        else Layer(index=i, cache=shape.cache(), origin="full attention")
        for i in range(count)
    )
    return LayerPlan(layers=layers)
