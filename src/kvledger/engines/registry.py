"""The engines that can be planned, by name; a planner is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import cast

from kvledger.engines.plan import Planner
from kvledger.errors import UsageError

__all__ = ["ENGINES", "EngineEntry", "find_engine", "load_planner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """One engine."""

    name: str
    module: str
    """Offers the two functions of :class:`~kvledger.engines.plan.Planner`."""
    latest: str
    """The version that is planned unless another is named."""


ENGINES: Mapping[str, EngineEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            EngineEntry(name="vllm", module="vllm", latest="0.33"),
            EngineEntry(name="sglang", module="sglang", latest="0.5.23"),
            EngineEntry(name="tensorrt-llm", module="tensorrt_llm", latest="1.3"),
            EngineEntry(name="tgi", module="tgi", latest="3.3"),
            EngineEntry(name="lmdeploy", module="lmdeploy", latest="0.18"),
            EngineEntry(name="llama.cpp", module="llamacpp", latest="b11434"),
            EngineEntry(name="ollama", module="ollama", latest="2026-08-21"),
            EngineEntry(name="transformers", module="transformers", latest="5.24"),
            EngineEntry(name="mlx", module="mlx", latest="0.32"),
        )
    }
)
"""Every engine, in the order in which they are compared."""


def find_engine(name: str) -> EngineEntry:
    """Find an engine by name.

    Raises:
        UsageError: There is no such engine.
    """
    key = name.strip().lower()
    if key not in ENGINES:
        close = get_close_matches(key[:60], ENGINES, n=1)
        raise UsageError(
            f"no engine `{name[:60]}` is known" + (f"; did you mean `{close[0]}`?" if close else ""),
            hint="known are " + ", ".join(ENGINES),
        )
    return ENGINES[key]


def load_planner(name: str) -> Planner:
    """Import the planner of an engine.

    Raises:
        UsageError: There is no such engine.
    """
    return cast(Planner, importlib.import_module(f"kvledger.engines.{find_engine(name).module}"))
