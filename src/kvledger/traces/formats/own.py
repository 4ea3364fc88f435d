"""kvledger's own trace file: Parquet with everything a trace holds, readable back without loss.

Columns: ``arrival_seconds`` double, ``prompt_tokens`` and ``output_tokens`` int32; where the trace has them
``max_tokens`` int32 (0: none declared), ``session`` int32 (-1: none), ``first_token_seconds`` and ``end_seconds``
double (NaN: not observed), ``shared_prefix_tokens`` int32, ``content_ids`` list of int64 (block ids) or int32
(token ids), ``content_lengths`` list of int32, ``samples`` int32 (answers to each prompt), ``beam_search`` bool. File
metadata: ``kvledger.schema`` (``kvledger.trace``), ``kvledger.schema_version`` (``1``), ``kvledger.trace`` (JSON: the
rest of the record).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.replay.observed import Observed
from kvledger.replay.workload import Beams, Content, HashIds, HashKind, SharedPrefix, TokenIds, Workload
from kvledger.traces.growing import GrowingColumn
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import ErrorBand, Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.stream import TraceInput
from kvledger.units import counted

__all__ = ["READER", "SCHEMA", "SCHEMA_VERSION", "write_trace"]

SCHEMA = "kvledger.trace"
SCHEMA_VERSION = 1
_GROUP_ROWS = 1 << 17
_GROUP_IDS = 1 << 24
_BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20
_OBSERVED = ("first_token_seconds", "end_seconds")


class _Header(msgspec.Struct, forbid_unknown_fields=False):
    format_name: str
    format_sentence: str
    rows_read: int
    dropped: dict[str, int]
    adjusted: dict[str, int]
    notes: list[str]
    arrivals: Accuracy
    prompts: Accuracy
    outputs: Accuracy
    prompt_band: tuple[float, float] | None = None
    output_band: tuple[float, float] | None = None
    content: str = "none"
    block_tokens: int = 0
    hash_kind: HashKind = HashKind.CHAIN


def write_trace(trace: Trace, out: BinaryIO) -> None:
    """Write a trace as Parquet, zstd, in row groups of bounded size."""
    schema = _schema(trace)
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for low, high in _groups(trace.workload):
            columns = _columns(trace.workload, low, high) | _moments(trace.observed, low, high)
            writer.write_table(pa.table(columns, schema=schema))


def _groups(workload: Workload) -> Iterator[tuple[int, int]]:
    content, low, rows = workload.content, 0, len(workload)
    while low < rows:
        high = min(rows, low + _GROUP_ROWS)
        if isinstance(content, HashIds | TokenIds):
            bound = int(np.searchsorted(content.offsets, content.offsets[low] + _GROUP_IDS, side="right")) - 1
            high = min(high, max(low + 1, bound))
        yield low, high
        low = high


def _band(band: ErrorBand | None) -> tuple[float, float] | None:
    return (band.low_ratio, band.high_ratio) if band else None


def _header(trace: Trace) -> _Header:
    content, accuracy = trace.workload.content, trace.accuracy
    header = _Header(
        format_name=trace.format.name,
        format_sentence=trace.format.sentence,
        rows_read=trace.rows_read,
        dropped=dict(trace.dropped),
        adjusted=dict(trace.adjusted),
        notes=list(trace.notes),
        arrivals=accuracy.arrivals,
        prompts=accuracy.prompts,
        outputs=accuracy.outputs,
        prompt_band=_band(accuracy.prompt_band),
        output_band=_band(accuracy.output_band),
    )
    match content:
        case SharedPrefix():
            header.content = "shared_prefix"
        case HashIds():
            header.content, header.block_tokens, header.hash_kind = "hash_ids", content.block_tokens, content.kind
        case TokenIds():
            header.content = "token_ids"
    return header


def _schema(trace: Trace) -> Any:
    workload, content = trace.workload, trace.workload.content
    fields = [("arrival_seconds", pa.float64()), ("prompt_tokens", pa.int32()), ("output_tokens", pa.int32())]
    if workload.max_tokens is not None:
        fields.append(("max_tokens", pa.int32()))
    if workload.session is not None:
        fields.append(("session", pa.int32()))
    if workload.samples is not None:
        fields.append(("samples", pa.int32()))
    if workload.beams is not None:
        fields.append(("beam_search", pa.bool_()))
    if trace.observed is not None:
        fields += [(name, pa.float64()) for name in _OBSERVED]
    match content:
        case SharedPrefix():
            fields.append(("shared_prefix_tokens", pa.int32()))
        case HashIds():
            fields.append(("content_ids", pa.list_(pa.int64())))
            if content.lengths is not None:
                fields.append(("content_lengths", pa.list_(pa.int32())))
        case TokenIds():
            fields.append(("content_ids", pa.list_(pa.int32())))
    metadata = {
        "kvledger.schema": SCHEMA,
        "kvledger.schema_version": str(SCHEMA_VERSION),
        "kvledger.trace": msgspec.json.encode(_header(trace)),
    }
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields], metadata=metadata)


def _columns(workload: Workload, low: int, high: int) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "arrival_seconds": workload.arrival_seconds[low:high],
        "prompt_tokens": workload.prompt_tokens[low:high],
        "output_tokens": workload.output_tokens[low:high],
    }
    if workload.max_tokens is not None:
        columns["max_tokens"] = workload.max_tokens[low:high]
    if workload.session is not None:
        columns["session"] = workload.session[low:high]
    if workload.samples is not None:
        columns["samples"] = workload.samples[low:high]
    if workload.beams is not None:
        columns["beam_search"] = workload.beams.mask[low:high]
    content = workload.content
    if isinstance(content, SharedPrefix):
        columns["shared_prefix_tokens"] = content.tokens[low:high]
    elif content is not None:
        offsets = content.offsets[low : high + 1]
        local = pa.array((offsets - offsets[0]).astype(np.int32))
        columns["content_ids"] = pa.ListArray.from_arrays(local, pa.array(content.ids[offsets[0] : offsets[-1]]))
        if isinstance(content, HashIds) and content.lengths is not None:
            lengths = pa.array(content.lengths[offsets[0] : offsets[-1]])
            columns["content_lengths"] = pa.ListArray.from_arrays(local, lengths)
    return columns


def _moments(observed: Observed | None, low: int, high: int) -> dict[str, Any]:
    return {} if observed is None else {name: getattr(observed, name)[low:high] for name in _OBSERVED}


def _matches(head: Head) -> bool:
    return head.shape is Shape.PARQUET and head.metadata.get(b"kvledger.schema") == SCHEMA.encode()


def _read(given: Given) -> Trace:
    version = given.head.metadata.get(b"kvledger.schema_version", b"").decode("ascii", errors="replace")
    if version != str(SCHEMA_VERSION):
        raise TraceError(
            f"{given.source.name} is a kvledger trace of version `{version[:9]}`; this one reads {SCHEMA_VERSION}",
            hint="read it with the newer kvledger that wrote it",
        )
    try:
        header = msgspec.json.decode(given.head.metadata.get(b"kvledger.trace", b""), type=_Header)
        return _assembled(given.source, given.head, header, given.options)
    except (msgspec.DecodeError, OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise TraceError(f"{given.source.name} is a damaged kvledger trace: {str(error)[:200]}") from error


def _assembled(source: TraceInput, head: Head, header: _Header, options: ReadOptions) -> Trace:
    names = [name for name in head.columns if options.identity or not name.startswith(("content_", "shared_"))]
    columns = _gather(source, names, header)
    return Trace(
        workload=Workload(
            arrival_seconds=columns["arrival_seconds"],
            prompt_tokens=columns["prompt_tokens"],
            output_tokens=columns["output_tokens"],
            max_tokens=columns.get("max_tokens"),
            session=columns.get("session"),
            content=_content(columns, header) if options.identity else None,
            samples=columns.get("samples"),
            beams=Beams(mask=columns["beam_search"]) if "beam_search" in columns else None,
        ),
        format=TraceFormat(name=header.format_name, sentence=header.format_sentence),
        rows_read=header.rows_read,
        dropped=header.dropped,
        adjusted=header.adjusted,
        notes=tuple(header.notes),
        accuracy=TraceAccuracy(
            arrivals=header.arrivals,
            prompts=header.prompts,
            outputs=header.outputs,
            prompt_band=_error_band(header.prompt_band),
            output_band=_error_band(header.output_band),
        ),
        observed=Observed(**{name: columns[name] for name in _OBSERVED}) if set(_OBSERVED) <= set(names) else None,
    ).check()


def _error_band(band: tuple[float, float] | None) -> ErrorBand | None:
    return ErrorBand(low_ratio=band[0], high_ratio=band[1]) if band else None


def _gather(source: TraceInput, names: Sequence[str], header: _Header) -> dict[str, NDArray[Any]]:
    """Read the columns batch by batch; a list becomes a column of its values and one of its sizes (``*_counts``)."""
    values = pa.int32() if header.content == "token_ids" else pa.int64()
    lists = {"content_ids": values, "content_lengths": pa.int32()}
    gathered: dict[str, GrowingColumn[Any]] = {}
    for name in names:
        if name in lists:
            gathered[name] = GrowingColumn(lists[name].to_pandas_dtype())
            gathered[f"{name}_counts"] = GrowingColumn(np.int64)
        else:
            gathered[name] = GrowingColumn(_kind_of(name))
    file = pq.ParquetFile(source.random_access(), pre_buffer=False, buffer_size=_BUFFER_BYTES)
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(names), use_threads=False):
        batch.validate(full=True)
        for name in names:
            column = batch.column(name)
            if name in lists:
                sizes, column = _list(column, name, lists[name])
                gathered[f"{name}_counts"].append(sizes)
            elif column.null_count:
                raise ValueError(f"column {name} has nulls")
            gathered[name].append(column)
    taken = {name: column.take() for name, column in gathered.items()}
    return {name: np.zeros(0, np.int32) if column is None else column for name, column in taken.items()}


def _kind_of(name: str) -> type[np.generic]:
    if name == "beam_search":
        return np.bool_
    return np.float64 if name.endswith("_seconds") else np.int32


def _list(column: Any, name: str, kind: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return how many values each row's list has, and the values."""
    if column.type != pa.list_(kind) or column.null_count or column.flatten().null_count:
        raise ValueError(f"column {name} is not made of lists of {kind}, or has nulls")
    return np.asarray(column.value_lengths(), dtype=np.int64), np.asarray(column.flatten())


def _content(columns: dict[str, NDArray[Any]], header: _Header) -> Content | None:
    if header.content == "shared_prefix":
        return SharedPrefix(tokens=columns["shared_prefix_tokens"])
    if header.content not in ("hash_ids", "token_ids"):
        return None
    counts, ids = columns["content_ids_counts"], columns["content_ids"]
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    if header.content == "token_ids":
        return TokenIds(offsets=offsets, ids=ids)
    lengths = columns.get("content_lengths")
    if lengths is not None and (columns["content_lengths_counts"] != counts).any():
        raise ValueError("content_lengths do not fit content_ids")
    if header.block_tokens < 1:
        raise ValueError(f"blocks of {counted(header.block_tokens, 'token')}")
    return HashIds(offsets=offsets, ids=ids, block_tokens=header.block_tokens, kind=header.hash_kind, lengths=lengths)


READER = Reader(
    format=TraceFormat(name="kvledger", sentence="kvledger's own Parquet trace"), matches=_matches, read=_read
)
