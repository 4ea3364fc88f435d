"""The results of a sweep as Parquet, with where they come from in the file's metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kvledger.errors import UsageError
from kvledger.sweep.columns import IDENTITY, RESULTS, Cell, Column
from kvledger.sweep.job import JobResult

__all__ = ["SCHEMA", "SCHEMA_VERSION", "Provenance", "columns_of", "read_results", "write_results"]

SCHEMA = "kvledger.sweep"
SCHEMA_VERSION = 1
_GROUP_ROWS = 4096
_MOST_METADATA = 2**26


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where results come from. ``plan`` is the digest of all cells; ``inputs`` are digests of files by their names."""

    kvledger_version: str
    plan: str
    grid: str
    inputs: dict[str, str]


def columns_of(settings: Sequence[Column]) -> tuple[Column, ...]:
    """Return all columns in their order: what a row is, its settings, what it found."""
    return (*IDENTITY, *settings, *RESULTS)


def write_results(
    out: BinaryIO,
    results: Iterator[tuple[JobResult, Mapping[str, Cell]]],
    *,
    settings: Sequence[Column],
    provenance: Provenance,
) -> None:
    """Write results, each with the settings of its cell, in row groups of bounded size."""
    columns = columns_of(settings)
    schema = pa.schema(
        [pa.field(column.name, _arrow(column), nullable=column.name != "cell") for column in columns],
        metadata={
            "kvledger.schema": SCHEMA,
            "kvledger.schema_version": str(SCHEMA_VERSION),
            "kvledger.sweep": msgspec.json.encode(provenance),
        },
    )
    rows = ({"cell": result.key, **values, **row} for result, values in results for row in result.rows)
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            arrays = {column.name: [row.get(column.name) for row in group] for column in columns}
            writer.write_table(pa.table(arrays, schema=schema))


def _arrow(column: Column) -> Any:
    return pa.type_for_alias(str(column.kind))


def read_results(source: BinaryIO, *, settings: Sequence[Column], name: str) -> tuple[Provenance, list[JobResult]]:
    """Read the results that an earlier sweep wrote.

    Raises:
        UsageError: The file is not one of a sweep, or of another version of the format.
    """
    keep = {column.name for column in columns_of(settings)} - {"cell"} - {column.name for column in settings}
    results: dict[str, list[dict[str, Cell]]] = {}
    try:
        file = pq.ParquetFile(source)
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(b"kvledger.schema") != SCHEMA.encode():
            raise _foreign(name)
        if metadata.get(b"kvledger.schema_version") != str(SCHEMA_VERSION).encode():
            raise _foreign(name, "of another version of kvledger")
        provenance = msgspec.json.decode(metadata[b"kvledger.sweep"][:_MOST_METADATA], type=Provenance)
        there = [column for column in file.schema_arrow.names if column in keep or column == "cell"]
        for batch in file.iter_batches(batch_size=_GROUP_ROWS, columns=there):
            for row in batch.to_pylist():
                key = row.pop("cell")
                results.setdefault(key, []).append({n: value for n, value in row.items() if value is not None})
    except (pa.ArrowException, OSError, KeyError, msgspec.DecodeError) as error:
        raise _foreign(name) from error
    return provenance, [JobResult(key=key, rows=rows) for key, rows in results.items()]


def _foreign(name: str, what: str = "not of a sweep") -> UsageError:
    return UsageError(
        f"`{name}` exists and is {what}", hint="write the results to another file, or add --force to overwrite it"
    )
