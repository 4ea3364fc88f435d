"""The readers of all engines by name: logs of every one, snapshots of every one but vLLM.

vLLM's ``/metrics`` has a reader of its own (:mod:`kvledger.engines.vllm.metrics`): its counters need a law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvledger.engines.facts import Engine, EngineLog, EngineSnapshot
from kvledger.engines.recognise import Recognition, TextKind, recognise
from kvledger.errors import SourceError

__all__ = ["read_log", "read_snapshots"]

LogReader = Callable[[str | Iterable[str]], EngineLog]
SnapshotReader = Callable[[str], tuple[EngineSnapshot, ...]]


def read_log(lines: str | Iterable[str], engine: Engine | None = None) -> EngineLog:
    """Read a log of any engine.

    Args:
        lines: The text, or its lines in order; an engine can be recognised in a text only.
        engine: Whose log it is, when known.

    Raises:
        SourceError: The engine is not given and not recognised.
    """
    if engine is None:
        found = recognise(lines) if isinstance(lines, str) else None
        if found is None or found.engine is None or found.kind is not TextKind.LOG:
            raise SourceError(
                "the text is no log of an engine that is known",
                hint="the engines are " + ", ".join(f"`{known}`" for known in Engine) + "; name the one it comes from",
            )
        engine = found.engine
    return _log_reader(engine)(lines)


def _log_reader(engine: Engine) -> LogReader:
    """Return the reader, importing no other engine's."""
    match engine:
        case Engine.VLLM:
            from kvledger.engines.vllm.log import read_log as reader
        case Engine.SGLANG:
            from kvledger.engines.sglang.log import read_log as reader
        case Engine.LLAMACPP:
            from kvledger.engines.llamacpp.log import read_log as reader
        case Engine.OLLAMA:
            from kvledger.engines.ollama.log import read_log as reader
        case Engine.TGI:
            from kvledger.engines.tgi.log import read_log as reader
        case Engine.TENSORRT_LLM:
            from kvledger.engines.tensorrt_llm.log import read_log as reader
        case Engine.LMDEPLOY:
            from kvledger.engines.lmdeploy.log import read_log as reader
        case Engine.TRANSFORMERS:
            from kvledger.engines.transformers.log import read_log as reader
    return reader


def read_snapshots(text: str, recognition: Recognition | None = None) -> tuple[EngineSnapshot, ...]:
    """Read metrics or a JSON answer of any engine but vLLM: one snapshot an engine, rank or iteration.

    Raises:
        SourceError: The text is none of these.
    """
    found = recognition or recognise(text)
    reader = None if found is None else _snapshot_reader(found)
    if reader is None:
        raise SourceError(
            "the text holds no metrics of an engine that can be read this way",
            hint="hand over the whole answer of `/metrics`, `/slots`, `/props` or the iteration statistics",
        )
    return reader(text)


def _snapshot_reader(found: Recognition) -> SnapshotReader | None:
    match found.kind, found.engine:
        case TextKind.METRICS, Engine.SGLANG:
            from kvledger.engines.sglang.metrics import read_metrics as reader
        case TextKind.METRICS, Engine.LLAMACPP:
            from kvledger.engines.llamacpp.metrics import read_metrics as reader
        case TextKind.METRICS, Engine.TGI:
            from kvledger.engines.tgi.metrics import read_metrics as reader
        case TextKind.METRICS, Engine.TENSORRT_LLM:
            from kvledger.engines.tensorrt_llm.metrics import read_metrics as reader
        case TextKind.METRICS, Engine.LMDEPLOY:
            from kvledger.engines.lmdeploy.metrics import read_metrics as reader
        case TextKind.METRICS, Engine.TRANSFORMERS:
            from kvledger.engines.transformers.metrics import read_metrics as reader
        case TextKind.ITERATIONS, _:
            from kvledger.engines.tensorrt_llm.metrics import read_iterations as reader
        case TextKind.LOADS, _:
            from kvledger.engines.sglang.loads import read_loads as reader
        case TextKind.SLOTS, _:
            from kvledger.engines.llamacpp.metrics import read_slots

            return lambda text: (read_slots(text),)
        case TextKind.PROPS, _:
            from kvledger.engines.llamacpp.metrics import read_props

            return lambda text: (read_props(text),)
        case _:
            return None
    return reader
