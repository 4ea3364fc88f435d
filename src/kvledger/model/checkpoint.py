"""The checkpoint: facts of a config that are not layers (dtype, quantisation, longest sequence)."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.errors import UsageError
from kvledger.model.fields import Fields
from kvledger.model.formats import Dtype, KvFormat, find_dtype, find_kv_format
from kvledger.model.spec import Length, Quantisation

__all__ = ["max_model_len", "quantisation", "served_dtype"]

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
    "max_target_positions",
)
_UNSCALED = ("longrope", "su", "llama3", "default", "mrope", "proportional", "deepseek_yarn", "yarn")
"""Rope types whose factor is already in the position field (vLLM 0.32 ``config/model.py``), as in all of Gemma 3."""


def served_dtype(fields: Fields, outer: Fields) -> Dtype:
    """Return the type the model is served in: its ``dtype``, with float32 lowered to 16 bits; bfloat16 if unsaid."""
    for section in (fields, outer):
        for name in ("dtype", "torch_dtype"):
            value = section.raw.get(name)
            if isinstance(value, str) and value != "auto":
                try:
                    found = find_dtype(value)
                except UsageError:
                    raise section.refusal(name, value, "is not a dtype kvledger knows") from None
                served = found.served if found.bytes >= 2 else Dtype.BFLOAT16
                section.note("dtype", served.value, section.source(name) + f" = {value}")
                return served
    fields.note("dtype", Dtype.BFLOAT16.value, "assumed: the config names no dtype")
    return Dtype.BFLOAT16


def quantisation(
    fields: Fields, outer: Fields, quant_config: Mapping[str, object] | None
) -> tuple[Quantisation | None, KvFormat | None]:
    """Return how the weights are quantised and which KV dtype the checkpoint declares, both if at all."""
    section: object = outer.raw.get("quantization_config") or fields.raw.get("quantization_config")
    inline = section if isinstance(section, Mapping) else {}
    beside = quant_config.get("quantization", {}) if quant_config else {}
    beside = beside if isinstance(beside, Mapping) else {}
    kv_format = _kv_format(fields, inline, "quantization_config") or _kv_format(
        fields, beside, "hf_quant_config.json quantization"
    )
    method = inline.get("quant_algo") or beside.get("quant_algo") or inline.get("quant_method")
    if not isinstance(method, str):
        return None, kv_format
    return Quantisation(method=method[:60], weight_bits=_weight_bits(method, inline)), kv_format


def _kv_format(fields: Fields, section: Mapping[str, object], where: str) -> KvFormat | None:
    algorithm, scheme = section.get("kv_cache_quant_algo"), section.get("kv_cache_scheme")
    if isinstance(algorithm, str) and algorithm.lower() not in ("", "none", "auto"):
        name = algorithm.lower() if algorithm.lower() in ("fp8", "nvfp4", "int8") else None
        field, value, source = "kv_cache_quant_algo", algorithm[:60], f"{where}.kv_cache_quant_algo = {algorithm[:60]}"
    elif isinstance(scheme, Mapping) and scheme:
        value = f"{scheme.get('num_bits')} bit {scheme.get('type')}"[:60]
        name = {"8 bit float": "fp8", "8 bit int": "int8", "4 bit float": "nvfp4"}.get(value)
        field, source = "kv_cache_scheme", f"{where}.kv_cache_scheme ({value})"
    else:
        return None
    if name is None:
        raise fields.refusal(field, value, "is not a KV dtype kvledger knows")
    fields.note("kv_dtype", name, source)
    return find_kv_format(name)


def _weight_bits(method: str, inline: Mapping[str, object]) -> float | None:
    bits = inline.get("bits") or inline.get("num_bits")
    if isinstance(bits, int) and 1 <= bits <= 16:
        return float(bits)
    known = {"fp8": 8.0, "nvfp4": 4.5, "mxfp4": 4.25, "mxfp8": 8.25, "w4a16": 4.0, "w8a8": 8.0}
    return known.get(method.lower())


def max_model_len(fields: Fields) -> Length | None:
    """Return the longest sequence: the smallest of the position fields, scaled where rope scaling extends it."""
    found = [(value, name) for name in _LENGTHS if (value := _length(fields, name)) is not None]
    if not found:
        return None
    tokens, name = min(found)
    source = fields.source(name) if name in fields.raw else f"class default of {fields.defaults_of}"
    factor, kind, original = _rope(fields)
    if kind == "yarn" and factor and original and original <= tokens:
        text = f"rope_scaling.original_max_position_embeddings {original}, times factor {factor} (yarn)"
        return Length(tokens=int(original * factor), source=text)
    if factor and kind not in _UNSCALED and not fields.defaults_of.startswith("gemma3"):
        return Length(tokens=int(tokens * factor), source=f"{source} = {tokens}, times rope_scaling.factor {factor}")
    return Length(tokens=tokens, source=source)


def _rope(fields: Fields) -> tuple[float | None, object, int | None]:
    """Return factor, type and original length of the rope scaling, each None where it is absent or unusable."""
    scaling = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return None, None, None
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    return (
        float(factor) if isinstance(factor, int | float) and 1 < factor <= 10_000 else None,
        scaling.get("rope_type") or scaling.get("type"),
        original if isinstance(original, int) and 0 < original <= 2**40 else None,
    )


def _length(fields: Fields, name: str) -> int | None:
    value = fields.raw.get(name, fields.defaults.get(name))
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**40
    return value if usable and isinstance(value, int) else None
