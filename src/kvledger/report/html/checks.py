"""What must hold in a result before a page is made of it; the file may come from anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvledger.errors import SourceError
from kvledger.ledger import Account
from kvledger.report.html.bounds import LARGEST, TOLERANCE, check_count, check_numbers, check_shares
from kvledger.report.html.clean import clean_text
from kvledger.report.html.saved import Ratios, SavedLayout, SavedPoint, SavedReplay
from kvledger.report.html.saved_check import SavedCheck
from kvledger.report.html.saved_log import SavedLog, SavedLogEngine
from kvledger.report.html.saved_measure import SavedMeasure, SavedSheet
from kvledger.report.html.saved_prove import SavedProve
from kvledger.report.html.saved_sharing import SavedSharing
from kvledger.report.html.saved_size import SavedSize
from kvledger.report.html.saved_sweep import SavedSweep
from kvledger.report.html.saved_traffic import SavedCache, SavedTraceFile
from kvledger.report.html.size_checks import check_size
from kvledger.report.html.traffic_checks import check_cache, check_limits, check_trace

__all__ = ["Result", "check_result"]

Result = (
    SavedReplay
    | SavedMeasure
    | SavedProve
    | SavedSweep
    | SavedSharing
    | SavedLog
    | SavedSize
    | SavedCache
    | SavedTraceFile
    | SavedCheck
)

_MOST_PIECES = 4_096
_MOST_LAYOUTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What is checked of one book."""

    name: str
    capacity: int
    means: Sequence[Ratios]
    timeline: Sequence[SavedPoint] = ()


def check_result(result: Result, name: str) -> None:
    """Check one result.

    Raises:
        SourceError: Accounts do not sum to their pool, or numbers are no such numbers.
    """
    match result:
        case SavedReplay():
            for policy in result.policies:
                for pool in policy.pools or ():
                    check_numbers((pool.tokens, pool.token_bytes, pool.refused), f"`{name}`, `{policy.policy}`")
                    check_shares((pool.mean_held_ratio, pool.saturated_held_ratio, pool.peak_held_ratio), f"`{name}`")
                for layout in policy.layouts[:_MOST_LAYOUTS]:
                    _check_layout(layout, policy.capacity_bytes, f"`{name}`, `{policy.policy}`")
            _check_books(_of_replay(result), name)
        case SavedMeasure():
            for source in result.sources:
                for engine in (*source.engines, *source.pools):
                    for reading in (engine.last, engine.peak):
                        if reading is not None and reading.ledger is not None:
                            _check_sheet(reading.ledger, f"`{name}`, engine {engine.engine}")
            _check_books(_of_measure(result), name)
        case SavedProve():
            _check_prove(result, name)
        case SavedSweep():
            _check_sweep(result, name)
        case SavedSharing():
            _check_sharing(result, name)
        case SavedLog():
            check_count(len(result.engines), "engines", name)
            for one in result.engines:
                _check_log(one, name)
        case SavedSize():
            check_size(result, name)
        case SavedCache():
            check_cache(result, name)
        case SavedTraceFile():
            check_trace(result, name)
        case SavedCheck():
            check_limits(result, name)


def _of_replay(result: SavedReplay) -> list[_Entry]:
    return [
        _Entry(name=p.policy, capacity=p.capacity_bytes, means=(p.mean_ratio, p.saturated_ratio), timeline=p.timeline)
        for p in result.policies
    ]


def _of_measure(result: SavedMeasure) -> list[_Entry]:
    return [
        _Entry(name=f"engine {e.engine} of {s.name}", capacity=1, means=(_known(e.mean_ratio),), timeline=e.timeline)
        for s in result.sources
        for e in (*s.engines, *s.pools)
    ]


def _check_books(books: Sequence[_Entry], name: str) -> None:
    check_count(len(books), "policies or engines", name)
    for book in books:
        where = f"`{name}`, `{book.name}`"
        if not 0 < book.capacity <= LARGEST:
            raise SourceError(f"`{name}` is damaged: the pool of `{book.name}` has {book.capacity} bytes")
        for ratios in book.means:
            _check_ratios(ratios, where)
        _check_timeline(book.timeline, where)


def _check_layout(layout: SavedLayout, capacity: int, where: str) -> None:
    """Refuse a map whose accounts do not sum to the pool, or whose columns are no map of it."""
    total = sum(layout.accounts_bytes.values())
    if total != capacity or any(value < 0 for value in layout.accounts_bytes.values()):
        raise SourceError(f"{where}: the books do not balance, the accounts of a map sum to {total}, not {capacity}")
    columns: list[list[int]] = []
    if layout.pieces is not None:
        p = layout.pieces
        columns = [p.request, p.start_bytes, p.end_bytes, p.size_bytes, p.used_bytes, p.reserved_bytes]
    if layout.blocks is not None:
        b = layout.blocks
        columns = [b.held_bytes, b.used_bytes, b.cached_bytes, b.shared_blocks]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or min(lengths) > _MOST_PIECES or any(not 0 <= n <= LARGEST for c in columns for n in c):
        raise SourceError(f"{where} is damaged: its map has columns of {sorted(lengths)} numbers")


def _check_sheet(sheet: SavedSheet, where: str) -> None:
    """Refuse a ledger whose accounts do not sum to the pool, or whose bounds are none."""
    accounts, capacity = sheet.accounts, sheet.capacity
    if sum(accounts.values()) != capacity or not 0 < capacity <= LARGEST or min(accounts.values(), default=0) < 0:
        total = sum(accounts.values())
        raise SourceError(f"{where}: the books do not balance, the accounts sum to {total} of a pool of {capacity}")
    for figure in sheet.figures:
        if not 0 <= figure.low <= (2**62 if figure.high is None else figure.high) <= 2**62:
            raise SourceError(f"{where} is damaged: `{figure.name}` is from {figure.low} to {figure.high}")


def _check_prove(result: SavedProve, name: str) -> None:
    check_count(len(result.sides), "ways", name)
    check_numbers(
        (result.requests, result.prompt_tokens, result.output_tokens, result.memory_bytes, result.token_bytes), name
    )
    for side in result.sides:
        where = f"`{name}`, `{side.way}`"
        if side.failure is None and side.capacity_bytes <= 0 and side.ratio is not None:
            raise SourceError(f"{where} is damaged: its pool has {side.capacity_bytes} bytes")
        for ratios in (side.mean_ratio, side.saturated_ratio):
            if ratios is not None:
                _check_ratios(ratios, where)
        numbers = (side.capacity_bytes, side.mean_running, side.saturated_running, side.peak_running, side.seconds)
        more = (side.tokens_per_second, side.prefill_tokens, side.prefill_seconds, side.decode_tokens)
        check_numbers((*numbers, *more, side.decode_seconds, side.preemptions), where)
        if side.agreement is not None:
            a = side.agreement
            check_numbers((a.same, a.tie, a.different, a.missing), where)


def _check_sweep(result: SavedSweep, name: str) -> None:
    if not result.rows and not result.failures:
        raise SourceError(f"`{name}` has no row, so there is nothing to draw", hint="run the sweep again")
    for row in result.rows:
        check_shares((row.used_ratio, row.wasted_ratio), f"`{name}`, cell {row.cell}")
        times = (row.queue_p99_seconds, row.first_token_p99_seconds, row.output_tokens_per_second)
        counts = (row.preemptions, row.rejected, row.truncated, row.finished, row.mean_running, row.wasted_bytes)
        check_numbers((*counts, *(t for t in times if t is not None)), f"`{name}`, cell {row.cell}")


def _check_sharing(result: SavedSharing, name: str) -> None:
    check_count(len(result.rows), "rows", name)
    answers = list(result.rows[0].block_saving_ratio)
    if not answers or len(answers) > 16 or not all(a.isdecimal() and len(a) < 6 for a in answers):
        raise SourceError(f"`{name}` is damaged: it has no numbers of answers")
    for row in result.rows:
        columns = (row.block_saving_ratio, row.running_forked, row.running_alone)
        if any(list(column) != answers for column in columns):
            raise SourceError(
                f"`{name}` is damaged: not every row of `{row.workload}` has {', '.join(answers)} answers"
            )
        published = (row.published_low_ratio, row.published_high_ratio)
        check_shares((*row.block_saving_ratio.values(), *published), f"`{name}`, `{row.workload}`")
        check_numbers((*row.running_forked.values(), *row.running_alone.values()), f"`{name}`, `{row.workload}`")


def _check_log(engine: SavedLogEngine, name: str) -> None:
    where = f"`{name}`, engine {engine.engine_index}"
    for quantity in (engine.tokens, engine.size_bytes, engine.blocks, engine.block_tokens, engine.max_model_len):
        if quantity is not None:
            check_numbers((quantity.low, quantity.value, quantity.high), where)
            if not quantity.low <= quantity.value <= quantity.high:
                raise SourceError(f"{where} is damaged: {quantity.value:g} is not in its own bounds")
    if engine.load is not None:
        load = engine.load
        spans = (load.held_ratio, load.used_ratio or load.held_ratio)
        check_shares([*(n for span in spans for n in span), load.mean_held_ratio], where)
        check_numbers((load.lines, load.running, load.waiting or 0, load.reserved_ratio or 0), where)
        if any(low > high + TOLERANCE for low, high in spans):
            raise SourceError(f"{where} is damaged: the bounds of a share are {spans[0][0]:g} to {spans[0][1]:g}")


def _known(ratios: Mapping[str, float | None]) -> dict[str, float]:
    return {account: 0.0 if ratio is None else ratio for account, ratio in ratios.items()}


def _check_ratios(ratios: Mapping[str, float], where: str) -> None:
    """Refuse shares that are no partition: they sum to 1, or are all 0 where there was nothing to share."""
    unknown = set(ratios) - {str(account) for account in Account}
    if unknown:
        raise SourceError(f"{where} has the account `{clean_text(min(unknown), longest=40)}`, which does not exist")
    total = math.fsum(ratios.values())
    whole = abs(total - 1) <= TOLERANCE or not any(ratios.values())
    if not whole or any(not -TOLERANCE <= r <= 1 + TOLERANCE for r in ratios.values()):
        raise SourceError(
            f"{where}: the books do not balance, the accounts sum to {total:.6f} of the pool",
            hint="the file was changed or damaged; run the command that wrote it again",
        )


def _check_timeline(timeline: Sequence[SavedPoint], where: str) -> None:
    before = -math.inf
    for point in timeline:
        _check_ratios(point.ratio, where)
        numbers = (point.start_seconds, point.seconds, point.running or 0.0, point.waiting or 0.0)
        if point.start_seconds < before or not all(0 <= n < 1e15 for n in numbers):
            raise SourceError(f"{where} is damaged: its timeline does not go on at {point.start_seconds:g} s")
        before = point.start_seconds
