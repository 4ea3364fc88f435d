"""Which cache of Transformers is used and how, read strictly."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.engines.plan import Deployment
from kvledger.engines.release import Release, read_release
from kvledger.engines.settings import Reader, boolean, choice, integer, ratio, read_settings
from kvledger.errors import UsageError

__all__ = ["Settings", "read_cache_settings"]

READ = Release(5, 24, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The cache and its options; ``None`` is the default of Transformers."""

    cache: str = "dynamic"
    """``dynamic``, ``static``, ``quantised``, ``fp8`` or ``continuous`` (paged, for continuous batching)."""
    attention: str = "sdpa"
    nbits: int = 4
    q_group_size: int = 64
    residual_length: int = 128
    max_memory_percent: float | None = None
    num_blocks: int | None = None
    logits_to_keep: bool = True
    """The model cuts hidden states before its head, as almost all do."""
    use_async_batching: bool = False
    return_logprobs: bool = False
    max_blocks_per_request: int | None = None
    """Width of a block table; 0 without the fast decode path, which needs flash attention; 32 when nobody says."""
    max_requests_per_batch: int = 1024
    logits_processors: bool = False


_READERS: dict[str, Reader] = {
    "cache": choice("dynamic", "static", "quantised", "fp8", "continuous"),
    "attention": choice("eager", "sdpa", "flash_attention"),
    "nbits": integer,
    "q_group_size": integer,
    "residual_length": integer,
    "max_memory_percent": ratio,
    "num_blocks": integer,
    "logits_to_keep": boolean,
    "use_async_batching": boolean,
    "return_logprobs": boolean,
    "max_blocks_per_request": integer,
    "max_requests_per_batch": integer,
    "logits_processors": boolean,
}


def read_cache_settings(deployment: Deployment) -> Settings:
    """Read the version and the settings of a deployment.

    Raises:
        UsageError: A name, a value or the version is not known.
    """
    read_release(deployment.version, engine="Transformers", first=READ, latest=Release(5, 24, 99))
    settings = read_settings(deployment, Settings, _READERS)
    if settings.nbits not in (1, 2, 3, 4, 8):
        raise UsageError(f"`nbits` is {settings.nbits}, but must be 1, 2, 3, 4 or 8")
    if settings.q_group_size < 1 or settings.residual_length < 1:
        raise UsageError("`q_group_size` and `residual_length` must be at least 1")
    if (settings.max_blocks_per_request or 0) > 2**20:
        raise UsageError("`max_blocks_per_request` must be at most 2**20")
    return settings
