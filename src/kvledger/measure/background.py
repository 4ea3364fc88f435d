"""What is known about pools beside their samples: the start-up log, the model, prices and layouts as given.

A server says what its pools hold, seldom how large they are in bytes, and llama.cpp not even how many cells there are.
The log of its start has that; the model has the price of a slot, and the plan the cells of layers with a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kvledger.engines.facts import Engine, EngineSnapshot, PoolFacts, PoolReading, StartupFacts
from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.quantity import Quantity
from kvledger.engines.registry import ENGINES, load_planner
from kvledger.errors import Error, UsageError
from kvledger.ledger import Accuracy
from kvledger.measure.parts import CellPrice
from kvledger.measure.pricing import keeps_every_token
from kvledger.measure.slots import Layout, count_cells
from kvledger.measure.snapshots import Hints
from kvledger.model.spec import ModelSpec
from kvledger.units import counted

__all__ = ["Background"]

_PLENTY = 2**50
_ATTENTION = ("kv", "full")
_LAYOUTS = (Layout.SHARED, Layout.STRIPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedPool:
    """One pool of a plan, in its slots."""

    slots: int
    slot_bytes: int
    window_tokens: int | None
    accuracy: Accuracy


@dataclass(slots=True, kw_only=True)
class Background:
    """Completes samples; ``notes`` grows with what came up."""

    layout: Layout = Layout.UNKNOWN
    """Of llama.cpp's slots, as given."""
    bytes_per_token: int | None = None
    kv_memory: int | None = None
    model: ModelSpec | None = None
    kv_dtype: str | None = None
    startup: StartupFacts | None = None
    find_served: Callable[[str | None], ModelSpec | None] | None = None
    """Finds the model that is served by its name."""
    notes: list[str] = field(default_factory=list)
    _plans: dict[tuple[int, int, bool], Mapping[str, _PlannedPool]] = field(default_factory=dict)

    def expand(self, snapshot: EngineSnapshot) -> EngineSnapshot:
        """Return a snapshot of slots with a pool for each cache that the model or the log tells of."""
        if not snapshot.slots or not snapshot.pools:
            return snapshot
        names = [name for name in self._named_pools(snapshot) if name in ("full", "swa")]
        if not names or names == ["full"]:
            return snapshot
        pools = tuple(replace(snapshot.pools[0], name=name) for name in names)
        return replace(snapshot, pools=pools)

    def complete(self, snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> Hints:
        """Add to the hints of one pool of one sample what the samples do not say."""
        found = self._complete_slots(snapshot, pool, hints) if snapshot.slots else self._complete_size(pool, hints)
        return replace(found, price=found.price or self._price(snapshot, pool, found))

    def _named_pools(self, snapshot: EngineSnapshot) -> list[str]:
        if self.startup is not None and self.startup.engine is snapshot.engine:
            return [pool.name for pool in self.startup.pools]
        layout = self._given_layout()
        planned = self._plan(snapshot, Layout.SHARED if layout is Layout.UNKNOWN else layout)
        return list(planned)

    def _given_layout(self) -> Layout:
        unified = self.startup.unified if self.startup is not None else None
        if self.layout is not Layout.UNKNOWN or unified is None:
            return self.layout
        return Layout.SHARED if unified.value else Layout.STRIPS

    def _complete_slots(self, snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> Hints:
        cells = hints.cells
        layout = self._given_layout()
        if layout is not Layout.UNKNOWN:
            source = "as given" if self.layout is not Layout.UNKNOWN else "start-up log: kv_unified"
            cells = replace(cells, layout=layout, source=source)
        told = self._told(pool.name)
        window = self._window(snapshot, pool.name, cells.layout)
        if told is not None and told.cells is not None and told.cells.is_exact:
            streams = 1 if told.streams is None else int(told.streams.value)
            cells = replace(cells, counts=dict.fromkeys(_LAYOUTS, int(told.cells.value) * streams))
        elif pool.name == "swa":
            planned = {one: self._plan(snapshot, one).get("swa") for one in _LAYOUTS}
            cells = replace(cells, counts={one: found.slots for one, found in planned.items() if found is not None})
        return replace(hints, cells=replace(cells, is_windowed=pool.name == "swa", window_tokens=window))

    def _complete_size(self, pool: PoolReading, hints: Hints) -> Hints:
        told = self._told(pool.name)
        exported = pool.capacity is not None and pool.capacity.is_exact
        if exported:
            return hints
        if told is None or (told.blocks is None and told.tokens is None):
            return replace(hints, capacity=self._count_log_cells(told))
        if told.blocks is not None and told.block_tokens is not None and told.blocks.is_exact:
            return replace(hints, capacity=int(told.blocks.value * told.block_tokens.value))
        if told.tokens is not None and told.tokens.is_exact:
            return replace(hints, capacity=int(told.tokens.value))
        return hints

    def _count_log_cells(self, told: PoolFacts | None) -> int | None:
        """Return the cells that llama.cpp logs: of the pool, else those of its context."""
        if told is not None and told.cells is not None and told.cells.is_exact:
            return int(told.cells.value) * (1 if told.streams is None else int(told.streams.value))
        return self._option("n_ctx")

    def _told(self, name: str) -> PoolFacts | None:
        """Return what the start-up log says of a pool, from the rank that has least."""
        if self.startup is None:
            return None
        names = _ATTENTION if name in _ATTENTION else (name,)
        found = [pool for pool in self.startup.pools if pool.name in names and pool.is_memory]
        return min(found, key=lambda pool: (_value(pool.tokens), _value(pool.size_bytes)), default=None)

    def _window(self, snapshot: EngineSnapshot, name: str, layout: Layout) -> int | None:
        if name != "swa":
            return None
        told = self._option("n_swa")
        if told is not None:
            return told
        planned = self._plan(snapshot, layout).get("swa")
        return None if planned is None else planned.window_tokens

    def _option(self, name: str) -> int | None:
        """Return a number that the start-up log prints."""
        text = self.startup.options.get(name, "") if self.startup is not None else ""
        return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 12 and int(text) > 0 else None

    def _price(self, snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> CellPrice | None:
        if self.bytes_per_token is not None and pool.name in _ATTENTION:
            return CellPrice(
                cell_bytes=self.bytes_per_token, source=f"{self.bytes_per_token:,} bytes a token, as given"
            )
        slots = _slots(snapshot, pool, hints)
        if self.kv_memory is not None and pool.name in _ATTENTION:
            return _price_by_bytes(self.kv_memory, slots, "--kv-memory")
        if self._model(snapshot) is not None:
            return self._price_by_model(snapshot, pool, hints)
        told = self._told(pool.name)
        if told is not None and told.size_bytes is not None and slots:
            return _price_by_log(told, slots)
        return None

    def _price_by_model(self, snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> CellPrice | None:
        model = self._model(snapshot)
        assert model is not None
        if snapshot.slots:
            planned = self._plan(snapshot, hints.cells.layout)
            found = planned.get(pool.name) or (planned.get("full") if pool.name == "kv" else None)
            if found is not None:
                return CellPrice(
                    cell_bytes=found.slot_bytes,
                    source=f"{model.name}: {found.slot_bytes:,} bytes a cell, as llama.cpp lays it out",
                    accuracy=found.accuracy,
                )
        if pool.name != "kv" or not keeps_every_token(model):
            self._note(
                f"`{model.name}` has layers that do not keep every token, and pool `{pool.name}` is priced by none"
            )
            return None
        cost = model.bytes_per_token(self.kv_dtype)
        stored = model.storage(self.kv_dtype).kv.name
        source = f"{model.name}: {cost:,} bytes a token ({stored} KV), all ranks together"
        return CellPrice(cell_bytes=cost, source=source) if cost else None

    def _plan(self, snapshot: EngineSnapshot, layout: Layout) -> Mapping[str, _PlannedPool]:
        """Return what llama.cpp allocates for the model with these slots; nothing where it cannot be planned."""
        model = self._model(snapshot)
        if model is None or snapshot.engine is not Engine.LLAMACPP or not snapshot.slots:
            return {}
        contexts = [0 if s.capacity_tokens is None else int(s.capacity_tokens.value) for s in snapshot.slots]
        context = max(contexts)
        if context < 1:
            return {}
        key = (len(contexts), context, layout is Layout.SHARED)
        if key not in self._plans:
            told = self._told("kv")
            dtype = self.kv_dtype or (told.key_dtype if told is not None else None) or "auto"
            try:
                self._plans[key] = _plan_cells(model, key, dtype, self._option("n_ubatch"))
            except Error as error:
                self._note(error.message)
                self._plans[key] = {}
        return self._plans[key]

    def _model(self, snapshot: EngineSnapshot) -> ModelSpec | None:
        if self.model is not None or self.find_served is None:
            return self.model
        return self.find_served(snapshot.model)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _plan_cells(
    model: ModelSpec, key: tuple[int, int, bool], kv_dtype: str, ubatch: int | None
) -> Mapping[str, _PlannedPool]:
    """Plan the cells; a micro-batch that is not told, on which those of a window depend, is taken to be the default."""
    slots, context, unified = key
    options = {
        "ctx_size": str(context if unified else context * slots),
        "parallel": str(slots),
        "kv_unified": "on" if unified else "off",
    }
    if ubatch is not None:
        options["ubatch_size"] = str(ubatch)
    deployment = Deployment(engine="llama.cpp", version=ENGINES["llama.cpp"].latest, kv_dtype=kv_dtype, options=options)
    plan = load_planner("llama.cpp").make_plan(model, deployment, KvMemory.given(_PLENTY))
    windows = {claim.pool: claim.window_tokens for claim in plan.claims}
    return {
        pool.name: _PlannedPool(
            slots=pool.units,
            slot_bytes=plan.ranks[0].unit_bytes[pool.name],
            window_tokens=windows.get(pool.name),
            accuracy=Accuracy.MODELLED if pool.name == "swa" and ubatch is None else plan.accuracy,
        )
        for pool in plan.pools
    }


def _slots(snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> int | None:
    """Return the slots of a pool where they are exact."""
    if snapshot.slots:
        alone = len(snapshot.slots) == 1
        return count_cells(snapshot.slots, hints.cells, Layout.STRIPS if alone else hints.cells.layout)
    if hints.capacity is not None:
        return hints.capacity
    if pool.capacity is None or not pool.capacity.is_exact:
        return None
    if pool.unit != "blocks":
        return int(pool.capacity.value)
    return None if pool.block_tokens is None else int(pool.capacity.value * pool.block_tokens.value)


def _price_by_bytes(size_bytes: int, slots: int | None, source: str) -> CellPrice | None:
    if not slots:
        return None
    cell, rest = divmod(size_bytes, slots)
    if cell < 1:
        raise UsageError(
            f"{size_bytes:,} bytes are less than one byte for each of {counted(slots, 'slot')}",
            hint="give the memory of the KV pool, such as --kv-memory 16GiB",
        )
    return CellPrice(cell_bytes=cell, rest_bytes=rest, source=source)


def _price_by_log(told: PoolFacts, slots: int) -> CellPrice | None:
    """Price a slot by the size line, whose decimals leave an interval; whole elements of all layers narrow it."""
    size = told.size_bytes
    assert size is not None
    grain = 1 if told.layers is None or told.key_dtype not in ("f16", "bf16") else 2 * int(told.layers.value)
    low, high = -(-int(size.low) // slots), int(size.high) // slots
    first = -(-low // grain) * grain
    is_sure = low <= first <= high < first + grain
    cell = first if is_sure else round(size.value / slots)
    if cell < 1:
        return None
    digits = "" if is_sure else ", rounded as the log rounds"
    return CellPrice(
        cell_bytes=cell,
        source=f"start-up log: {cell:,} bytes a slot{digits}",
        accuracy=Accuracy.DERIVED if is_sure else Accuracy.MODELLED,
    )


def _value(quantity: Quantity | None) -> float:
    return float("inf") if quantity is None else float(quantity.value)
