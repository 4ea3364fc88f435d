"""The settings only vLLM has: the ``options`` of a deployment, read strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from kvledger.errors import UsageError

__all__ = ["Options", "read_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """vLLM's own settings; ``None`` is the default of the version, the model or the device."""

    core: str | None = None
    """``v0`` or ``v1``; V1 is the default from 0.8."""
    device_memory_bytes: int | None = None
    """Memory of the device, which decides the default ``max_num_batched_tokens``."""
    device_name: str = ""
    """Name of the device as the driver gives it; an A100 has the smaller defaults whatever its memory."""
    usage: str = "server"
    """``server`` or ``llm`` (the offline class has larger defaults)."""
    kernel_block_tokens: int | None = None
    """Smallest block of the attention kernel: 16 for FlashAttention, FlashInfer and Triton, 32 on the CPU."""
    num_gpu_blocks_override: int | None = None
    auto_max_model_len: bool = False
    """``--max-model-len auto``: take the longest length that fits, up to the model's (0.14)."""
    disable_hybrid_kv_cache_manager: bool | None = None
    kv_events: bool = False
    kv_connector: bool = False
    """A KV connector is configured."""
    kv_connector_supports_hybrid: bool = True
    """The connector supports groups (asked from 0.22)."""
    allow_chunked_local: bool | None = None
    """``VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE``."""
    async_scheduling: bool | None = None
    model_runner: str | None = None
    """``v1`` or ``v2``."""
    layer_partition: tuple[int, ...] | None = None
    """``VLLM_PP_LAYER_PARTITION``."""
    mamba_cache_mode: str | None = None
    """``none``, ``align`` or ``all``."""
    mamba_chunk_tokens: int = 256
    """Chunk of the Mamba-2 kernel, which mode ``all`` aligns blocks to."""
    mamba_cache_dtype: str | None = None
    mamba_ssm_cache_dtype: str | None = None
    state_alignment_tokens: int | None = None
    """Tokens the block beside states is a multiple of, too (64 with the FlashInfer prefill kernel, 0.33)."""
    prefill_checkpoint_blocks: int | None = None
    """Blocks a state adds in align mode for exporting a prefill's last state."""
    speculative_method: str = "mtp"
    """``mtp``, ``eagle``, ``eagle3`` or ``draft_model`` keep a cache of their own; ``ngram`` keeps none."""
    draft_layers: int | None = None
    """Layers of the draft, each as wide as the model's full-attention layers; default: the model's own draft layers."""
    multi_module_mtp: bool = False
    """Every proposed token has its own MTP layer; windows then keep ``speculative_tokens - 1`` more tokens (0.28)."""
    swap_space_bytes: int = 4 * 2**30
    """Host memory V0 swaps to."""


def _integer(text: str) -> int:
    value = int(text.replace("_", ""))
    if not 0 <= value < 2**60:
        raise ValueError("out of range")
    return value


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
    return words[text.lower()]


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError("choose " + ", ".join(allowed))
        return text

    return read


def _integers(text: str) -> tuple[int, ...]:
    values = tuple(_integer(part) for part in text.split(","))
    if len(values) > 4096:
        raise ValueError("too many stages")
    return values


_READERS: Mapping[str, Callable[[str], object]] = {
    "core": _choice("v0", "v1"),
    "device_memory_bytes": _integer,
    "device_name": str,
    "usage": _choice("server", "llm"),
    "kernel_block_tokens": _integer,
    "num_gpu_blocks_override": _integer,
    "auto_max_model_len": _boolean,
    "disable_hybrid_kv_cache_manager": _boolean,
    "kv_events": _boolean,
    "kv_connector": _boolean,
    "kv_connector_supports_hybrid": _boolean,
    "allow_chunked_local": _boolean,
    "async_scheduling": _boolean,
    "model_runner": _choice("v1", "v2"),
    "layer_partition": _integers,
    "mamba_cache_mode": _choice("none", "align", "all"),
    "mamba_chunk_tokens": _integer,
    "mamba_cache_dtype": str,
    "mamba_ssm_cache_dtype": str,
    "state_alignment_tokens": _integer,
    "prefill_checkpoint_blocks": _integer,
    "speculative_method": _choice("mtp", "eagle", "eagle3", "draft_model", "ngram"),
    "draft_layers": _integer,
    "multi_module_mtp": _boolean,
    "swap_space_bytes": _integer,
}


def read_options(options: Mapping[str, str]) -> Options:
    """Read the options of a deployment.

    Raises:
        UsageError: A name or a value is not one of vLLM's.
    """
    values: dict[str, object] = {}
    for name, text in options.items():
        if name not in _READERS:
            close = get_close_matches(name, _READERS, n=1)
            raise UsageError(
                f"vLLM has no option `{name[:60]}`" + (f"; did you mean `{close[0]}`?" if close else ""),
                hint="known are " + ", ".join(_READERS),
            )
        try:
            values[name] = _READERS[name](text.strip())
        except (ValueError, KeyError) as error:
            raise UsageError(f"`{text[:60]}` is no value of the option `{name}`: {error}") from None
    return Options(**values)  # type: ignore[arg-type]
