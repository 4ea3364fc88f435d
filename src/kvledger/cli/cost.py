"""What a token costs, and how much memory there is: from options to records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvledger.cli.grouping import group_layers
from kvledger.cli.question import Question
from kvledger.errors import UsageError
from kvledger.model.storage import Windows
from kvledger.replay.settings import Pool
from kvledger.units import counted, parse_bytes

if TYPE_CHECKING:
    from kvledger.model.spec import ModelSpec, StoredAs

__all__ = ["Cost", "cost_of", "pool_of", "token_bytes"]

_ASSUMED_LAYERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a token costs, and where that comes from."""

    name: str
    bytes_per_token: int
    tensors_per_token: int | None
    max_model_len: int | None
    notes: tuple[str, ...] = ()
    model: ModelSpec | None = None
    is_hybrid: bool = False
    """Some layers do not keep every token, so that a sequence has several block tables."""


def cost_of(question: Question, *, needs_layers: bool) -> Cost:
    """Find what a token costs, from the model or as given; ``needs_layers`` when pages are mapped per layer.

    Raises:
        UsageError: It is given twice or not at all, or it does not follow from the tokens of a sequence alone.
    """
    if (question.model is None) == (question.bytes_per_token is None):
        raise UsageError(
            "what a token costs was given twice" if question.model else "what a token costs is not known",
            hint="give one of --model NAME and --bytes-per-token N",
        )
    if question.model is not None:
        from kvledger.sources.models import load_model

        return _cost_of_model(load_model(question.model), question.kv_dtype)
    if question.kv_dtype:
        raise UsageError("--kv-dtype changes what a model costs, and no model was given", hint="give --model")
    layers, notes = question.layers, tuple[str, ...]()
    if layers is None and needs_layers:
        layers = _ASSUMED_LAYERS
        notes = (f"`vmm` maps pages per layer; {counted(layers, 'layer')} are assumed, give --layers N for yours",)
    return Cost(
        name="given",
        bytes_per_token=question.bytes_per_token or 0,
        tensors_per_token=None if layers is None else 2 * layers,
        max_model_len=None,
        notes=notes,
    )


def _cost_of_model(model: ModelSpec, kv_dtype: str | None) -> Cost:
    from kvledger.model.layers import AttentionCache, LatentCache, StateCache

    tensors, hybrid = 0, False
    for layer in model.caching_layers():
        match layer.cache:
            case LatentCache():
                tensors += 1
            case AttentionCache() as cache:
                tensors += 2
                hybrid |= cache.cap_tokens is not None
            case StateCache():
                hybrid = True
            case _:
                raise UsageError(
                    f"`{model.name}` cannot be replayed: what layer {layer.index} keeps does not follow from the "
                    f"tokens of a sequence alone ({layer.origin})",
                    hint="replay it with --bytes-per-token N; `kvledger size` knows its real cost",
                )
    if tensors == 0:
        raise UsageError(
            f"`{model.name}` keeps states of constant size and no KV cache"
            if hybrid
            else f"`{model.name}` keeps no KV cache"
        )
    return Cost(
        name=f"{model.name} ({model.storage(kv_dtype).kv.name} KV)",
        bytes_per_token=token_bytes(model, kv_dtype),
        tensors_per_token=tensors,
        max_model_len=model.max_model_len.tokens if model.max_model_len else None,
        model=model,
        is_hybrid=hybrid,
        notes=model.notes,
    )


def token_bytes(model: ModelSpec, stored: StoredAs) -> int:
    """Return what a token costs where every attention layer keeps it."""
    return model.bytes_per_token(stored, windows=Windows.FULL)


def pool_of(question: Question, cost: Cost) -> Pool:
    """Build the pool from the options; blocks of a model with groups of layers are those of its widest group."""
    memory = None if question.memory is None else parse_bytes(question.memory)
    blocks = question.num_blocks
    groups = group_layers(cost, block_size=question.block_size, kv_dtype=question.kv_dtype) if blocks else None
    if groups is not None and blocks is not None and memory is None:
        memory, blocks = blocks * groups.block_bytes, None
    return Pool(
        bytes_per_token=cost.bytes_per_token,
        memory_bytes=memory,
        capacity_tokens=question.capacity_tokens,
        num_blocks=blocks,
        block_size=question.block_size,
        tensors_per_token=cost.tensors_per_token,
        vmm_page_bytes=parse_bytes(question.page_size),
    )
