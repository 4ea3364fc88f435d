"""SGLang's own settings, read strictly."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.engines.plan import Deployment
from kvledger.engines.settings import Reader, boolean, choice, integer, integers, ratio, read_settings
from kvledger.errors import UsageError
from kvledger.units import counted

__all__ = ["Settings", "find_page_tokens", "read_server_settings"]

_FORCED_PAGES: dict[str, tuple[int, ...]] = {
    "flashmla": (64,),
    "cutlass_mla": (128,),
    "trtllm_mla": (64, 32),
    "trtllm_mha": (64, 16, 32, 128),
    "dsa": (64,),
    "nsa": (64,),
    "fa4": (128,),
}
"""Page sizes a backend accepts; the first replaces any other (``server_args.py`` 0.5.9, 0.5.23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """SGLang's flags; ``None`` is the release's default."""

    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    attention_backend: str | None = None
    swa_full_tokens_ratio: float = 0.8
    disable_hybrid_swa_memory: bool = False
    hybrid_swa: bool | None = None
    """Whether the model is on SGLang's list of two-pool models; ``None``: by its architecture."""
    mamba_full_memory_ratio: float = 0.9
    max_mamba_cache_size: int | None = None
    mamba_extra_buffer: bool = False
    """Two more state slots a request, for the states that the radix cache keeps."""
    disable_radix_cache: bool = False
    chunked_prefill_size: int | None = None
    cuda_graph_max_bs: int | None = None
    draft_layers: int | None = None
    """Layers of the draft model, each like the model's first layer; default: the model's own draft layers."""
    layer_partition: tuple[int, ...] | None = None
    """``SGLANG_PP_LAYER_PARTITION``."""
    swa_eviction_interval: int = 128
    """``SGLANG_SWA_EVICTION_INTERVAL``."""


_MOST_TIMES = 1000


def _states_over_tokens(text: str) -> float:
    """Read the memory of states over that of tokens: no share, so it may be above 1."""
    value = float(text)
    if not 0 < value <= _MOST_TIMES:
        raise ValueError(f"must be above 0 and at most {_MOST_TIMES}")
    return value


_READERS: dict[str, Reader] = {
    "mem_fraction_static": ratio,
    "max_total_tokens": integer,
    "attention_backend": choice(
        "flashinfer", "fa3", "fa4", "triton", "torch_native", "flashmla", "cutlass_mla", "trtllm_mla", "trtllm_mha",
        "dsa", "nsa", "aiter", "flex_attention",
    ),
    "swa_full_tokens_ratio": ratio,
    "disable_hybrid_swa_memory": boolean,
    "hybrid_swa": boolean,
    "mamba_full_memory_ratio": _states_over_tokens,
    "max_mamba_cache_size": integer,
    "mamba_extra_buffer": boolean,
    "disable_radix_cache": boolean,
    "chunked_prefill_size": integer,
    "cuda_graph_max_bs": integer,
    "draft_layers": integer,
    "layer_partition": integers,
    "swa_eviction_interval": integer,
}  # fmt: skip


def read_server_settings(deployment: Deployment) -> Settings:
    """Read the settings of a deployment.

    Raises:
        UsageError: A name or a value is not one of SGLang's, or two settings contradict each other.
    """
    settings = read_settings(deployment, Settings, _READERS)
    if settings.disable_radix_cache and deployment.prefix_caching:
        raise UsageError("`prefix_caching` and `disable_radix_cache` contradict each other")
    if settings.max_total_tokens == 0 or settings.max_mamba_cache_size == 0:
        raise UsageError("`max_total_tokens` and `max_mamba_cache_size` must be at least 1")
    return settings


def find_page_tokens(deployment: Deployment, settings: Settings, *, sparse: bool) -> tuple[int, str | None]:
    """Return the tokens of a page, and a note when the backend replaces what was asked for.

    The default is 1; sparse attention (DSA) has 64, on AMD devices 1.
    """
    asked = deployment.block_tokens
    backend = settings.attention_backend or ("dsa" if sparse else None)
    if backend in ("dsa", "nsa") and deployment.device == "rocm":
        return 1, f"sparse attention on AMD devices needs pages of 1 token, not {asked}" if asked not in (
            None,
            1,
        ) else None
    if backend not in _FORCED_PAGES:
        return asked or 1, None
    allowed = _FORCED_PAGES[backend]
    if asked in allowed:
        return asked, None
    return allowed[0], f"`{backend}` needs pages of {counted(allowed[0], 'token')}" + (
        f", not {asked}" if asked else ""
    )
