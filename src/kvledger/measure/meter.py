"""From scrapes to readings: one meter follows all engines of one server through restarts.

A reading is made at once from what is known so far (:meth:`Meter.take`). Later samples often settle what an earlier
one left open (whether a waiting request was preempted or its client had gone), so :meth:`Meter.settle` reads the
samples of the window a second time with that knowledge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvledger.engines.vllm.metrics import Generation, VllmEngine, VllmScrape
from kvledger.measure.balance import Balance, Instant, Scheduling, balance_tokens, infer_scheduling
from kvledger.measure.offsets import OffsetTracker, read_differences
from kvledger.measure.pool import PoolShape, count_held_blocks, read_pool_shape
from kvledger.measure.sheet import Sheet, draw_sheet

__all__ = ["Meter", "Reading"]

_WINDOW = 10_000
_NO_LIMIT = 2**61
_CLOCK_SLACK_SECONDS = 2.0

Completion = Callable[[PoolShape, VllmEngine], PoolShape]
"""Adds what the scrape does not say: the price of a block, the longest request, the structure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One engine at one instant, as far as its scrape lets the ledger know; ``problem`` says why there is no sheet."""

    seconds: float
    engine_index: int
    epoch: int
    """Counts the restarts that were seen."""
    model: str | None
    running: int | None
    waiting: int | None
    usage_ratio: float | None
    preemptions: int | None
    shape: PoolShape | None = None
    balance: Balance | None = None
    sheet: Sheet | None = None
    scheduling: Scheduling = Scheduling.UNKNOWN
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Step:
    """What is kept of a sample for the second pass."""

    seconds: float
    epoch: int
    instant: Instant
    shape: PoolShape
    reading: Reading
    computed_tokens: int | None


@dataclass(slots=True)
class _EngineMeter:
    index: int
    epoch: int = 0
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    scheduling: Scheduling = Scheduling.UNKNOWN
    last: VllmEngine | None = None
    steps: deque[_Step | Reading] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    spans: list[tuple[VllmEngine, VllmEngine]] = field(default_factory=list)
    is_new_epoch: bool = False

    def restart(self) -> None:
        self.epoch += 1
        self.tracker = OffsetTracker()
        self.is_new_epoch = True

    def note(self, engine: VllmEngine) -> None:
        """Keep the first and the last scrape of this epoch."""
        if self.last is None or self.is_new_epoch:
            self.spans.append((engine, engine))
        else:
            self.spans[-1] = (self.spans[-1][0], engine)
        self.last, self.is_new_epoch = engine, False


class Meter:
    """Follows the engines of one server; :meth:`take` mutates and costs a fraction of a millisecond."""

    def __init__(self, *, complete: Completion | None = None, scheduling: Scheduling = Scheduling.UNKNOWN) -> None:
        self._complete = complete or (lambda shape, _: shape)
        self._scheduling = scheduling
        self._engines: dict[int, _EngineMeter] = {}
        self._started: float | None = None

    def take(self, scrape: VllmScrape, *, seconds: float) -> tuple[Reading, ...]:
        """Take one scrape, and return what it says about each engine."""
        restarted = (
            scrape.start_seconds is not None
            and self._started is not None
            and abs(scrape.start_seconds - self._started) > _CLOCK_SLACK_SECONDS
        )
        self._started = scrape.start_seconds if scrape.start_seconds is not None else self._started
        readings = []
        for engine in scrape.engines:
            meter = self._engines.setdefault(
                engine.index, _EngineMeter(index=engine.index, scheduling=self._scheduling)
            )
            if restarted or _has_reset(meter.last, engine):
                meter.restart()
            meter.note(engine)
            readings.append(self._read(meter, engine, scrape, seconds))
        return tuple(readings)

    def spans(self, engine_index: int) -> list[tuple[VllmEngine, VllmEngine]]:
        """Return the first and the last scrape of each epoch of one engine."""
        return list(self._engines[engine_index].spans)

    def settle(self) -> dict[int, list[Reading]]:
        """Read the window again, each sample with what all later ones showed; by engine, in the order of time."""
        return {index: list(_settle(meter)) for index, meter in sorted(self._engines.items())}

    def _read(self, meter: _EngineMeter, engine: VllmEngine, scrape: VllmScrape, seconds: float) -> Reading:
        shape = read_pool_shape(engine, engines=len(scrape.engines))
        shape = self._complete(shape, engine) if shape is not None else None
        bare = Reading(
            seconds=seconds,
            engine_index=engine.index,
            epoch=meter.epoch,
            model=engine.model,
            running=engine.running,
            waiting=engine.waiting,
            usage_ratio=engine.usage_ratio,
            preemptions=engine.preemptions,
            shape=shape,
        )
        problem, held = _find_problem(engine, shape)
        if problem or shape is None or held is None or engine.running is None:
            meter.steps.append(replace(bare, problem=problem))
            return replace(bare, problem=problem)
        instant = Instant(
            held_blocks=held,
            running=engine.running,
            waiting=engine.waiting,
            differences=read_differences(engine) if engine.generation is Generation.V1 else None,
            is_speculative=bool(engine.draft_tokens),
            is_skewed=scrape.is_multiprocess,
        )
        balance = balance_tokens(shape, instant, meter.tracker, scheduling=meter.scheduling, seconds=seconds)
        if meter.scheduling is Scheduling.UNKNOWN:
            meter.scheduling = infer_scheduling(shape, instant, balance)
        step = _Step(seconds, meter.epoch, instant, shape, bare, _count_computed(engine))
        meter.steps.append(step)
        return _complete_reading(step, balance, meter.scheduling)


def _settle(meter: _EngineMeter) -> list[Reading]:
    steps = [step for step in meter.steps if isinstance(step, _Step)]
    highest = [high for _, high in _run(steps, [_NO_LIMIT] * len(steps), meter.scheduling, {}).lost]
    for at in range(len(steps) - 2, -1, -1):
        if steps[at].epoch == steps[at + 1].epoch:
            highest[at] = min(highest[at], highest[at + 1])
    narrowed = _run(steps, highest, meter.scheduling, {})
    balances = iter(_run(steps, highest, meter.scheduling, narrowed.tables).balances)
    return [
        _complete_reading(step, next(balances), meter.scheduling) if isinstance(step, _Step) else step
        for step in meter.steps
    ]


@dataclass(slots=True)
class _Pass:
    balances: list[Balance] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    tables: dict[int, OffsetTracker] = field(default_factory=dict)


def _run(steps: list[_Step], highest: list[int], scheduling: Scheduling, learned: dict[int, OffsetTracker]) -> _Pass:
    done = _Pass()
    for step, at_most in zip(steps, highest, strict=True):
        if step.epoch not in done.tables:
            known = learned.get(step.epoch)
            done.tables[step.epoch] = OffsetTracker(by_count=dict(known.by_count) if known else {})
        tracker = done.tables[step.epoch]
        done.balances.append(
            balance_tokens(
                step.shape,
                step.instant,
                tracker,
                scheduling=scheduling,
                seconds=step.seconds,
                lost_at_most=at_most,
            )
        )
        done.lost.append((tracker.requests.low, tracker.requests.high))
    return done


def _complete_reading(step: _Step, balance: Balance, scheduling: Scheduling) -> Reading:
    sheet = draw_sheet(step.shape, balance, computed_tokens=step.computed_tokens)
    return replace(step.reading, balance=balance, sheet=sheet, scheduling=scheduling)


def _find_problem(engine: VllmEngine, shape: PoolShape | None) -> tuple[str, int | None]:
    if engine.is_asleep:
        return "the engine sleeps: its cache may not be in memory", None
    if shape is None:
        return "the number of blocks is not told (`num_gpu_blocks` is absent or None): give --num-blocks", None
    if engine.usage_ratio is None or engine.running is None:
        return f"the scrape has no {', '.join(engine.missing) or 'usage'}", None
    held = count_held_blocks(shape, engine.usage_ratio)
    if held is None:
        return (
            f"the gauge {engine.usage_ratio:.6f} is no whole number of the {shape.blocks:,} blocks: "
            "the block count belongs to another engine, or the gauge is rounded"
        ), None
    return "", held


def _count_computed(engine: VllmEngine) -> int | None:
    if engine.prompt_tokens is None or engine.generation_tokens is None:
        return None
    return engine.prompt_tokens + engine.generation_tokens + max(0, (engine.query_tokens or 0) - engine.prompt_tokens)


def _has_reset(before: VllmEngine | None, now: VllmEngine) -> bool:
    if before is None:
        return False
    for name in ("prompt_tokens", "generation_tokens", "preemptions"):
        earlier, later = getattr(before, name), getattr(now, name)
        if earlier is not None and later is not None and later < earlier:
            return True
    blocks = before.count_config("num_gpu_blocks"), now.count_config("num_gpu_blocks")
    return None not in blocks and blocks[0] != blocks[1]
