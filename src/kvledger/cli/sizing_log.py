"""The log that ``size`` is given: whose it is, and what its start says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvledger.engines.facts import Engine, StartupFacts
from kvledger.engines.readers import read_log
from kvledger.engines.recognise import TextKind, recognise
from kvledger.engines.registry import ENGINES, find_engine
from kvledger.engines.vllm.startup import StartUp, read_start_up
from kvledger.errors import SourceError, UsageError
from kvledger.sources.encoding import decode

__all__ = ["GivenLog", "read_given_log"]

_USUAL_BLOCK_TOKENS = 16
_MOST_BYTES = 256 * 2**20
_NAMES = {Engine.LLAMACPP: "llama.cpp"}
_UNCHECKED = (Engine.TRANSFORMERS,)
"""Engines whose lines print no pool that layers could be compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLog:
    """The last start of a log."""

    engine: str
    """By its name among the planners."""
    start_up: StartUp | None = None
    """Of vLLM."""
    facts: StartupFacts | None = None
    """Of another engine."""

    @property
    def version(self) -> str | None:
        """The version that a line names, or the newest that words its lines so."""
        if self.start_up is not None:
            return self.start_up.version or self.start_up.newest_version
        return self.facts.version.value if self.facts is not None and self.facts.version is not None else None

    @property
    def names_memory(self) -> bool:
        """Whether the memory follows from the log, so that none may be given besides."""
        return bool(self.start_up.available) if self.start_up is not None else True

    @property
    def longest_tokens(self) -> int | None:
        """The longest request by the log, else the tokens of the pool: no request is longer."""
        log, facts = self.start_up, self.facts
        if log is not None:
            return (
                log.max_model_len
                or log.flag("max_model_len")
                or log.tokens
                or (log.blocks or 0) * _USUAL_BLOCK_TOKENS
                or None
            )
        if facts is None:
            return None
        pools = (facts.find_smallest(field, name) for name in ("kv", "full") for field in ("tokens", "cells"))
        told = facts.max_model_len or next((found for found in pools if found is not None), None)
        context = facts.options.get("n_ctx", "")  # of all slots together
        return round(told.value) if told is not None else int(context) if context.isdecimal() else None


def read_given_log(options: Mapping[str, Any]) -> GivenLog | None:
    """Read the log that the options name; None when they name none.

    Raises:
        SourceError: It cannot be read, or holds no start.
        UsageError: It is of another engine than the one asked for, or names the memory that is given too.
    """
    if options["log"] is None:
        return None
    asked = _asked(options["engine"])
    text = _read(options["log"])
    found = recognise(text)
    told = found.engine if found is not None and found.kind is TextKind.LOG else None
    engine = asked or told or Engine.VLLM
    if told is not None and told is not engine and {told, engine} != {Engine.OLLAMA, Engine.LLAMACPP}:
        raise UsageError(f"the log is of {_name(told)}, not of {_name(engine)}", hint="leave `--engine` out")
    log = _of(engine, text)
    if log.names_memory and (options["kv_memory"] or options["gpu"]):
        raise UsageError("`--log` already names the memory", hint="leave `--kv-memory` and `--gpu` out")
    return log


def _name(engine: Engine) -> str:
    """Return what the planners call an engine."""
    return _NAMES.get(engine, engine.value)


def _asked(name: str | None) -> Engine | None:
    """Return the engine asked for, as the readers of logs know it; None when none is."""
    if name is None:
        return None
    if name == "all":
        raise UsageError("`--log` is of one engine, not of all", hint="leave `--engine` out")
    engine = next((engine for engine in Engine if _name(engine) == find_engine(name).name), None)
    if engine is None:
        raise UsageError(f"start-up logs of `{name[:40]}` are not read", hint="give `--kv-memory` instead of `--log`")
    return engine


def _of(engine: Engine, text: str) -> GivenLog:
    name = _name(engine)
    if engine in _UNCHECKED or name not in ENGINES:
        raise UsageError(
            f"the log is of {name}, whose lines print no pool to compare with",
            hint="`kvledger measure FILE` reads what it says",
        )
    if engine is Engine.VLLM:
        return GivenLog(engine=name, start_up=read_start_up(text))
    startups = read_log(text, engine).startups
    if not startups:
        raise SourceError(
            f"the log of {name} holds no start of the server",
            hint="give the part with the start; llama.cpp prints its memory with `-lv 4` only",
        )
    return GivenLog(engine=name, facts=startups[-1])


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read(_MOST_BYTES)
    path = Path(name)
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SourceError(f"the log `{path.name[:80]}` cannot be read: {error}", hint="check the path") from error
    if len(content) > _MOST_BYTES:
        raise SourceError(
            f"the log has more than {_MOST_BYTES:,} bytes", hint="give the part with the last start of the server"
        )
    return decode(content)
