"""From scrapes to readings: one meter follows all engines of one server through restarts.

A reading is made at once from what is known so far (:meth:`Meter.take`). Later samples often settle what an earlier
one left open (whether a waiting request was preempted or its client had gone), so :meth:`Meter.settle` reads the
samples of the window a second time with that knowledge.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvledger.engines.facts import StartupFacts
from kvledger.engines.vllm.metrics import Generation, VllmEngine, VllmScrape
from kvledger.measure.balance import Balance, Instant, Scheduling, balance_tokens, infer_scheduling
from kvledger.measure.figure import Span
from kvledger.measure.logged_pool import read_logged_pool
from kvledger.measure.offsets import OffsetTracker, read_differences
from kvledger.measure.pool import PoolShape, count_held_blocks, read_pool_shape
from kvledger.measure.pressure import RECOMPUTED_SECONDS, PressureTracker
from kvledger.measure.reuse import ReuseTracker
from kvledger.measure.sheet import Sheet, draw_sheet
from kvledger.measure.tear import TearDetector
from kvledger.units import counted

__all__ = ["WINDOW_SAMPLES", "Meter", "Reading", "shown_name"]

WINDOW_SAMPLES = 10_000
"""Samples of each engine that are kept for the second pass."""
_NO_LIMIT = 2**61
_CLOCK_SLACK_SECONDS = 2.0
_MOST_EPOCHS = 500
"""Restarts of which the traffic is kept: a server may crash in a loop for a week."""

_NO_BLOCKS = "the number of blocks is not told (`num_gpu_blocks` is absent or None): give the start-up log with `--log`"
_NO_BLOCKS_IN_LOG = (
    "the number of blocks is not told: `num_gpu_blocks` is absent or None, and the log names none for one block table"
)

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
    cached_blocks: Span


@dataclass(slots=True)
class _EngineMeter:
    index: int
    steps: deque[_Step | Reading]
    epoch: int = 0
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    reuse: ReuseTracker = field(default_factory=ReuseTracker)
    tears: TearDetector = field(default_factory=TearDetector)
    scheduling: Scheduling = Scheduling.UNKNOWN
    last: VllmEngine | None = None
    shape: PoolShape | None = None
    spans: deque[tuple[VllmEngine, VllmEngine]] = field(default_factory=lambda: deque(maxlen=_MOST_EPOCHS))
    is_new_epoch: bool = False
    pressure: PressureTracker = field(default_factory=PressureTracker)

    def restart(self) -> None:
        self.epoch += 1
        self.tracker, self.reuse, self.tears = OffsetTracker(), ReuseTracker(), TearDetector()
        self.pressure = PressureTracker()
        self.is_new_epoch = True

    def note(self, engine: VllmEngine) -> None:
        """Keep the first and the last scrape of this epoch."""
        if self.last is None or self.is_new_epoch:
            self.spans.append((engine, engine))
        else:
            self.spans[-1] = (self.spans[-1][0], engine)
        self.last, self.is_new_epoch = engine, False


class Meter:
    """Follows the engines of one server; :meth:`take` mutates and costs a fraction of a millisecond.

    ``started`` is what the start-up log tells, for metrics without the number of blocks. ``window_samples`` bounds
    what :meth:`settle` can read again; one that only takes needs no more than 1.
    """

    def __init__(
        self,
        *,
        complete: Completion | None = None,
        started: StartupFacts | None = None,
        scheduling: Scheduling = Scheduling.UNKNOWN,
        window_samples: int = WINDOW_SAMPLES,
    ) -> None:
        self._complete = complete or (lambda shape, _: shape)
        self._log = started
        self._scheduling = scheduling
        self._window_samples = window_samples
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
            meter = self._engines.get(engine.index)
            if meter is None:
                steps: deque[_Step | Reading] = deque(maxlen=self._window_samples)
                meter = _EngineMeter(index=engine.index, scheduling=self._scheduling, steps=steps)
                self._engines[engine.index] = meter
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
        engines = sum(other.replica == engine.replica for other in scrape.engines)
        shape = read_pool_shape(engine, engines=engines) or read_logged_pool(engine, self._log, engines=engines)
        shape = self._complete(shape, engine) if shape is not None else None
        if shape == meter.shape:  # one object for all samples of a pool: thousands of them are kept
            shape = meter.shape
        meter.shape = shape
        bare = Reading(
            seconds=seconds,
            engine_index=engine.index,
            epoch=meter.epoch,
            model=None if engine.model is None else sys.intern(shown_name(engine.model)),
            running=engine.running,
            waiting=engine.waiting,
            usage_ratio=engine.usage_ratio,
            preemptions=engine.preemptions,
            shape=shape,
        )
        problem, held = _find_problem(engine, shape, has_log=self._log is not None)
        if problem or shape is None or held is None or engine.running is None:
            meter.steps.append(replace(bare, problem=problem))
            return replace(bare, problem=problem)
        is_torn = meter.tears.is_torn(engine)
        countable = engine.generation is Generation.V1 and not is_torn
        instant = Instant(
            held_blocks=held,
            running=engine.running,
            waiting=engine.waiting,
            differences=read_differences(engine) if countable else None,
            is_torn=is_torn,
            is_speculative=bool(engine.draft_tokens),
            is_skewed=scrape.is_multiprocess,
            may_recompute=meter.pressure.ask(
                shape, None if is_torn else engine, held_blocks=held, seconds=seconds, scheduling=meter.scheduling
            ),
        )
        balance = balance_tokens(shape, instant, meter.tracker, scheduling=meter.scheduling, seconds=seconds)
        if meter.scheduling is Scheduling.UNKNOWN:
            meter.scheduling = infer_scheduling(shape, instant, balance)
        meter.pressure.note(balance, is_idle=not engine.running and not engine.waiting, seconds=seconds)
        meter.reuse.under_way = 1 if meter.scheduling is Scheduling.IN_STEP else 2
        cached = meter.reuse.bound_cached(shape, None if is_torn else engine, balance)
        step = _Step(seconds, meter.epoch, instant, shape, bare, cached)
        meter.steps.append(step)
        return _complete_reading(step, balance, meter.scheduling)


def _settle(meter: _EngineMeter) -> list[Reading]:
    steps = [step for step in meter.steps if isinstance(step, _Step)]
    highest = [high for _, high in _run(steps, [_NO_LIMIT] * len(steps), meter.scheduling, {}).lost]
    for at in range(len(steps) - 2, -1, -1):
        if steps[at].epoch == steps[at + 1].epoch:
            highest[at] = min(highest[at], highest[at + 1])
    steps = _clear_recomputing(steps, _run(steps, highest, meter.scheduling, {}))
    narrowed = _run(steps, highest, meter.scheduling, {})
    if meter.scheduling is Scheduling.UNKNOWN:
        proofs = (infer_scheduling(s.shape, s.instant, b) for s, b in zip(steps, narrowed.balances, strict=True))
        meter.scheduling = next((proof for proof in proofs if proof is not Scheduling.UNKNOWN), Scheduling.UNKNOWN)
    balances = iter(_run(steps, highest, meter.scheduling, narrowed.tables).balances)
    whole = iter(steps)
    return [
        _complete_reading(next(whole), next(balances), meter.scheduling) if isinstance(step, _Step) else step
        for step in meter.steps
    ]


def _clear_recomputing(steps: list[_Step], known: _Pass) -> list[_Step]:
    """Return the steps without the suspicion of a request being computed again, where later samples clear it.

    vLLM counts a preemption when the request emits again. If the counter is the same at a later sample where nobody
    can be waiting for that, and nobody was lost meanwhile, nobody was at this one.
    """
    cleared = list(steps)
    clean: int | None = None
    later: deque[int] = deque()
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if clean is not None and steps[clean].epoch != step.epoch:
            clean = None
            later.clear()
        while later and steps[later[0]].seconds - step.seconds > 2 * RECOMPUTED_SECONDS and len(later) > 1:
            later.popleft()
        proofs = [n for n in (clean, _find_after(steps, later, step.seconds + RECOMPUTED_SECONDS)) if n is not None]
        balance = known.balances[at]
        if step.instant.may_recompute and balance.preempted.high == 0:
            if any(_says_the_same(steps[n], step) and known.lost[n] == known.lost[at] for n in proofs):
                cleared[at] = replace(step, instant=replace(step.instant, may_recompute=False))
        elif balance.preempted.high == 0:
            clean = at
        later.append(at)
    return cleared


def _find_after(steps: list[_Step], later: deque[int], seconds: float) -> int | None:
    """Return the earliest of the later samples that is at or after a time; they are kept latest first."""
    found = None
    for at in later:
        if steps[at].seconds < seconds:
            break
        found = at
    return found


def _says_the_same(later: _Step, step: _Step) -> bool:
    count = step.reading.preemptions
    return count is not None and count == later.reading.preemptions and step.epoch == later.epoch


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
    sheet = draw_sheet(step.shape, balance, running=step.instant.running, cached_blocks=step.cached_blocks)
    return replace(step.reading, balance=balance, sheet=sheet, scheduling=scheduling)


def shown_name(model: str) -> str:
    """Return the served name; of a path only its last part, since output holds no paths."""
    if not model.startswith(("/", "./", "../", "~")):
        return model
    return model.rstrip("/").rpartition("/")[2]


def _find_problem(engine: VllmEngine, shape: PoolShape | None, *, has_log: bool) -> tuple[str, int | None]:
    if engine.is_asleep:
        return "the engine sleeps: its cache may not be in memory", None
    if shape is None:
        return _NO_BLOCKS_IN_LOG if has_log else _NO_BLOCKS, None
    if engine.usage_ratio is None or engine.running is None:
        return f"the scrape has no {', '.join(engine.missing) or 'usage'}", None
    held = count_held_blocks(shape, engine.usage_ratio)
    if held is None:
        return (
            f"the gauge {engine.usage_ratio:.6f} is no whole number of the {counted(shape.blocks, 'block')}: "
            "the block count belongs to another engine, or the gauge is rounded"
        ), None
    return "", held


def _has_reset(before: VllmEngine | None, now: VllmEngine) -> bool:
    if before is None:
        return False
    if before.replica != now.replica:
        return True
    for name in ("prompt_tokens", "generation_tokens", "preemptions"):
        earlier, later = getattr(before, name), getattr(now, name)
        if earlier is not None and later is not None and later < earlier:
            return True
    blocks = before.count_config("num_gpu_blocks"), now.count_config("num_gpu_blocks")
    return None not in blocks and blocks[0] != blocks[1]
