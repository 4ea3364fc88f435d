"""From the options of ``cache`` to its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvledger.cli.answer import source_name
from kvledger.cli.clocks import clock_of, fit_part
from kvledger.cli.cost import Cost, cost_of
from kvledger.cli.grouping import notes_on_every_layer
from kvledger.cli.question import DEFAULTS, Question
from kvledger.cli.running import KernelNotice, progress_bar
from kvledger.errors import UsageError
from kvledger.pool.policy import Kind, Policy
from kvledger.replay.cache import BlockStream, Eviction, cut_blocks, grain_of, measure_cache
from kvledger.replay.outcome import Outcome
from kvledger.replay.settings import Pool, Settings
from kvledger.replay.simulate import replay
from kvledger.sources.files import load_trace
from kvledger.traces import Trace
from kvledger.units import counted, parse_bytes

if TYPE_CHECKING:
    from kvledger.report.cache import CacheReport, LivePoint

__all__ = ["CacheQuestion", "ask", "parse_budgets", "parse_evictions"]

_MOST_BUDGETS = 64
_DEFAULT_BLOCK = 16
_SMALLEST = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheQuestion:
    """The options of ``cache``, as given."""

    trace: str
    model: str | None
    bytes_per_token: int | None
    kv_dtype: str | None
    budget: str | None
    eviction: str
    block_size: int | None
    warm_up: float
    live: bool
    clock: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    columns: str | None
    content: str | None
    session_starts: str
    seed: int
    quiet: bool


def ask(question: CacheQuestion) -> CacheReport:
    """Answer the question: load, cut into blocks, run every budget, and gather the report.

    Raises:
        UsageError: A setting cannot be used, or the trace does not tell what its requests share.
        SourceError: The trace or the model cannot be read.
    """
    from kvledger.report.cache import CacheReport

    evictions = parse_evictions(question.eviction)
    given = parse_budgets(question.budget) if question.budget is not None else None
    cost = _cost(question)
    if question.live and fit_part(question.clock) is not None:
        raise UsageError("cache --live cannot fit a clock", hint="fit it with replay, and give its four numbers here")
    clock = clock_of(question.clock, cost) if question.live else None
    trace = load_trace(
        question.trace,
        columns=question.columns,
        seed=question.seed,
        session_starts=question.session_starts,
        content=question.content,
    )
    block = question.block_size or grain_of(trace.workload) or _DEFAULT_BLOCK
    notice = KernelNotice(quiet=question.quiet)
    with notice.compiling("cache"):
        stream = cut_blocks(trace.workload, block_size=block, whole_blocks=False)
        budgets = given or _doublings(stream.distinct * block * cost.bytes_per_token)
        sizes = [budget // (block * cost.bytes_per_token) for budget in budgets]
        points = measure_cache(stream, sizes=sizes, evictions=evictions, warm_up_ratio=question.warm_up)
        (ceiling,) = measure_cache(
            stream, sizes=[stream.distinct], evictions=[Eviction.LRU], warm_up_ratio=question.warm_up
        )
    live: list[LivePoint] = []
    if clock is not None:
        longest = question.max_model_len or max(2, trace.workload.longest_tokens + 1)
        settings = Settings(
            max_model_len=longest,
            max_num_seqs=question.max_num_seqs,
            max_num_batched_tokens=question.max_num_batched_tokens,
            clock=clock,
        )
        live = _Live(trace, cost, block, settings, notice).run(budgets, sizes, evictions)
    return CacheReport(
        source=source_name(question.trace),
        trace=trace,
        model=cost.name,
        bytes_per_token=cost.bytes_per_token,
        block_size=block,
        distinct_blocks=stream.distinct,
        warm_up_ratio=question.warm_up,
        budgets=budgets,
        evictions=evictions,
        points=points,
        ceiling=ceiling,
        live=live,
        clock=clock,
        notes=(*cost.notes, *notes_on_every_layer(cost)),
    )


def _cost(question: CacheQuestion) -> Cost:
    given = {name: getattr(question, name) for name in ("trace", "model", "bytes_per_token", "kv_dtype")}
    return cost_of(Question(**DEFAULTS | given), needs_layers=False)


class _Live:
    """Replays the traffic with a prefix cache of every budget that the largest request fits, and every eviction."""

    def __init__(self, trace: Trace, cost: Cost, block: int, settings: Settings, notice: KernelNotice) -> None:
        self._trace, self._cost, self._block = trace, cost, block
        self._settings, self._notice = settings, notice

    def run(self, budgets: list[int], sizes: list[int], evictions: list[Eviction]) -> list[LivePoint]:
        from kvledger.report.cache import LivePoint

        workload = self._trace.workload
        whole = cut_blocks(workload, block_size=self._block, whole_blocks=True)
        largest = -(-workload.longest_tokens // self._block)
        return [
            LivePoint(
                budget_bytes=budget,
                blocks=size,
                eviction=eviction,
                alone_ratio=_alone(whole, size, eviction),
                outcome=self._replay(size, eviction) if size >= largest else None,
            )
            for budget, size in zip(budgets, sizes)
            for eviction in evictions
        ]

    def _replay(self, blocks: int, eviction: Eviction) -> Outcome:
        workload = self._trace.workload
        policy = Policy(name="paged", kind=Kind.PAGED, block_size=self._block, prefix_caching=True, eviction=eviction)
        pool = Pool(bytes_per_token=self._cost.bytes_per_token, num_blocks=blocks, block_size=self._block)
        with (
            self._notice.around(policy),
            progress_bar(
                f"{counted(blocks, 'block')}, {eviction}", len(workload), quiet=self._notice.quiet
            ) as progress,
        ):
            return replay(workload, policy, pool=pool, settings=self._settings, progress=progress)


def _alone(stream: BlockStream, size: int, eviction: Eviction) -> float:
    (point,) = measure_cache(stream, sizes=[size], evictions=[eviction], warm_up_ratio=0.0)
    return point.whole_hit_ratio


def parse_evictions(text: str) -> list[Eviction]:
    """Read ``lru,fifo,belady``.

    Raises:
        UsageError: A name is unknown.
    """
    names = dict.fromkeys(part.strip() for part in text.split(","))
    try:
        return [Eviction(name) for name in names]
    except ValueError:
        unknown = next(name for name in names if name not in list(Eviction))
        raise UsageError(f"unknown eviction `{unknown[:40]}`", hint=f"they are {', '.join(Eviction)}") from None


def parse_budgets(text: str) -> list[int]:
    """Read sizes such as ``1GiB,64GiB``; between two of them ``...`` stands for doubling.

    Raises:
        UsageError: A part is no size, the dots have no size on both sides, or there are too many.

    >>> [budget >> 30 for budget in parse_budgets("1GiB,...,8GiB")]
    [1, 2, 4, 8]
    """
    budgets: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for i, part in enumerate(parts):
        if part == "...":
            if i == 0 or i == len(parts) - 1 or parts[i - 1] == "...":
                raise UsageError(f"`...` in --budget {text[:80]} needs a size on both sides", hint="1GiB,...,8TiB")
            continue
        size = parse_bytes(part)
        if i and parts[i - 1] == "...":
            while 0 < 2 * budgets[-1] < size:
                budgets.append(2 * budgets[-1])
        budgets.append(size)
    if min(budgets) < 1:
        raise UsageError("--budget has a size of 0", hint="give sizes above zero, such as 1GiB,...,8TiB")
    if len(budgets) > _MOST_BUDGETS:
        raise UsageError(f"--budget lists {counted(len(budgets), 'size')}, more than {_MOST_BUDGETS}")
    return sorted(set(budgets))


def _doublings(whole_bytes: int) -> list[int]:
    """Return sizes from 1 GiB (or a 4,096th of the whole, if that is less) up to the first that holds everything."""
    size = _SMALLEST
    while size > 1 and size > whole_bytes // 4096:
        size //= 2
    size = max(size, _SMALLEST) if whole_bytes > 16 * _SMALLEST else max(1, size)
    budgets = [size]
    while budgets[-1] < whole_bytes and len(budgets) < _MOST_BUDGETS:
        budgets.append(2 * budgets[-1])
    return budgets
