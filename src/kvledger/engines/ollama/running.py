"""What Ollama tells at ``/api/ps``: the models in memory, their size and context; of their caches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.engines.strict_json import number, read_json
from kvledger.errors import SourceError

__all__ = ["RunningModel", "read_running"]

_MAX_MODELS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningModel:
    """One model that Ollama has loaded."""

    name: str
    size_bytes: int | None
    """Weights, caches and buffers together."""
    context_tokens: int | None


def read_running(text: str) -> tuple[RunningModel, ...]:
    """Read ``/api/ps``.

    Raises:
        SourceError: It is no such object.
    """
    value = read_json(text, what="the answer of /api/ps")
    models = value.get("models") if isinstance(value, dict) else None
    if not isinstance(models, list) or len(models) > _MAX_MODELS:
        raise SourceError("the answer of /api/ps is no list of models", hint="hand over the answer unchanged")
    return tuple(_read_model(model) for model in models if isinstance(model, dict))


def _read_model(model: dict[str, object]) -> RunningModel:
    name = model.get("name")
    size, context = number(model, "size"), number(model, "context_length")
    return RunningModel(
        name=name[:200] if isinstance(name, str) else "?",
        size_bytes=None if size is None else int(size.value),
        context_tokens=None if context is None else int(context.value),
    )
