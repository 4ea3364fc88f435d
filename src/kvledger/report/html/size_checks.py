"""What must hold in a saved answer of ``size`` before a page is made of it."""

from __future__ import annotations

from kvledger.errors import SourceError
from kvledger.report.html.bounds import LARGEST, check_count, check_numbers
from kvledger.report.html.saved_size import SavedPlan, SavedSize, SavedSizeEngine, SavedSizeSheet

__all__ = ["check_size"]


def check_size(result: SavedSize, name: str) -> None:
    """Check one result.

    Raises:
        SourceError: Accounts do not sum to their pool, or numbers are no such numbers.
    """
    check_count(len(result.engines), "engines", name)
    if result.gpu is not None:
        check_numbers((result.gpu.memory_bytes,), f"`{name}`")
    for engine in result.engines:
        _check_engine(engine, f"`{name}`, `{engine.engine}`")


def _check_engine(engine: SavedSizeEngine, where: str) -> None:
    known = (engine.largest_max_model_len, engine.request_limit, engine.max_model_len)
    check_numbers((number for number in known if number is not None), where)
    if engine.memory is not None:
        memory = engine.memory
        check_count(min(64, len(memory.per_rank_bytes)), "ranks", where)
        check_numbers((*memory.per_rank_bytes, memory.low_bytes, memory.high_bytes), where)
        for term in memory.terms:
            check_numbers(map(abs, (term.value_bytes, term.low_bytes, term.high_bytes)), where)
            if not term.low_bytes <= term.value_bytes <= term.high_bytes:
                raise SourceError(f"{where} is damaged: {term.value_bytes} bytes are not in their own bounds")
    if engine.model_cost is not None:
        check_numbers((engine.model_cost.growth_bytes_per_token, engine.model_cost.fixed_bytes_per_sequence), where)
    if engine.plan is not None:
        _check_plan(engine.plan, where)
    for cost in engine.requests:
        sizes = (cost.units, cost.held_bytes, cost.needed_bytes, cost.used_ratio)
        check_numbers((cost.length_tokens, cost.requests, *sizes), where)
    for structure in (engine.structure, engine.load):
        if structure is not None:
            check_numbers((structure.length_tokens, structure.requests), where)
            for sheet in (*structure.ranks, structure.deployment):
                _check_sheet(sheet, where)


def _check_plan(plan: SavedPlan, where: str) -> None:
    for pool in plan.pools:
        check_numbers((pool.units, pool.null_units), where)
    for claim in plan.claims:
        sizes = (
            claim.window_tokens,
            claim.content_bytes,
            claim.padding_bytes,
            claim.request_units,
            claim.request_bytes,
        )
        check_numbers((claim.layers, claim.unit_tokens, *(size for size in sizes if size is not None)), where)


def _check_sheet(sheet: SavedSizeSheet, where: str) -> None:
    """Refuse a sheet whose accounts do not sum to the pool, or whose entries not to the accounts."""
    total, entries = sum(sheet.accounts.values()), sum(entry.value_bytes for entry in sheet.entries)
    least = min((*sheet.accounts.values(), *(entry.value_bytes for entry in sheet.entries)), default=0)
    if total != sheet.capacity_bytes or entries != total or not 0 < total <= LARGEST or least < 0:
        raise SourceError(
            f"{where}: the books do not balance, the accounts sum to {total} and their parts to {entries} of a pool of "
            f"{sheet.capacity_bytes}"
        )
    check_numbers((sheet.ranks, abs(sheet.unallocated_bytes)), where)
