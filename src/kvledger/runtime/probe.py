"""Watching a model's attention layers for one token: what they keep, and whether that can be paged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvledger.errors import ModelError
from kvledger.runtime.layout import Layer, Shape
from kvledger.units import counted

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner

__all__ = ["Probe", "check_config", "find_layers", "find_token_bytes"]

_PLAIN_DTYPES = ("float32", "bfloat16", "float16")
_PAGED_KINDS = ("full_attention", "sliding_attention")
_HINT = "full and sliding-window attention is paged here; `kvledger size` prices other layers too"
_ROPES_OF_THE_LONGEST = ("dynamic", "longrope")


class Probe:
    """Stands in for a batch while one token goes through the model, and notes what each layer asks for."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Note a layer; return zeros in the shape of its answer."""
        index = getattr(module, "layer_idx", None)
        name = type(module).__name__
        if not isinstance(index, int):
            raise ModelError(f"`{name}` has no layer number, so its keys and values have no place")
        if key.shape != value.shape:
            raise ModelError(
                f"layer {index} (`{name}`) has keys of {tuple(key.shape[1::2])} and values of "
                f"{tuple(value.shape[1::2])} (heads, size); only keys and values of one size are paged here, which "
                "expanded latent attention has not"
            )
        if any(layer.index == index for layer in self.layers):
            raise ModelError(f"layer {index} (`{name}`) attends twice, as with cross attention: not paged here")
        dtype = str(key.dtype).removeprefix("torch.")
        if dtype not in _PLAIN_DTYPES:
            raise ModelError(f"layer {index} computes in {dtype}, not in {', '.join(_PLAIN_DTYPES)}")
        kinds = getattr(module.config, "layer_types", None) or ()
        if index < len(kinds) and (kinds[index] == "sliding_attention") != (manner.window_tokens is not None):
            raise ModelError(f"layer {index} is `{kinds[index]}`, but asks for the window {manner.window_tokens}")
        self.layers.append(
            Layer(
                index=index,
                shape=Shape(kv_heads=key.shape[1], head_size=key.shape[3], dtype=dtype, dtype_bytes=key.element_size()),
                query_heads=query.shape[1],
                window_tokens=manner.window_tokens,
            )
        )
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


def find_layers(model: Any, *, max_model_len: int | None = None) -> list[Layer]:
    """Return the attention layers of a Transformers model, found by sending one token through it.

    ``max_model_len``: the longest sequence there will be; a window beyond it makes no difference.

    Raises:
        ModelError: Something in the model cannot be paged; it is named.
    """
    import torch

    from kvledger.runtime.attention import call_model

    probe = Probe()
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    with torch.inference_mode():
        call_model(model, probe, token, torch.zeros_like(token), torch.zeros(1, dtype=torch.long, device=model.device))
    expected = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    found = {layer.index for layer in probe.layers}
    if expected is not None and found != set(range(expected)):
        missing = sorted(set(range(expected)) - found)
        raise ModelError(
            f"{len(missing)} of the {expected:,} layers of `{type(model).__name__}` (from layer {missing[0]} on) do "
            "not "
            "attend through Transformers' attention interface: they have an attention of their own, keep a state, or "
            "share what others keep",
            hint=_HINT,
        )
    for layer in probe.layers:
        _check_window(model, layer, max_model_len)
    return sorted(probe.layers, key=lambda layer: layer.index)


def _check_window(model: Any, layer: Layer, max_model_len: int | None) -> None:
    """Refuse a layer whose window Transformers knows and attention is not told of: it lies in a mask, or nowhere."""
    from transformers import DynamicCache

    kept = DynamicCache(config=model.config).layers
    window = getattr(kept[layer.index], "sliding_window", None) if layer.index < len(kept) else None
    if window == layer.window_tokens or (window is not None and max_model_len is not None and max_model_len <= window):
        return
    raise ModelError(
        f"layer {layer.index} of `{type(model).__name__}` asks its attention for "
        f"{_tell_window(layer.window_tokens)}, and the cache of Transformers gives it {_tell_window(window)}",
        hint=_HINT if window is None else f"give max_model_len={window} or less, where that makes no difference",
    )


def _tell_window(window: int | None) -> str:
    return "every token" if window is None else f"a window of {counted(window, 'token')}"


def find_token_bytes(model: Any, *, max_model_len: int | None) -> int:
    """Return the bytes of the keys and values of one token in all layers; the model is left as it was.

    Raises:
        ModelError: Something in the model cannot be paged; it is named.
    """
    from kvledger.runtime.attention import attach

    check_config(model, max_model_len=max_model_len)
    detach = attach(model)
    try:
        return sum(layer.shape.token_bytes for layer in find_layers(model, max_model_len=max_model_len))
    finally:
        detach()


def check_config(model: Any, *, max_model_len: int | None) -> None:
    """Refuse what a configuration says of layers that attention cannot see.

    Raises:
        ModelError: A layer keeps something else than tokens or a window of them, or sequences change each other.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"`{name}` has an encoder, whose keys and values are not paged here", hint=_HINT)
    kinds = getattr(config, "layer_types", None) or ()
    strange = [(i, kind) for i, kind in enumerate(kinds) if kind not in _PAGED_KINDS]
    if strange:
        raise ModelError(
            f"{len(strange)} of the {len(kinds)} layers of `{name}`, from layer {strange[0][0]} on, are "
            f"`{strange[0][1]}`, which is not paged here",
            hint=_HINT,
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise ModelError(f"`{name}` has layers that read the keys and values of others, which is not paged here")
    _check_rope(config, max_model_len)


def _check_rope(config: Any, max_model_len: int | None) -> None:
    """Refuse rotary embeddings that turn every sequence of a batch by the length of its longest."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type"), *(r.get("rope_type") for r in rope.values() if isinstance(r, dict))}
    changing = kinds & set(_ROPES_OF_THE_LONGEST)
    original = int(
        rope.get("original_max_position_embeddings")
        or getattr(config, "original_max_position_embeddings", None)
        or getattr(config, "max_position_embeddings", None)
        or 0
    )
    if changing and (max_model_len is None or max_model_len > original):
        raise ModelError(
            f"the rotary embedding `{changing.pop()}` depends on the longest sequence of a batch beyond {original} "
            "tokens, so sequences would change each other",
            hint=f"give max_model_len={original} or less",
        )
