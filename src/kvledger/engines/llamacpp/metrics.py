"""What llama.cpp's server tells over HTTP: ``/slots`` (exact tokens of each slot), ``/props`` and ``/metrics``.

``/slots`` gives ``n_prompt_tokens`` in newer builds (b11434 has it, b9093 has not): the tokens in the slot's cache,
generated ones included, kept after the request has ended. Builds of 2024 gave ``n_past``; those between tell only what
was decoded. ``/metrics`` has lost its KV gauges in May 2025 (``kv_cache_usage_ratio``, ``kv_cache_tokens``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvledger.engines.exposition import SeriesTable, read_exposition
from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading, SlotReading
from kvledger.engines.quantity import Fact, Quantity, add, exact
from kvledger.engines.strict_json import find_object, number, read_json
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy

__all__ = ["WANTED", "read_metrics", "read_props", "read_slots"]

_PREFIX = "llamacpp:"
_OTHERS = (
    "prompt_tokens_seconds", "predicted_tokens_seconds", "n_busy_slots_per_decode", "n_decode_total", "n_tokens_max",
    "prompt_seconds_total", "tokens_predicted_seconds_total",
)  # fmt: skip
WANTED = frozenset(
    _PREFIX + name
    for name in (
        *_OTHERS, "prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total", "requests_processing",
        "requests_deferred", "kv_cache_usage_ratio", "kv_cache_tokens",
    )
)  # fmt: skip
"""The names of samples that are read."""
_MAX_SLOTS = 65_536


def read_metrics(text: str) -> tuple[EngineSnapshot, ...]:
    """Read ``/metrics``: one snapshot, or none when the text has no sample of llama.cpp.

    Raises:
        SourceError: The text is beyond the bounds of :mod:`kvledger.engines.exposition`.
    """
    found = read_exposition(text, WANTED).series
    if not found:
        return ()
    table = SeriesTable.of(found)

    def find(name: str) -> Quantity | None:
        return table.find(_PREFIX + name)

    usage, tokens = find("kv_cache_usage_ratio"), find("kv_cache_tokens")
    pool = PoolReading(used=tokens, usage_ratio=usage)
    gone = () if usage or tokens else ("llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens")
    return (
        EngineSnapshot(
            engine=Engine.LLAMACPP,
            pools=(pool,) if usage or tokens else (),
            running=find("requests_processing"),
            waiting=find("requests_deferred"),
            prompt_tokens_total=find("prompt_tokens_total"),
            generation_tokens_total=find("tokens_predicted_total"),
            cached_tokens_total=find("prompt_tokens_cached_total"),
            others=table.find_others(_PREFIX + name for name in _OTHERS),
            missing=gone,
        ),
    )


def read_slots(text: str, *, unified: Fact[bool] | None = None) -> EngineSnapshot:
    """Read ``/slots``: the tokens that each slot holds.

    Args:
        text: The JSON list.
        unified: Whether slots share all cells (from the log); it decides what the pool's capacity is. Without it the
            capacity is left open, because ``n_ctx`` of a slot is the same number in both cases.

    Raises:
        SourceError: It is no list of slots.
    """
    value = read_json(text, what="the answer of /slots")
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        raise SourceError(
            "the server does not tell its slots: " + str(find_object(value, "error").get("message"))[:200],
            hint="start llama-server without `--no-slots` (older builds: with `--slots`)",
        )
    if not isinstance(value, list) or len(value) > _MAX_SLOTS or not all(isinstance(slot, dict) for slot in value):
        raise SourceError("the answer of /slots is no list of slots", hint="hand over the answer unchanged")
    slots = tuple(_read_slot(slot, order) for order, slot in enumerate(value))
    busy = sum(slot.is_processing for slot in slots)
    return EngineSnapshot(
        engine=Engine.LLAMACPP,
        model=_text(value[0].get("model")) if value else None,
        slots=slots,
        pools=(_read_pool(slots, unified),),
        running=exact(busy, source="/slots is_processing"),
        max_running=exact(len(slots), source="/slots"),
        max_model_len=slots[0].capacity_tokens if slots else None,
        missing=tuple(f"/slots[{slot.slot_id}].n_prompt_tokens" for slot in slots if slot.tokens is None),
    )


def _read_pool(slots: Sequence[SlotReading], unified: Fact[bool] | None) -> PoolReading:
    """Sum the slots: held by running requests, kept by idle slots."""
    used = add([slot.tokens for slot in slots if slot.is_processing] or [exact(0)])
    kept = add([slot.tokens for slot in slots if not slot.is_processing] or [exact(0)])
    capacity = None
    if unified is not None and slots:
        sizes = [slot.capacity_tokens for slot in slots]
        capacity = sizes[0] if unified.value else add(sizes)
    return PoolReading(unit="cells", capacity=capacity, used=_derived(used), cached=_derived(kept))


def _derived(quantity: Quantity | None) -> Quantity | None:
    if quantity is None:
        return None
    return exact(quantity.value, source="sum of /slots n_prompt_tokens", accuracy=Accuracy.DERIVED)


def _read_slot(slot: Mapping[str, object], order: int) -> SlotReading:
    following = slot.get("next_token")
    if isinstance(following, list):
        following = following[0] if following else None
    step = find_object({"next": following}, "next")
    slot_id = number(slot, "id")
    processing = slot.get("is_processing")
    if not isinstance(processing, bool):
        state = number(slot, "state")
        processing = state is not None and state.value > 0
    decoded = number(step, "n_decoded") or number(slot, "n_decoded")
    remaining = number(step, "n_remain") or number(slot, "n_remaining")
    tokens = number(slot, "n_prompt_tokens", "n_past", source="/slots ")
    if tokens is None and "id_task" not in slot and not processing and "n_ctx" in slot and "next_token" not in slot:
        tokens = exact(0, source="/slots: no request so far")
    return SlotReading(
        slot_id=order if slot_id is None else int(slot_id.value),
        capacity_tokens=number(slot, "n_ctx", source="/slots "),
        tokens=tokens,
        is_processing=processing,
        prompt_tokens=add([number(slot, "n_prompt_tokens_processed"), number(slot, "n_prompt_tokens_cache")]),
        decoded_tokens=decoded,
        remaining_tokens=None if remaining is None or remaining.value < 0 else remaining,
    )


def read_props(text: str) -> EngineSnapshot:
    """Read ``/props``: slots, the context of each, model and build.

    Raises:
        SourceError: It is no JSON object.
    """
    value = read_json(text, what="the answer of /props")
    if not isinstance(value, dict):
        raise SourceError("the answer of /props is no object", hint="hand over the answer unchanged")
    build, labels = _text(value.get("build_info")), {}
    if build:
        labels["build_info"] = build
    settings = find_object(value, "default_generation_settings")
    path = _text(value.get("model_alias")) or _text(value.get("model_path"))
    return EngineSnapshot(
        engine=Engine.LLAMACPP,
        model=None if path is None else path.replace("\\", "/").rpartition("/")[2],
        labels=labels,
        max_running=number(value, "total_slots", source="/props "),
        max_model_len=number(settings, "n_ctx", source="/props ") or number(value, "n_ctx", source="/props "),
    )


def _text(value: object) -> str | None:
    return value[:300] if isinstance(value, str) and value else None
