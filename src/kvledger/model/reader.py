"""The reader: a model's ``config.json`` to its layers, or a refusal that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from kvledger.errors import ModelError, UsageError
from kvledger.model.checkpoint import max_model_len, quantisation, served_dtype
from kvledger.model.class_defaults import find_class_defaults
from kvledger.model.decoder import Decoder, LayerPlan
from kvledger.model.families.attention import read_attention
from kvledger.model.families.registry import find_family, known_types
from kvledger.model.fields import STATE_BY_HAND, Fields
from kvledger.model.parameters import estimate_parameters
from kvledger.model.relevance import find_overlooked
from kvledger.model.spec import ModelSpec

__all__ = ["MAX_CONFIG_BYTES", "parse_config", "read_config"]

MAX_CONFIG_BYTES = 64 * 2**20
"""The largest configuration that is read; the largest seen has 3 MB (per-layer quantisation lists)."""

_SECTIONS = (
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("thinker_config", "text_config"),
    ("text_model_config",),
    ("language_model_config",),
    ("llm",),
)
_TEXT_TYPES = {
    "aya_vision": "cohere2",
    "fuyu": "persimmon",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "pixtral": "mistral",
    "qwen2_audio": "qwen2",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""The decoder's type where a multimodal config nests one without naming it (class defaults, Transformers 5.24)."""


def parse_config(data: bytes | str) -> dict[str, object]:
    """Decode the text of a config.

    Raises:
        ModelError: The text is too large, no JSON, nested too deeply, or no object.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelError(
            f"the config has {len(data)} bytes, more than the {MAX_CONFIG_BYTES} that are read",
            hint="is this the model's config.json?",
        )
    try:
        decoded = json.loads(data)
    except RecursionError:
        raise ModelError("the config is nested too deeply", hint="is this the model's config.json?") from None
    except ValueError as error:
        raise ModelError(f"the config is not JSON: {error}", hint="is this the model's config.json?") from None
    if not isinstance(decoded, dict):
        raise ModelError("the config is not a JSON object", hint="is this the model's config.json?")
    return decoded


def read_config(
    config: Mapping[str, object], *, name: str = "", quant_config: Mapping[str, object] | None = None
) -> ModelSpec:
    """Read a decoded ``config.json`` into layers.

    Args:
        config: The decoded config.
        name: What to call the model; else the config's own name or type.
        quant_config: The decoded ``hf_quant_config.json`` beside it, if there is one.

    Raises:
        ModelError: A field is missing, has an unusable value, or could change the cache and is not understood.
    """
    outer = Fields(config)
    decoder = _find_decoder(outer)
    family = find_family(decoder.model_type, _architectures(decoder.fields) + _architectures(outer))
    plan = family(decoder) if family else _read_unknown(decoder)
    _refuse_overlooked(decoder)
    return _assemble(decoder, plan, name=name, quant_config=quant_config)


def _find_decoder(outer: Fields) -> Decoder:
    fields, outer_type = outer, _model_type(outer)
    for path in _SECTIONS:
        section: Fields | None = outer
        for step in path:
            section = section.section(step) if section and isinstance(section.raw.get(step), Mapping) else None
        if section is not None:
            fields = section
            break
    model_type = outer_type
    if fields is not outer:
        model_type = _model_type(fields) or _TEXT_TYPES.get(outer_type, "")
        if not model_type:
            model_type = outer_type if find_family(f"{outer_type}_text") is None else f"{outer_type}_text"
    defaults = find_class_defaults(model_type)
    fields.defaults, fields.defaults_of = defaults, model_type if defaults else ""
    return Decoder(fields=fields, outer=outer, model_type=model_type, dtype=served_dtype(fields, outer))


def _model_type(fields: Fields) -> str:
    found = fields.raw.get("model_type")
    return found[:120] if isinstance(found, str) else ""


def _read_unknown(decoder: Decoder) -> LayerPlan:
    """Answer for an unknown type only if every field that could matter is one of plain attention."""
    fields = decoder.fields
    if not fields.has("num_key_value_heads", "num_attention_heads", "n_head"):
        _refuse_type(decoder)
    if not fields.has("vocab_size", "n_vocab", "padded_vocab_size"):
        raise fields.missing("vocab_size")
    plan = read_attention(decoder)
    decoder.notes.append(
        f"model_type `{decoder.model_type[:60]}` is not known; its fields are those of plain attention and were read so"
    )
    return plan


def _refuse_type(decoder: Decoder) -> NoReturn:
    from difflib import get_close_matches

    close = get_close_matches(decoder.model_type[:60], known_types(), n=1)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    what = (
        f"the model_type `{decoder.model_type[:60]}` is not known" if decoder.model_type else "no model_type is given"
    )
    raise ModelError(f"{what}, and no field names attention heads{meant}", hint=STATE_BY_HAND, field="model_type")


def _refuse_overlooked(decoder: Decoder) -> None:
    overlooked = find_overlooked(decoder.fields)
    if overlooked:
        listed = ", ".join(f"`{name}`" for name in overlooked[:6]) + (", ..." if len(overlooked) > 6 else "")
        plural = "fields that" if len(overlooked) > 1 else "a field that"
        raise ModelError(
            f"the config of type `{decoder.model_type[:60]}` has {plural} could change the cache and that kvledger"
            f" does not understand: {listed}",
            hint=STATE_BY_HAND,
            field=overlooked[0],
            fields=overlooked[:20],
        )


def _assemble(decoder: Decoder, plan: LayerPlan, *, name: str, quant_config: Mapping[str, object] | None) -> ModelSpec:
    fields, outer = decoder.fields, decoder.outer
    weights, kv_format = quantisation(fields, outer, quant_config)
    origins = dict(fields.origins)
    heads = _optional(fields, "num_attention_heads", "n_head", "n_heads")
    return ModelSpec(
        name=name or _own_name(outer) or decoder.model_type or "model",
        model_type=_model_type(outer) or decoder.model_type,
        architectures=_architectures(outer),
        layers=plan.layers,
        draft_layers=plan.draft_layers,
        dtype=decoder.dtype,
        declared_kv_format=kv_format,
        max_model_len=max_model_len(fields),
        query_heads=heads,
        hidden_size=_optional(fields, "hidden_size", "n_embd", "d_model"),
        vocabulary_size=_optional(fields, "vocab_size"),
        quantisation=weights,
        parameters=estimate_parameters(decoder, plan),
        provenance=tuple(origins.values()),
        notes=tuple(decoder.notes),
    )


def _optional(fields: Fields, *names: str) -> int | None:
    """Return a field that no layer depends on; an unusable value counts as absent."""
    try:
        return fields.integer(*names)
    except (ModelError, UsageError):
        return None


def _own_name(outer: Fields) -> str:
    for key in ("_name_or_path", "name"):
        found = outer.raw.get(key)
        if isinstance(found, str) and found:
            return found.rstrip("/").rpartition("/")[2][:120]
    return ""


def _architectures(outer: Fields) -> tuple[str, ...]:
    found = outer.raw.get("architectures")
    return tuple(str(item)[:120] for item in found[:8]) if isinstance(found, list) else ()
