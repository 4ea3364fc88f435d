"""What llama.cpp's server tells of its slots: ``/slots`` (exact tokens of each) and ``/props``.

``/slots`` gives ``n_prompt_tokens`` in newer builds (b11434 has it, b9093 has not): the tokens in the slot's cache,
generated ones and those of the step under way included, kept after the request has ended. Builds of 2024 gave
``n_past``; those between tell only what was decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading, SlotReading
from kvledger.engines.quantity import Fact, Quantity, add, exact
from kvledger.engines.strict_json import find_object, number, read_json
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy

__all__ = ["is_router", "is_sleeping", "join_answers", "read_props", "read_slots"]

_MAX_SLOTS = 65_536
_JOINED = (
    "model", "version", "running", "waiting", "max_running", "max_model_len", "prompt_tokens_total",
    "generation_tokens_total", "cached_tokens_total",
)  # fmt: skip
"""What is taken from the first answer that has it."""


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
    declared = number(find_object(slot, "params"), "n_predict", "max_tokens")
    task = number(slot, "id_task")
    tokens = number(slot, "n_prompt_tokens", "n_past", source="/slots ")
    if tokens is None and "id_task" not in slot and not processing and "n_ctx" in slot and "next_token" not in slot:
        tokens = exact(0, source="/slots: no request so far")
    return SlotReading(
        slot_id=order if slot_id is None else int(slot_id.value),
        task_id=None if task is None or task.value < 0 else int(task.value),
        capacity_tokens=number(slot, "n_ctx", source="/slots "),
        tokens=tokens,
        is_processing=processing,
        prompt_tokens=add([number(slot, "n_prompt_tokens_processed"), number(slot, "n_prompt_tokens_cache")]),
        reused_tokens=number(slot, "n_prompt_tokens_cache"),
        decoded_tokens=decoded,
        remaining_tokens=None if remaining is None or remaining.value < 0 else remaining,
        declared_tokens=None if declared is None or declared.value < 0 else declared,
    )


def read_props(text: str) -> EngineSnapshot:
    """Read ``/props``: slots, the context of each, model and build.

    Raises:
        SourceError: It is no JSON object.
    """
    value = read_json(text, what="the answer of /props")
    if not isinstance(value, dict):
        raise SourceError("the answer of /props is no object", hint="hand over the answer unchanged")
    build = _text(value.get("build_info"))
    settings = find_object(value, "default_generation_settings")
    path = _text(value.get("model_alias")) or _text(value.get("model_path"))
    return EngineSnapshot(
        engine=Engine.LLAMACPP,
        model=None if path is None else path.replace("\\", "/").rpartition("/")[2],
        version=_version(build),
        max_running=number(value, "total_slots", source="/props "),
        max_model_len=number(settings, "n_ctx", source="/props ") or number(value, "n_ctx", source="/props "),
    )


def _version(build: str | None) -> str | None:
    """Return the number of a build such as ``b11434-1a2b3c4``; a build of its own sources has none."""
    number = "" if build is None else build.partition("-")[0]
    return number if number.removeprefix("b").isdigit() and int(number.removeprefix("b")[:9]) > 0 else None


def is_sleeping(text: str) -> bool:
    """Tell from ``/props`` whether the server has unloaded its model; asking for its slots would wake it.

    Raises:
        SourceError: It is no JSON object.
    """
    value = read_json(text, what="the answer of /props")
    return isinstance(value, dict) and value.get("is_sleeping") is True


def is_router(text: str) -> bool:
    """Tell from ``/props`` whether this is a router of several servers, which has no slots of its own.

    Raises:
        SourceError: It is no JSON object.
    """
    value = read_json(text, what="the answer of /props")
    return isinstance(value, dict) and value.get("role") == "router"


def join_answers(
    *, slots: EngineSnapshot | None, props: EngineSnapshot | None, metrics: EngineSnapshot | None
) -> EngineSnapshot:
    """Return what three answers of one server say together; the slots go before the others.

    The gauges of old builds count the cells of idle slots too, so they stand only where there are no slots.
    """
    known = [one for one in (slots, props, metrics) if one is not None]
    first = known[0] if known else EngineSnapshot(engine=Engine.LLAMACPP)
    found: dict[str, Any] = {}
    for name in _JOINED:
        value = next((v for one in known if (v := getattr(one, name)) is not None), None)
        found[name] = value
    return replace(
        first,
        **found,
        pools=_join_pools(first.pools, metrics.pools if metrics is not None else ()),
        others=metrics.others if metrics is not None else {},
        missing=tuple(dict.fromkeys(name for one in known for name in one.missing)) if slots is None else first.missing,
    )


def _join_pools(first: tuple[PoolReading, ...], gauges: tuple[PoolReading, ...]) -> tuple[PoolReading, ...]:
    if not first or not gauges:
        return first or gauges
    return (replace(first[0], occupied=gauges[0].occupied, usage_ratio=gauges[0].usage_ratio), *first[1:])


def _text(value: object) -> str | None:
    return value[:300] if isinstance(value, str) and value else None
