"""TensorRT-LLM's own settings and releases, read strictly."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.engines.plan import Deployment
from kvledger.engines.release import Release, read_release
from kvledger.engines.settings import Reader, boolean, choice, integer, ratio, read_settings
from kvledger.errors import UsageError

__all__ = ["Rules", "Settings", "find_rules", "read_runtime_settings"]

FIRST = Release(0, 6, 0)
LATEST = Release(1, 3, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``kv_cache_config`` and what else decides the pool; ``None`` is the default."""

    free_gpu_memory_fraction: float = 0.9
    max_tokens: int | None = None
    capacity_scheduler_policy: str = "guaranteed_no_evict"
    variable_windows: bool = False
    """``max_attention_window`` is given by layer, so each window has a pool of its own."""
    sink_tokens: int = 0


_READERS: dict[str, Reader] = {
    "free_gpu_memory_fraction": ratio,
    "max_tokens": integer,
    "capacity_scheduler_policy": choice("guaranteed_no_evict", "max_utilization", "static_batch"),
    "variable_windows": boolean,
    "sink_tokens": integer,
}


def read_runtime_settings(deployment: Deployment) -> Settings:
    """Read the settings of a deployment.

    Raises:
        UsageError: A name or a value is not one of TensorRT-LLM's.
    """
    settings = read_settings(deployment, Settings, _READERS)
    if settings.max_tokens == 0:
        raise UsageError("`max_tokens` must be at least 1")
    if settings.free_gpu_memory_fraction >= 1:
        raise UsageError("`free_gpu_memory_fraction` must be below 1: TensorRT-LLM refuses 1.0")
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What changed from release to release (``batch_manager/kvCacheManager.cpp``)."""

    release: Release

    @property
    def old_lines(self) -> bool:
        """0.6 to 0.8 print bytes and tokens only."""
        return self.release < (0, 9)

    @property
    def window_pools(self) -> bool:
        """Each window can have a pool of its own. Read in 1.0; the release that brought it is between 0.18 and 1.0."""
        return self.release >= (1, 0)

    @property
    def default_block_tokens(self) -> int | None:
        """Tokens of a block; older releases had 64 or 128, depending on how the engine was built."""
        return 32 if self.release >= (1, 0) else None


def find_rules(version: str) -> Rules:
    """Return the rules of a version.

    Raises:
        UsageError: The text is no version, or its rules are not known.
    """
    return Rules(release=read_release(version, engine="TensorRT-LLM", first=FIRST, latest=LATEST))
