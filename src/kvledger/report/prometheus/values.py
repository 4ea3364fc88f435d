"""What metrics read off one instant: values by labels, in the units of the table of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kvledger.measure.figure import Figure, Span
from kvledger.report.prometheus.instant import PoolInstant

__all__ = [
    "Rows", "Values", "read_accounts", "read_admitted", "read_available", "read_bounds", "read_figures", "read_one",
    "read_requests", "read_reserved", "read_reserved_use", "read_shares",
]  # fmt: skip

_NO_LIMIT = 2**60
"""From here on nothing bounds a number, and it has no series."""

Values = Iterator[tuple[tuple[str, ...], float]]
"""The values of the labels of a metric, and its value."""

Rows = Callable[[PoolInstant], Iterable[tuple[tuple[str, ...], Span]]]
"""The same with an interval."""


def read_one(value: float | None) -> Values:
    """Return a value without labels; nothing when it is None."""
    if value is not None:
        yield (), value


def read_accounts(unit: str) -> Callable[[PoolInstant], Values]:
    """Return the reader of the accounts of sheets in this unit."""

    def read(one: PoolInstant) -> Values:
        if one.sheet is not None and one.sheet.unit == unit:
            for account, amount in one.sheet.ledger.accounts().items():
                yield (account.value,), amount

    return read


def read_available(unit: str) -> Callable[[PoolInstant], Values]:
    """Return the reader of what can be taken, of sheets in this unit."""
    return lambda one: read_one(one.sheet.available if one.sheet is not None and one.sheet.unit == unit else None)


def read_bounds(end: str, rows: Rows) -> Callable[[PoolInstant], Values]:
    """Return the reader of one end of intervals; without a value where nothing bounds it."""

    def read(one: PoolInstant) -> Values:
        for labels, span in rows(one):
            value = span.low if end == "low" else span.high
            if value < _NO_LIMIT:
                yield labels, value

    return read


def read_figures(unit: str) -> Rows:
    """Return the reader of the figures in bytes or in tokens, with how each is known."""

    def rows(one: PoolInstant) -> Iterator[tuple[tuple[str, ...], Span]]:
        if one.sheet is None:
            return
        figures = {figure.name: figure for figure in one.sheet.figures}
        if one.sheet.unit == unit:
            yield from ((_known(figure), figure.span) for figure in figures.values())
        elif unit == "tokens" and one.balance is not None:
            balance = one.balance
            spans = {"held": Span.exact(balance.held), "used": balance.used, "internal": balance.internal}
            spans |= {"shared_saving": balance.shared_saving} | ({"live": balance.live} if balance.live else {})
            in_slots = one.structure != "groups"
            yield from (
                (_known(figures[name]), span) for name, span in spans.items() if in_slots or name in ("held", "live")
            )

    return rows


def _known(figure: Figure) -> tuple[str, str]:
    return figure.name, figure.accuracy.value


def read_shares(end: str) -> Callable[[PoolInstant], Values]:
    """Return the reader of one end of the figures as shares of the pool."""

    def read(one: PoolInstant) -> Values:
        if one.sheet is not None and one.sheet.ledger.capacity:
            capacity = one.sheet.ledger.capacity
            for figure in one.sheet.figures:
                value = figure.low if end == "low" else figure.high
                if value < _NO_LIMIT:
                    yield _known(figure), value / capacity

    return read


def read_requests(one: PoolInstant) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Yield the requests that counters and gauge do not see alike."""
    if one.balance is not None:
        yield ("preempted",), one.balance.preempted
        yield ("prefilling",), one.balance.prefilling


def read_reserved(one: PoolInstant) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Yield what each way to reserve would hold."""
    if one.counterfactual is not None:
        for item in one.counterfactual.alternatives:
            yield (item.policy, item.accuracy.value), item.reserved_tokens


def read_admitted(one: PoolInstant) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Yield how many requests each way to reserve would admit, and block tables."""
    if one.counterfactual is not None:
        for item in one.counterfactual.alternatives:
            yield (item.policy, item.accuracy.value), item.admitted
        tables = one.counterfactual.block_tables
        yield ("block-tables", tables.accuracy.value), tables.admitted


def read_reserved_use(end: int) -> Callable[[PoolInstant], Values]:
    """Return the reader of one end of the share of a reservation that holds tokens."""

    def read(one: PoolInstant) -> Values:
        if one.counterfactual is not None:
            for item in one.counterfactual.alternatives:
                yield (item.policy, item.accuracy.value), item.used_ratio[end]

    return read
