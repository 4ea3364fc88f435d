"""Formats that are tables with fixed column names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvledger.replay.workload import HashKind
from kvledger.traces.columns import ColumnMapping, can_guess, guess_mapping
from kvledger.traces.head import Head, Shape, require_header
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.registry import Given, Reader
from kvledger.traces.stream import TraceInput
from kvledger.traces.table import RowFilter, Table, read_table
from kvledger.traces.times import TimeUnit, numbers

__all__ = ["COLUMNS", "READERS", "read_mapped"]

_TABULAR = (Shape.CSV, Shape.PARQUET, Shape.JSON_LINES, Shape.JSON_ARRAY)


def _is_zero(values: Any) -> NDArray[np.bool_]:
    return np.asarray(numbers(values) == 0, dtype=bool)


def _is_true(values: Any) -> NDArray[np.bool_]:
    if pa.types.is_boolean(values.type):
        return np.asarray(pc.fill_null(values, False), dtype=bool)
    if not pa.types.is_string(values.type):
        return np.zeros(len(values), dtype=bool)
    return np.asarray(pc.fill_null(pc.equal(pc.utf8_lower(values), "true"), False), dtype=bool)


def _is_failure(values: Any) -> NDArray[np.bool_]:
    status = numbers(values)
    return ~np.isnan(status) & ((status < 200) | (status > 299))


def _reader(table: Table, *required: str) -> Reader:
    def matches(head: Head) -> bool:
        return head.shape in _TABULAR and head.has(*required)

    def read(given: Given) -> Trace:
        present = replace(table, mapping=table.mapping.limited_to(given.head.has))
        return read_table(given.source, given.head, present, identity=given.options.identity)

    return Reader(format=table.format, matches=matches, read=read)


AZURE = Table(
    format=TraceFormat(
        name="azure", sentence="Azure LLM inference trace (2023, 2024, multimodal 2025): dates, lengths"
    ),
    mapping=ColumnMapping(
        arrival="TIMESTAMP", arrival_unit=TimeUnit.DATE, prompt="ContextTokens", output="GeneratedTokens"
    ),
    notes=("the trace has no content identity: prefix caching cannot be replayed with it",),
)
BURSTGPT = Table(
    format=TraceFormat(
        name="burstgpt", sentence="BurstGPT: seconds from midnight of day 1, lengths, sessions from v3 on"
    ),
    mapping=ColumnMapping(
        arrival="Timestamp",
        arrival_unit=TimeUnit.SECONDS,
        prompt="Request tokens",
        output="Response tokens",
        session="Session ID",
    ),
    filters=(RowFilter(column="Response tokens", reason="failed request (0 response tokens)", unwanted=_is_zero),),
)
MOONCAKE = Table(
    format=TraceFormat(
        name="mooncake", sentence="Mooncake (Kimi) trace: milliseconds, lengths, chained 512-token block ids"
    ),
    mapping=ColumnMapping(
        arrival="timestamp",
        arrival_unit=TimeUnit.MILLISECONDS,
        prompt="input_length",
        output="output_length",
        hash_ids="hash_ids",
        block_tokens=512,
        hash_kind=HashKind.CHAIN,
    ),
)
BAILIAN = Table(
    format=TraceFormat(
        name="qwen-bailian", sentence="Qwen Bailian trace: seconds, lengths, chat turns, 16-token content block ids"
    ),
    mapping=ColumnMapping(
        arrival="timestamp",
        arrival_unit=TimeUnit.SECONDS,
        prompt="input_length",
        output="output_length",
        session="chat_id",
        hash_ids="hash_ids",
        block_tokens=16,
        hash_kind=HashKind.CONTENT,
    ),
    parent="parent_chat_id",
    notes=("block ids name content, not prefixes: only a leading run of known ids can be reused",),
)
LENGTHS = Table(
    format=TraceFormat(name="lengths", sentence="vAttention and Vidur length files: lengths without arrival times"),
    mapping=ColumnMapping(prompt="num_prefill_tokens", output="num_decode_tokens"),
)
VIDUR = Table(
    format=TraceFormat(name="vidur", sentence="Vidur trace: seconds and lengths"),
    mapping=ColumnMapping(
        arrival="arrived_at",
        arrival_unit=TimeUnit.SECONDS,
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
    ),
)
LITELLM = Table(
    format=TraceFormat(name="litellm", sentence="LiteLLM spend log: start times, prompt and completion tokens"),
    mapping=ColumnMapping(
        arrival="startTime",
        arrival_unit=TimeUnit.DATE,
        prompt="prompt_tokens",
        output="completion_tokens",
        first_token="completionStartTime",
        end="endTime",
    ),
    filters=(
        RowFilter(
            column="cache_hit", reason="answered by the proxy's response cache: no engine memory", unwanted=_is_true
        ),
    ),
)
HELICONE = Table(
    format=TraceFormat(
        name="helicone", sentence="Helicone request export: creation times, prompt and completion tokens"
    ),
    mapping=ColumnMapping(
        arrival="request_created_at", arrival_unit=TimeUnit.DATE, prompt="prompt_tokens", output="completion_tokens"
    ),
    filters=(RowFilter(column="response_status", reason="request failed", unwanted=_is_failure),),
)

COLUMNS = TraceFormat(name="columns", sentence="a table whose columns are known by their names or by --columns")


def read_mapped(source: TraceInput, head: Head, mapping: ColumnMapping, *, identity: bool) -> Trace:
    """Read a table with the column mapping that the user gave."""
    require_header(head, source=source.name)
    return read_table(source, head, Table(format=COLUMNS, mapping=mapping), identity=identity)


def _read_guessed(given: Given) -> Trace:
    mapping = guess_mapping(given.head.names, source=given.source.name)
    return read_mapped(given.source, given.head, mapping, identity=given.options.identity)


def _is_guessable(head: Head) -> bool:
    return head.shape in _TABULAR and can_guess(head.names)


READERS = (
    _reader(AZURE, "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _reader(BURSTGPT, "Timestamp", "Request tokens", "Response tokens"),
    _reader(BAILIAN, "chat_id", "timestamp", "input_length", "output_length", "hash_ids"),
    _reader(VIDUR, "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    _reader(LENGTHS, "num_prefill_tokens", "num_decode_tokens"),
    _reader(LITELLM, "startTime", "prompt_tokens", "completion_tokens"),
    _reader(HELICONE, "request_created_at", "prompt_tokens", "completion_tokens"),
    _reader(MOONCAKE, "timestamp", "input_length", "output_length", "hash_ids"),
)
GUESSED = Reader(format=COLUMNS, matches=_is_guessable, read=_read_guessed)
