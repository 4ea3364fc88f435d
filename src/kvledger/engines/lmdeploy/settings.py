"""LMDeploy's own settings, releases and cache formats, read strictly."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.engines.plan import Deployment
from kvledger.engines.release import Release, read_release
from kvledger.engines.settings import Reader, choice, integer, read_settings
from kvledger.errors import UsageError
from kvledger.model import KvFormat, ModelSpec, Storage

__all__ = ["FIRST", "LATEST", "Settings", "find_storage", "read_engine_settings"]

FIRST = Release(0, 0, 10)
LATEST = Release(0, 18, 99)
_PAGED = Release(0, 1, 0)
_FREE_RULE = Release(0, 2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Engine settings; ``None`` is the default of the release."""

    backend: str = "pytorch"
    cache_max_entry_count: float | None = None
    """A share of free memory below 1, else a number: blocks (TurboMind) or sequences (before 0.1)."""
    quant_policy: int = 0
    max_prefill_token_num: int = 8192
    prefix_cache_state_budget: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A release with its settings."""

    release: Release
    settings: Settings

    @property
    def contiguous(self) -> bool:
        """Before 0.1 each sequence had an extent of ``session_len`` tokens."""
        return self.release < _PAGED

    @property
    def of_total(self) -> bool:
        """Up to 0.2.1 the share was of the whole device, not of what is free."""
        return self.release < _FREE_RULE

    @property
    def entry_count(self) -> float:
        """``cache_max_entry_count``, 0.8 by default from 0.2.2 on."""
        given = self.settings.cache_max_entry_count
        if given is None:
            if self.of_total:
                raise UsageError(
                    f"the default `cache_max_entry_count` of LMDeploy {self.release} is not known", hint="give it"
                )
            return 0.8
        return given


def _entry_count(text: str) -> float:
    value = float(text)
    if not 0 < value < 2**31:
        raise ValueError("must be a share above 0 or a number of blocks")
    return value


_READERS: dict[str, Reader] = {
    "backend": choice("pytorch", "turbomind"),
    "cache_max_entry_count": _entry_count,
    "quant_policy": integer,
    "max_prefill_token_num": integer,
    "prefix_cache_state_budget": integer,
}


def read_engine_settings(deployment: Deployment) -> Engine:
    """Read the version and the settings of a deployment.

    Raises:
        UsageError: A name, a value or the version is not one of LMDeploy's.
    """
    release = read_release(deployment.version, engine="LMDeploy", first=FIRST, latest=LATEST)
    settings = read_settings(deployment, Settings, _READERS)
    if settings.quant_policy not in (0, 4, 8):
        raise UsageError(
            f"the bytes of `quant_policy` {settings.quant_policy} are not known", hint="known are 0, 4 and 8"
        )
    return Engine(release=release, settings=settings)


def find_storage(model: ModelSpec, deployment: Deployment, settings: Settings) -> Storage:
    """Return how keys and values are stored.

    ``quant_policy`` 8 and 4 keep 8 or 4 bits an element, and for each head and token a scale and a zero point in the
    model's dtype (``pytorch/engine/cache_engine.py``).
    """
    storage = replace(model.storage(deployment.kv_dtype), tp=deployment.tp)
    if not settings.quant_policy:
        return storage
    if deployment.kv_dtype != "auto":
        raise UsageError("`kv_dtype` and `quant_policy` are both given", hint="give one of them")
    bits = settings.quant_policy
    kv = KvFormat(name=f"int{bits}", bits=bits, head_bytes=2 * model.dtype.bytes, source="LMDeploy quant_policy")
    return replace(storage, kv=kv)
