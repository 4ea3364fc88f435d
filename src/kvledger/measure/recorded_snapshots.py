"""Snapshots of engines as numbers by name, for recordings, and back.

A snapshot is named ``@`` and its order in the sample. A number stands alone when it is exact, else with its least and
its most; where it comes from is said once, since only changes are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvledger.engines.facts import Engine, EngineSnapshot, HistogramReading, PoolReading, SlotReading
from kvledger.engines.quantity import LARGEST, Quantity
from kvledger.ledger import Accuracy

__all__ = ["MARK", "build_snapshots", "flatten_snapshots"]

MARK = "@"
"""How names of snapshots begin."""
_MOST = 4096
_NUMBERS = (
    "running", "waiting", "paused", "max_running", "live_tokens", "reserved_tokens", "max_model_len",
    "preemptions_total", "prompt_tokens_total", "generation_tokens_total", "cached_tokens_total",
    "evicted_tokens_total", "prefix_hit_ratio", "weights_bytes", "device_bytes",
)  # fmt: skip
_POOL_NUMBERS = (
    "capacity", "used", "cached", "free", "occupied", "usage_ratio", "stored", "lost", "shared_saving", "block_tokens",
    "size_bytes",
)  # fmt: skip
_SLOT_NUMBERS = (
    "capacity_tokens", "tokens", "prompt_tokens", "reused_tokens", "decoded_tokens", "remaining_tokens",
    "declared_tokens",
)  # fmt: skip


def flatten_snapshots(snapshots: Sequence[EngineSnapshot], *, prefix: str, buckets: bool) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of all snapshots of one sample; ``buckets`` adds those of histograms."""
    for order, one in enumerate(snapshots[:_MOST]):
        at = f"{prefix}{MARK}{order}/"
        yield f"{at}engine", one.engine.value
        yield f"{at}index", one.engine_index
        for name in ("model", "version", "seconds", "start_seconds"):
            value = getattr(one, name)
            if value is not None:
                yield at + name, value
        yield f"{at}missing", "\n".join(one.missing)
        yield f"{at}problem", one.problem
        for label, text in one.labels.items():
            yield f"{at}l/{label}", text
        for name, number in one.others.items():
            yield f"{at}o/{name}", _compact(number)
        yield from _numbers(one, _NUMBERS, f"{at}n/")
        for place, pool in enumerate(one.pools):
            yield f"{at}p/{place}/name", pool.name
            yield f"{at}p/{place}/unit", pool.unit
            yield from _numbers(pool, _POOL_NUMBERS, f"{at}p/{place}/")
        for place, slot in enumerate(one.slots):
            yield f"{at}s/{place}/id", slot.slot_id
            yield f"{at}s/{place}/busy", int(slot.is_processing)
            if slot.task_id is not None:
                yield f"{at}s/{place}/task", slot.task_id
            yield from _numbers(slot, _SLOT_NUMBERS, f"{at}s/{place}/")
        for histogram in one.histograms:
            yield from _flatten_histogram(histogram, f"{at}h/{histogram.name}/", buckets=buckets)


def _flatten_histogram(histogram: HistogramReading, at: str, *, buckets: bool) -> Iterator[tuple[str, Any]]:
    yield f"{at}count", _compact(histogram.count)
    yield f"{at}total", _compact(histogram.total)
    if buckets:
        for edge, count in zip(histogram.edges, histogram.counts, strict=True):
            yield f"{at}b/{edge!r}", _compact(count)


def _numbers(holder: object, names: Sequence[str], at: str) -> Iterator[tuple[str, Any]]:
    for name in names:
        quantity: Quantity | None = getattr(holder, name)
        if quantity is None:
            continue
        yield at + name, quantity.value if quantity.is_exact else [quantity.value, quantity.low, quantity.high]
        yield f"{at}{name}?", f"{quantity.accuracy.value} {quantity.source}"


def _compact(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(float(value), 6)


def build_snapshots(flat: Mapping[str, Any]) -> tuple[EngineSnapshot, ...]:
    """Return the snapshots of one sample from its names, without their prefix.

    Raises:
        ValueError: A value is none that was written.
        LookupError: A name is missing.
        TypeError: A value is of another kind.
    """
    trees: dict[int, dict[str, Any]] = {}
    for name, value in flat.items():
        head, _, rest = name.partition("/")
        order = int(head.removeprefix(MARK))
        if not 0 <= order < _MOST:
            raise ValueError("it has too many snapshots")
        trees.setdefault(order, {})[rest] = value
    return tuple(_build(tree) for _, tree in sorted(trees.items()))


def _build(tree: Mapping[str, Any]) -> EngineSnapshot:
    parts: dict[str, dict[str, Any]] = {}
    for name, value in tree.items():
        kind, slash, rest = name.partition("/")
        parts.setdefault(kind if slash else "", {})[rest if slash else name] = value
    plain = parts.get("", {})
    seconds, start = plain.get("seconds"), plain.get("start_seconds")
    return EngineSnapshot(
        engine=Engine(plain["engine"]),
        engine_index=int(plain["index"]),
        model=None if plain.get("model") is None else str(plain["model"]),
        version=None if plain.get("version") is None else str(plain["version"]),
        seconds=None if seconds is None else float(seconds),
        start_seconds=None if start is None else float(start),
        missing=tuple(name for name in str(plain.get("missing", "")).split("\n") if name),
        problem=str(plain.get("problem", "")),
        labels={name: str(value) for name, value in parts.get("l", {}).items()},
        others={name: float(value) for name, value in parts.get("o", {}).items()},
        pools=tuple(_build_pool(one) for one in _by_place(parts.get("p", {}))),
        slots=tuple(_build_slot(one) for one in _by_place(parts.get("s", {}))),
        histograms=_build_histograms(parts.get("h", {})),
        **_read_numbers(parts.get("n", {}), _NUMBERS),
    )


def _by_place(flat: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for name, value in flat.items():
        place, _, rest = name.partition("/")
        found.setdefault(int(place), {})[rest] = value
    return [one for _, one in sorted(found.items())]


def _build_pool(flat: Mapping[str, Any]) -> PoolReading:
    return PoolReading(name=str(flat["name"]), unit=str(flat["unit"]), **_read_numbers(flat, _POOL_NUMBERS))


def _build_slot(flat: Mapping[str, Any]) -> SlotReading:
    task = flat.get("task")
    return SlotReading(
        slot_id=int(flat["id"]),
        task_id=None if task is None else int(task),
        is_processing=bool(flat["busy"]),
        **_read_numbers(flat, _SLOT_NUMBERS),
    )


def _read_numbers(flat: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: _quantity(flat[name], str(flat.get(f"{name}?", ""))) for name in names if name in flat}


def _quantity(value: Any, origin: str) -> Quantity:
    value, low, high = value if isinstance(value, list) else (value, value, value)
    for number in (value, low, high):
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
            raise ValueError(f"{str(number)[:40]!r} is no number")
    accuracy, _, source = origin.partition(" ")
    return Quantity(value=value, low=low, high=high, accuracy=Accuracy(accuracy or "measured"), source=source)


def _build_histograms(flat: Mapping[str, Any]) -> tuple[HistogramReading, ...]:
    names = [name.removesuffix("/count") for name in flat if name.endswith("/count")]
    return tuple(_build_histogram(name, flat) for name in names)


def _build_histogram(name: str, flat: Mapping[str, Any]) -> HistogramReading:
    start = f"{name}/b/"
    buckets = sorted((float(key[len(start) :]), float(value)) for key, value in flat.items() if key.startswith(start))
    return HistogramReading(
        name=name,
        edges=tuple(edge for edge, _ in buckets),
        counts=tuple(count for _, count in buckets),
        count=float(flat[f"{name}/count"]),
        total=float(flat[f"{name}/total"]),
    )
