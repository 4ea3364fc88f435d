"""Any table as a trace: a column mapping, filters with their reasons, and the rows go to the builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvledger.errors import TraceError
from kvledger.traces.batch import Batch, Identity, IdentityKind
from kvledger.traces.batches import Columns, iter_columns
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.columns import ColumnMapping
from kvledger.traces.head import Head
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.stream import TraceInput
from kvledger.traces.times import Clock, TimeUnit, numbers, unit_of_name

__all__ = ["RowFilter", "Table", "read_table"]

_NUMBERED = 1 << 61
"""First number given to ids that are no numbers themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Drop rows whose ``column`` says so: ``unwanted`` maps an Arrow array to a mask, (rows,), bool."""

    column: str
    reason: str
    unwanted: Callable[[Any], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How a kind of table is read.

    ``parent``: the column that names an earlier row's ``session`` value whose session this row continues.
    """

    format: TraceFormat
    mapping: ColumnMapping
    filters: tuple[RowFilter, ...] = ()
    parent: str | None = None
    notes: tuple[str, ...] = ()


def read_table(source: TraceInput, head: Head, table: Table, *, identity: bool = True) -> Trace:
    """Read a table as a stream of batches.

    Raises:
        TraceError: A column is missing, the unit of the arrival column is unknown, or no row is left.
    """
    mapping = table.mapping
    kind = None
    if identity and mapping.hash_ids is not None:
        kind = IdentityKind.hashes(mapping.block_tokens, mapping.hash_kind)
    builder = WorkloadBuilder(table.format, source=source.name, identity=kind)
    builder.hint = "name the right columns with --columns arrival=...,prompt=...,output=..."
    for sentence in table.notes:
        builder.note(sentence)
    filters = [f for f in table.filters if head.has(f.column)]
    parent = table.parent if table.parent is not None and head.has(table.parent) else None
    linked = (parent,) if parent is not None else ()
    names = dict.fromkeys((*mapping.names(identity=identity), *(f.column for f in filters), *linked))
    reader = _BatchReader(mapping, builder, identity=identity, parent=parent)
    for columns in iter_columns(source, head, list(names), builder.drop, needed=mapping.needed):
        builder.add(reader.batch(_filtered(columns, filters, builder)))
    return builder.build()


def _filtered(columns: Columns, filters: Sequence[RowFilter], builder: WorkloadBuilder) -> Columns:
    for row_filter in filters:
        unwanted = row_filter.unwanted(columns[row_filter.column])
        if unwanted.any():
            builder.drop(row_filter.reason, int(unwanted.sum()))
            columns = {name: values.filter(pa.array(~unwanted)) for name, values in columns.items()}
    return columns


class _BatchReader:
    """Convert batches of one table; holds the clock and the numbers given to sessions and ids so far."""

    def __init__(
        self, mapping: ColumnMapping, builder: WorkloadBuilder, *, identity: bool, parent: str | None = None
    ) -> None:
        self._parent = parent
        self._mapping = mapping
        self._builder = builder
        self._identity = identity
        self._clock: Clock | None = None
        self._sessions: dict[object, int] = {}
        self._ids: dict[str, int] = {}
        self._roots = 0

    def batch(self, columns: Columns) -> Batch:
        mapping = self._mapping
        shared = mapping.shared_prefix if self._identity else None
        arrivals = self._arrivals(columns[mapping.arrival]) if mapping.arrival else None
        return Batch(
            prompt_tokens=numbers(columns[mapping.prompt]),
            output_tokens=numbers(columns[mapping.output]),
            arrival_seconds=arrivals,
            max_tokens=numbers(columns[mapping.max_tokens]) if mapping.max_tokens else None,
            shared_prefix_tokens=numbers(columns[shared]) if shared else None,
            session=self._session_column(columns),
            samples=self._samples(columns),
            beams=self._widths(columns) > 1 if mapping.beam_width else None,
            identity=self._hashes(columns[mapping.hash_ids]) if self._identity and mapping.hash_ids else None,
            first_token_seconds=self._moments(mapping.first_token, columns),
            end_seconds=self._moments(mapping.end, columns),
        )

    def _arrivals(self, values: Any) -> NDArray[np.float64]:
        if self._clock is None:
            assert self._mapping.arrival is not None
            unit = self._mapping.arrival_unit or find_unit(self._mapping.arrival, values, self._builder.source)
            self._clock = Clock(unit)
        seconds = self._clock.seconds(values)
        self._builder.absolute = self._clock.absolute
        return seconds

    def _moments(self, name: str | None, columns: Columns) -> NDArray[np.float64] | None:
        """Convert observed moments with the clock of the arrivals, which has seen these rows already."""
        return None if name is None or self._clock is None else self._clock.seconds(columns[name])

    def _samples(self, columns: Columns) -> NDArray[np.float64] | None:
        """Return the answers to each prompt: the width of a beam search where there is one."""
        mapping = self._mapping
        samples = numbers(columns[mapping.samples]) if mapping.samples else None
        if mapping.beam_width is None:
            return samples
        widths = self._widths(columns)
        return np.where(widths > 1, widths, 1.0 if samples is None else samples)

    def _widths(self, columns: Columns) -> NDArray[np.float64]:
        assert self._mapping.beam_width is not None
        return np.nan_to_num(numbers(columns[self._mapping.beam_width]), nan=1.0)

    def _session_column(self, columns: Columns) -> NDArray[np.int64] | None:
        if self._mapping.session is None:
            return None
        values = columns[self._mapping.session]
        return self._session(values) if self._parent is None else self._linked(values, columns[self._parent])

    def _linked(self, values: Any, parents: Any) -> NDArray[np.int64]:
        """Give every row the session of its parent, or a new one where the parent is unknown."""
        out = np.empty(len(values), dtype=np.int64)
        for row, (own, parent) in enumerate(zip(_names(values).to_pylist(), _names(parents).to_pylist())):
            session = None if parent is None else self._sessions.get(parent)
            if session is None:
                session = self._roots
                self._roots += 1
            out[row] = session
            if own is not None:
                self._sessions[own] = session
        return out

    def _session(self, values: Any) -> NDArray[np.int64]:
        encoded = pc.dictionary_encode(_names(values))
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        numbers_of = [
            -1 if value is None else self._sessions.setdefault(value, len(self._sessions))
            for value in encoded.dictionary.to_pylist()
        ]
        table = np.array([*numbers_of, -1], dtype=np.int64)
        sessions: NDArray[np.int64] = table[np.asarray(pc.fill_null(encoded.indices, len(numbers_of)))]
        return sessions

    def _hashes(self, values: Any) -> Identity:
        """Return the ids; whole numbers stay what they are, other ids are numbered as they come."""
        if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
            if pa.types.is_null(values.type):
                self._builder.leave_out_identity(len(values))
                return Identity(counts=np.zeros(len(values), np.int64), ids=np.zeros(0, np.int64))
            raise TraceError(
                f"column `{self._mapping.hash_ids}` of {self._builder.source} does not hold lists of ids",
                hint="hash_ids=NAME must name a column of lists, as in Mooncake's traces",
            )
        self._builder.leave_out_identity(values.null_count)
        counts = np.asarray(pc.fill_null(pc.list_value_length(values), 0)).astype(np.int64)
        flat = pc.list_flatten(values)
        if pa.types.is_integer(flat.type) and flat.type != pa.uint64() and flat.null_count == 0:
            return Identity(counts=counts, ids=np.asarray(pc.cast(flat, pa.int64())))
        return Identity(counts=counts, ids=np.array([self._number(v) for v in flat.to_pylist()], dtype=np.int64))

    def _number(self, value: object) -> int:
        text = str(value)
        if len(text) < 19 and text.isascii() and text.isdigit():
            return int(text)
        return self._ids.setdefault(text, _NUMBERED + len(self._ids))


def find_unit(name: str, values: Any, source: str) -> TimeUnit:
    """Decide the unit of a time column by its name or by its values.

    Raises:
        TraceError: Plain numbers in a column whose name has no unit.
    """
    if pa.types.is_timestamp(values.type):
        return TimeUnit.DATE
    first = next((value.as_py() for value in values[:64] if value.is_valid), None)
    if isinstance(first, str) and len(first) >= 16 and first[4:5] == "-":
        return TimeUnit.DATE
    unit = unit_of_name(name)
    if unit is None:
        raise TraceError(
            f"the unit of column `{name}` in {source} is unknown: its first value is {str(first)[:40]}",
            hint=f"say it with --columns arrival={name}:s (or ms, us, ns, date),prompt=...,output=...",
        )
    return unit


def _names(values: Any) -> Any:
    """Return a column of names; lists and objects are none."""
    return pa.nulls(len(values)) if pa.types.is_nested(values.type) else values
