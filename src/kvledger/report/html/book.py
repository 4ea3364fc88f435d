"""What a page shows side by side: a book is one policy of a replay, one engine of a measurement, one way of a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvledger.ledger import Account
from kvledger.replay.outcome import is_held_up
from kvledger.report.html.checks import Result
from kvledger.report.html.layout import thin_layouts
from kvledger.report.html.reading import Run
from kvledger.report.html.saved import SavedLayout, SavedPolicy, SavedReplay
from kvledger.report.html.saved_measure import SavedEngine, SavedMeasure, SavedSource
from kvledger.report.html.saved_prove import SavedProve, SavedSide
from kvledger.report.html.timeline import Timeline, timeline_of

__all__ = ["Book", "books_of"]

_MOST_POINTS = 2_048
_ALL_POINTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """One pool over time.

    ``key`` is unique on the page; ``run`` is the index of its run; ``waiting`` tells whether ``ratio`` are means while
    requests waited. ``policy``, ``engine`` or ``side`` is what the numbers were taken from.
    """

    key: str
    run: int
    name: str
    capacity: int
    unit: str
    ratio: Mapping[Account, float]
    waiting: bool
    running: float | None
    timeline: Timeline | None
    layouts: Sequence[SavedLayout] = ()
    policy: SavedPolicy | None = None
    engine: SavedEngine | None = None
    side: SavedSide | None = None

    @property
    def ran(self) -> bool:
        """Whether there was any time to take means over: a policy that rejects every request has none."""
        return any(self.ratio.values())

    @property
    def meaning(self) -> str:
        """What the policy, or the way, does."""
        return self.policy.meaning if self.policy else self.side.meaning if self.side else ""


def books_of(runs: Sequence[Run]) -> list[Book]:
    """Return the books of all runs, with timelines that fit one page together."""
    count = sum(_count(run.result) for run in runs)
    most = max(64, min(_MOST_POINTS, _ALL_POINTS // max(1, count)))
    replays = [run.result for run in runs if isinstance(run.result, SavedReplay)]
    maps = sum(len(policy.layouts) for result in replays for policy in result.policies)
    books = []
    for number, run in enumerate(runs):
        if isinstance(run.result, SavedReplay):
            for index, policy in enumerate(run.result.policies):
                layouts = thin_layouts(policy.layouts, of=maps)
                books.append(_of_policy(policy, layouts, run=number, index=index, most=most))
        elif isinstance(run.result, SavedMeasure):
            books += _of_engines(run.result, run=number, most=most)
        elif isinstance(run.result, SavedProve):
            books += _of_sides(run.result, run=number)
    return books


def _count(result: Result) -> int:
    if isinstance(result, SavedReplay):
        return len(result.policies)
    return sum(len(s.engines) + len(s.pools) for s in result.sources) if isinstance(result, SavedMeasure) else 0


def _of_policy(policy: SavedPolicy, layouts: Sequence[SavedLayout], *, run: int, index: int, most: int) -> Book:
    waiting = is_held_up(saturated_seconds=policy.saturated_seconds, busy_seconds=policy.busy_seconds)
    ratio = policy.saturated_ratio if waiting else policy.mean_ratio
    return Book(
        key=f"{run}.{index}",
        run=run,
        name=policy.policy,
        capacity=policy.capacity_bytes,
        unit="bytes",
        ratio={account: ratio.get(account, 0.0) for account in Account},
        waiting=waiting,
        running=policy.saturated_running if waiting else policy.mean_running if policy.busy_seconds else None,
        timeline=timeline_of(policy.timeline, most=most, sampled=False),
        layouts=layouts,
        policy=policy,
    )


def _of_engines(result: SavedMeasure, *, run: int, most: int) -> list[Book]:
    books = []
    several = _count(result) > 1
    for number, source in enumerate(result.sources):
        for position, engine in enumerate((*source.engines, *source.pools)):
            sheet = engine.last.ledger or (engine.peak.ledger if engine.peak else None)
            if sheet is None or not 1 <= sheet.capacity <= 2**60:
                continue
            running = [p.running for p in engine.timeline if p.running is not None]
            books.append(
                Book(
                    key=f"{run}.{number}.{position}",
                    run=run,
                    name=_name(source, engine, several=several),
                    capacity=sheet.capacity,
                    unit="bytes" if sheet.unit == "bytes" else "tokens",
                    ratio={account: engine.mean_ratio.get(account) or 0.0 for account in Account},
                    waiting=False,
                    running=sum(running) / len(running) if running else engine.last.running,
                    timeline=timeline_of(engine.timeline, most=most, sampled=True),
                    engine=engine,
                )
            )
    return books


def _of_sides(result: SavedProve, *, run: int) -> list[Book]:
    return [
        Book(
            key=f"{run}.{index}",
            run=run,
            name=side.way,
            capacity=side.capacity_bytes,
            unit="bytes",
            ratio={account: side.ratio.get(account, 0.0) for account in Account},
            waiting=side.saturated_ratio is not None,
            running=side.saturated_running or side.mean_running,
            timeline=None,
            side=side,
        )
        for index, side in enumerate(result.sides)
        if side.failure is None and side.ratio is not None
    ]


def _name(source: SavedSource, engine: SavedEngine, *, several: bool) -> str:
    """Return what tells an engine, or one of its pools, from the others of its measurement."""
    if not several:
        return engine.model or source.name
    if isinstance(engine.engine, int):
        return f"{source.name} · {engine.engine}"
    parts = (source.name, str(engine.engine_index), engine.rank or "", engine.pool if engine.pool != "kv" else "")
    return " · ".join(part for part in parts if part)
