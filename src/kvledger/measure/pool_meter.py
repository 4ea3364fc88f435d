"""From snapshots to moments: one meter follows the pools of one server through restarts.

What one sample leaves open a later one may settle (how llama.cpp's slots hold cells), so :meth:`PoolMeter.settle` draws
the samples of the window a second time with what all of them showed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity
from kvledger.measure.meter import WINDOW_SAMPLES, shown_name
from kvledger.measure.sheet import Sheet
from kvledger.measure.slots import Cells, Layout, LayoutProof
from kvledger.measure.snapshots import Hints, draw_pool

__all__ = ["Completion", "PoolKey", "PoolMeter", "PoolMoment", "draw_as"]

_CLOCK_SLACK_SECONDS = 2.0
_RANKS = ("dp_rank", "pp_rank", "tp_rank", "moe_ep_rank", "rank")
_MOST_POOLS = 4096

Completion = Callable[[EngineSnapshot, PoolReading, Hints], Hints]
"""Adds what the samples do not say: what a slot costs, cells that a log or a plan tells."""


@dataclass(frozen=True, slots=True, order=True)
class PoolKey:
    """One pool of one engine (or rank) behind one server."""

    engine: Engine
    index: int
    rank: str
    """The labels that tell a rank from the others of its engine, such as ``tp_rank 1``; empty for the only one."""
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMoment:
    """One pool at one moment, as far as its engine lets the ledger know; ``problem`` says why there is no sheet."""

    seconds: float
    key: PoolKey
    epoch: int
    """Counts the restarts that were seen."""
    model: str | None
    version: str | None
    running: int | None
    waiting: int | None
    max_running: int | None
    preemptions: int | None
    usage_ratio: float | None
    """The engine's own gauge."""
    snapshot: EngineSnapshot = field(repr=False)
    cells: Cells = field(default_factory=Cells)
    """How slots hold cells."""
    layout: Layout | None = None
    """The same, None for engines without slots."""
    price_source: str = ""
    sheet: Sheet | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Step:
    """What is kept of a sample for the second pass."""

    moment: PoolMoment
    pool: PoolReading | None
    hints: Hints


@dataclass(slots=True)
class _ServerPart:
    """One engine or rank of a server: what tells its restarts, and what its samples proved."""

    epoch: int = 0
    last: EngineSnapshot | None = None
    proof: LayoutProof = field(default_factory=LayoutProof)
    proofs: dict[int, LayoutProof] = field(default_factory=dict)
    spans: list[tuple[EngineSnapshot, EngineSnapshot]] = field(default_factory=list)
    only_decodes: bool = False

    def take(self, snapshot: EngineSnapshot) -> None:
        if self.last is not None and _has_restarted(self.last, snapshot):
            self.epoch += 1
            self.proof = LayoutProof()
            self.only_decodes = False
            self.spans.append((snapshot, snapshot))
        elif self.last is None:
            self.spans.append((snapshot, snapshot))
        else:
            self.spans[-1] = (self.spans[-1][0], snapshot)
            self.only_decodes = _is_decode_tick(self.last, snapshot, before_tick=self.only_decodes)
        self.proofs[self.epoch] = self.proof
        if snapshot.slots:
            self.proof.take(snapshot.slots)
        self.last = snapshot


class PoolMeter:
    """Follows the pools of one server; :meth:`take` mutates and costs a fraction of a millisecond."""

    def __init__(
        self,
        *,
        complete: Completion | None = None,
        expand: Callable[[EngineSnapshot], EngineSnapshot] | None = None,
        window_samples: int = WINDOW_SAMPLES,
    ) -> None:
        self._complete = complete or _as_it_is
        self._window_samples = window_samples
        self._expand = expand
        self._parts: dict[tuple[Engine, int, str], _ServerPart] = {}
        self._steps: dict[PoolKey, deque[_Step]] = {}

    def take(self, snapshots: Sequence[EngineSnapshot], *, seconds: float) -> tuple[PoolMoment, ...]:
        """Take one sample, and return what it says about each pool."""
        moments = []
        if self._expand is not None:
            snapshots = [self._expand(snapshot) for snapshot in snapshots]
        speaking = [one for one in snapshots if one.pools] or list(snapshots)
        for snapshot in speaking:
            rank = _rank(snapshot, speaking)
            part = self._parts.setdefault((snapshot.engine, snapshot.engine_index, rank), _ServerPart())
            part.take(snapshot)
            shown: list[PoolReading | None] = [pool for pool in snapshot.pools if pool.name != "host"]
            for pool in shown or [None]:
                key = PoolKey(snapshot.engine, snapshot.engine_index, rank, "kv" if pool is None else pool.name)
                if len(self._steps) >= _MOST_POOLS and key not in self._steps:
                    continue
                step = self._step(part, key, snapshot, pool, seconds)
                self._steps.setdefault(key, deque(maxlen=self._window_samples)).append(step)
                moments.append(step.moment)
        return tuple(moments)

    def spans(self, key: PoolKey) -> list[tuple[EngineSnapshot, EngineSnapshot]]:
        """Return the first and the last snapshot of each epoch of one pool's engine."""
        return list(self._parts[key.engine, key.index, key.rank].spans)

    def settle(self) -> dict[PoolKey, list[PoolMoment]]:
        """Draw the window again, each sample with what all of them showed; by pool, in the order of time."""
        return {key: [self._settle(step) for step in steps] for key, steps in sorted(self._steps.items())}

    def _settle(self, step: _Step) -> PoolMoment:
        moment = step.moment
        if step.pool is None or not moment.snapshot.slots or step.hints.cells.layout is not Layout.UNKNOWN:
            return moment
        part = self._parts[moment.key.engine, moment.key.index, moment.key.rank]
        cells = _proved(step.hints.cells, part.proofs[moment.epoch])
        if cells.layout is Layout.UNKNOWN:
            return moment
        bare = replace(step.hints, cells=cells, price=None)
        return _draw(moment, step.pool, self._complete(moment.snapshot, step.pool, bare))

    def _step(
        self, part: _ServerPart, key: PoolKey, snapshot: EngineSnapshot, pool: PoolReading | None, seconds: float
    ) -> _Step:
        bare = PoolMoment(
            seconds=seconds,
            key=key,
            epoch=part.epoch,
            model=None if snapshot.model is None else sys.intern(shown_name(snapshot.model)[:300]),
            version=snapshot.version,
            running=_count(snapshot.running),
            waiting=_count(snapshot.waiting),
            max_running=_count(snapshot.max_running),
            preemptions=_count(snapshot.preemptions_total),
            usage_ratio=None if pool is None or pool.usage_ratio is None else float(pool.usage_ratio.value),
            snapshot=replace(snapshot, histograms=()),
        )
        if pool is None:
            return _Step(replace(bare, problem=_explain(snapshot)), None, Hints())
        cells = _proved(Cells(), part.proof) if snapshot.slots else Cells()
        hints = self._complete(snapshot, pool, Hints(cells=cells, only_decodes=part.only_decodes))
        return _Step(_draw(bare, pool, hints), pool, hints)


def draw_as(moment: PoolMoment, layout: Layout) -> PoolMoment:
    """Draw a moment of slots as if they held their cells in one of the two ways, in cells."""
    pool = next((one for one in moment.snapshot.pools if one.name == moment.key.pool), None)
    if pool is None:
        return moment
    cells = replace(moment.cells, layout=layout)
    return replace(moment, sheet=draw_pool(moment.snapshot, pool, Hints(cells=cells)).sheet, layout=layout)


def _as_it_is(snapshot: EngineSnapshot, pool: PoolReading, hints: Hints) -> Hints:  # noqa: ARG001
    return hints


def _draw(moment: PoolMoment, pool: PoolReading, hints: Hints) -> PoolMoment:
    found = draw_pool(moment.snapshot, pool, hints)
    slots = len(moment.snapshot.slots)
    layout = Layout.STRIPS if slots == 1 else hints.cells.layout
    return replace(
        moment,
        sheet=found.sheet,
        problem=found.problem,
        cells=hints.cells,
        layout=layout if slots else None,
        price_source="" if hints.price is None else hints.price.source,
    )


def _explain(snapshot: EngineSnapshot) -> str:
    """Say why a snapshot has no pool."""
    absent = ", ".join(f"`{name}`" for name in snapshot.missing[:3])
    told = f"this engine says nothing about its pool ({absent} not told)" if absent else ""
    return snapshot.problem or told or "this engine says nothing about its pool"


def _proved(cells: Cells, proof: LayoutProof) -> Cells:
    if cells.layout is not Layout.UNKNOWN or proof.layout is Layout.UNKNOWN:
        return cells
    return replace(cells, layout=proof.layout, source=proof.source)


def _rank(snapshot: EngineSnapshot, snapshots: Sequence[EngineSnapshot]) -> str:
    """Name a rank by the labels in which it differs from the others of its engine."""
    others = [one for one in snapshots if one is not snapshot and one.engine_index == snapshot.engine_index]
    if not others:
        return ""
    names = [name for name in (*_RANKS, "model_name", "model") if name in snapshot.labels]
    differing = [n for n in names if any(one.labels.get(n) != snapshot.labels[n] for one in others)]
    return ", ".join(f"{name.removesuffix('_rank')} {snapshot.labels[name][:60]}" for name in differing)


def _has_restarted(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    starts = before.start_seconds, now.start_seconds
    if starts[0] is not None and starts[1] is not None and abs(starts[1] - starts[0]) > _CLOCK_SLACK_SECONDS:
        return True
    names = ("prompt_tokens_total", "generation_tokens_total", "preemptions_total", "cached_tokens_total")
    if any(_fell(getattr(before, name), getattr(now, name)) for name in names):
        return True
    if before.pools and now.pools:
        sizes = [pool.capacity for pool in (before.pools[0], now.pools[0])]
        if sizes[0] is not None and sizes[1] is not None and all(size.is_exact for size in sizes if size is not None):
            return sizes[0].value != sizes[1].value
    return _tasks_began_again(before, now)


def _tasks_began_again(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Tell whether llama.cpp's slots are others: fewer or longer ones, or with requests of lower numbers."""
    if not before.slots or not now.slots:
        return False
    shapes = [[(slot.slot_id, _count(slot.capacity_tokens)) for slot in one.slots] for one in (before, now)]
    if shapes[0] != shapes[1]:
        return True
    return any(
        old.task_id is not None and (new.task_id is None or new.task_id < old.task_id)
        for old, new in zip(before.slots, now.slots, strict=True)
    )


def _fell(before: Quantity | None, now: Quantity | None) -> bool:
    return before is not None and now is not None and now.value < before.value


def _is_decode_tick(before: EngineSnapshot, now: EngineSnapshot, *, before_tick: bool = False) -> bool:
    """Tell whether SGLang's gauges come from a decode step: since the last prefill, the decode batch was written."""
    prefilled = [one.others.get("sglang:prefilled_tokens") for one in (before, now)]
    if None in prefilled or prefilled[0] != prefilled[1]:
        return False
    written = [_count(one.live_tokens) for one in (before, now)]
    return before_tick or (None not in written and written[0] != written[1])


def _count(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(quantity.value)
