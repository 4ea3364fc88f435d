"""Tables as streams of columns, whether they lie in CSV, JSON lines, a JSON array or Parquet."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kvledger.errors import SourceError, TraceError
from kvledger.traces.head import Head, Shape
from kvledger.traces.stream import TraceInput

__all__ = ["Columns", "iter_columns", "iter_objects"]

Columns = dict[str, Any]
"""Arrow arrays of one length by column name."""
Drop = Callable[[str, int], None]

_CSV_BLOCK_BYTES = 1 << 22
_JSON_ROWS = 8192
_PARQUET_ROWS = 1 << 16
_PARQUET_BUFFER_BYTES = 1 << 20  # read columns as they are decoded, not whole row groups
_NULLS = ["", "null", "NULL", "None", "N/A", "NA"]
NOT_JSON = "line is not a JSON object"


def iter_columns(
    source: TraceInput, head: Head, names: Sequence[str], drop: Drop, *, needed: Sequence[str]
) -> Iterator[Columns]:
    """Yield the named columns batch by batch; rows that are no rows are given to ``drop``.

    A JSON name may be dotted, to reach into objects.

    Raises:
        SourceError: The table cannot be read further.
        TraceError: A named column does not exist, or JSON has nothing but nulls where a value is ``needed``.
    """
    match head.shape:
        case Shape.CSV:
            _require(names, head.columns, source.name)
            yield from _csv(source, head, names, drop)
        case Shape.PARQUET:
            _require(names, head.columns, source.name)
            yield from _parquet(source, names)
        case _:
            yield from _json(iter_objects(source, head, drop), names, needed, source.name)


def _require(names: Sequence[str], columns: Sequence[str], source: str) -> None:
    for name in names:
        if columns.count(name) != 1:
            found = ", ".join(f"`{column[:40]}`" for column in columns[:20])
            problem = "has no column" if name not in columns else "has more than one column"
            raise TraceError(
                f"{source} {problem} `{name}`; its columns are {found}",
                hint="name the right ones with --columns arrival=...,prompt=...,output=...",
                columns=list(columns[:100]),
            )


class _Utf8(io.RawIOBase):
    """The same bytes with whatever is not UTF-8 replaced, so that no later step trips over a stray byte."""

    def __init__(self, source: TraceInput) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, size: int = -1) -> bytes:
        while data := self._source.read(size):
            if data.isascii() and not self._decoder.getstate()[0]:
                return data
            if text := self._decoder.decode(data):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode()

    def readable(self) -> bool:
        return True


def _csv(source: TraceInput, head: Head, names: Sequence[str], drop: Drop) -> Iterator[Columns]:
    def skip(_: Any) -> str:
        drop("row has another number of columns than the header", 1)
        return "skip"

    try:
        reader = pa_csv.open_csv(
            pa.PythonFile(_Utf8(source), mode="r"),
            read_options=pa_csv.ReadOptions(
                block_size=_CSV_BLOCK_BYTES,
                use_threads=False,
                column_names=list(head.columns),
                skip_rows=head.blank_lines + 1,
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=head.delimiter, invalid_row_handler=skip, newlines_in_values=head.quoted
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(names),
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                null_values=_NULLS,
            ),
        )
        for batch in reader:
            yield {name: batch.column(name) for name in names}
    except pa.ArrowException as error:
        text = str(error)
        if "Empty CSV" in text:
            return
        if "straddling" in text:
            raise SourceError(
                f"{source.name} has a row of more than {_CSV_BLOCK_BYTES:,} bytes",
                hint="is this CSV with an unclosed quote, or no trace at all?",
            ) from error
        raise SourceError(f"{source.name} cannot be read as CSV: {text.splitlines()[0][:200]}") from error


def _parquet(source: TraceInput, names: Sequence[str]) -> Iterator[Columns]:
    try:
        file = pq.ParquetFile(source.random_access(), pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES)
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(names), use_threads=False):
            batch.validate(full=True)  # strings that are no UTF-8, offsets out of range
            yield {name: batch.column(name) for name in names}
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SourceError(f"{source.name} is damaged Parquet: {str(error)[:200]}") from error


def iter_objects(source: TraceInput, head: Head, drop: Drop) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of JSON lines, of an array, or the one document; other lines are given to ``drop``."""
    if head.shape in (Shape.JSON_DOCUMENT, Shape.JSON_ARRAY):
        data = source.read_document()
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(
                f"{source.name} is not valid JSON: {error}", hint="is the file cut off? write one object a line"
            ) from error
        items = document if isinstance(document, list) else [document]
        for item in items:
            if isinstance(item, dict):
                yield item
            else:
                drop(NOT_JSON, 1)
        return
    decode = msgspec.json.Decoder().decode
    for line in source.lines():
        try:
            item = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            item = None
        if isinstance(item, dict):
            yield item
        else:
            drop(NOT_JSON, 1)


def _json(
    objects: Iterable[dict[str, Any]], names: Sequence[str], needed: Sequence[str], source: str
) -> Iterator[Columns]:
    iterator, is_first = iter(objects), True
    while rows := list(islice(iterator, _JSON_ROWS)):
        columns = {name: [_reach(row, name) for row in rows] for name in names}
        if is_first:
            _check(columns, rows, needed, source)
        yield {name: arrow(values) for name, values in columns.items()}
        is_first = False


def _check(columns: dict[str, list[Any]], rows: Sequence[dict[str, Any]], needed: Sequence[str], source: str) -> None:
    """Raise when no row has a field, or nothing but nulls where a value is needed."""
    for name, values in columns.items():
        is_told = any(value is not None for value in values)
        if not is_told and (name in needed or not any(_has(row, name) for row in rows)):
            found = ", ".join(f"`{key[:40]}`" for key in list(rows[0])[:20])
            raise TraceError(
                f"no row at the start of {source} has a value in the field `{name}`; the first one has: {found}",
                hint="name the right ones with --columns arrival=...,prompt=...,output=...",
            )


def _has(row: dict[str, Any], name: str) -> bool:
    """Whether a row has a field, even if it is null or within an object that is null."""
    part, _, rest = name.partition(".")
    if name in row:
        return True
    if not rest or part not in row:
        return False
    inner = row[part]
    return _has(inner, rest) if isinstance(inner, dict) else inner is None


def _reach(row: Any, name: str) -> Any:
    if name in row:
        return row[name]
    for part in name.split("."):
        if not isinstance(row, dict):
            return None
        row = row.get(part)
    return row


def arrow(values: list[Any]) -> Any:
    """Convert Python values to an Arrow array; a mixture of types becomes strings, or lists of strings."""
    try:
        array = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        array = None
    if array is not None and not (pa.types.is_list(array.type) and pa.types.is_nested(array.type.value_type)):
        return array
    if any(isinstance(value, list) for value in values):
        return pa.array([_texts(value) for value in values], pa.list_(pa.string()))
    return pa.array([_text(value) for value in values], pa.string())


def _texts(value: Any) -> list[str] | None:
    """Return a list's elements as text, or None when it is no list of plain values."""
    if not isinstance(value, list):
        return None
    texts = [text for item in value if not isinstance(item, list) and (text := _text(item)) is not None]
    return texts if len(texts) == len(value) else None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, dict | bool):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    return str(value)[:400]
