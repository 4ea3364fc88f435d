"""LLMServingSim: workloads with token ids, and runs of vLLM recorded on them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvledger.traces.batch import IdentityKind
from kvledger.traces.batches import iter_objects
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.columns import ColumnMapping
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.rows import RowBuffer
from kvledger.traces.table import Table, read_table
from kvledger.traces.times import TimeUnit

__all__ = ["RUN", "WORKLOAD"]

WORKLOAD_FORMAT = TraceFormat(
    name="llmservingsim",
    sentence="LLMServingSim workload: arrival in nanoseconds, lengths, token ids where there are any",
)
RUN_FORMAT = TraceFormat(
    name="llmservingsim-run",
    sentence="vLLM run recorded by LLMServingSim: arrival, queue and token times of each request",
)
_MAX_TOKEN_ID = 2**31 - 1
_META_BYTES = 1 << 20


def _is_workload(head: Head) -> bool:
    return head.shape is Shape.JSON_LINES and head.has("input_toks", "output_toks", "arrival_time_ns")


def _read_workload(given: Given) -> Trace:
    identified = given.options.identity and given.head.has("input_tok_ids")
    builder = WorkloadBuilder(
        WORKLOAD_FORMAT, source=given.source.name, identity=IdentityKind.tokens() if identified else None
    )
    rows = RowBuffer(builder, identified=identified)
    for row in iter_objects(given.source, given.head, builder.drop):
        time = row.get("arrival_time_ns")
        seconds = time / 10**9 if isinstance(time, int | float) and not isinstance(time, bool) else None
        rows.add(row.get("input_toks"), row.get("output_toks"), arrival_seconds=seconds)
        if identified:
            rows.identify(_token_ids(row, builder))
    rows.flush()
    return builder.build()


def _token_ids(row: dict[str, Any], builder: WorkloadBuilder) -> list[int]:
    ids, more = _tokens(row.get("input_tok_ids")), _tokens(row.get("output_tok_ids"))
    if not ids or len(ids) != row.get("input_toks"):
        builder.adjusted["token ids do not fit the prompt length: left out"] += 1
        return []
    return [*ids, *more] if len(more) == row.get("output_toks") else ids


def _tokens(ids: Any) -> list[int]:
    """Return a list of token ids, empty when it is none."""
    good = isinstance(ids, list) and all(type(i) is int and 0 <= i <= _MAX_TOKEN_ID for i in ids)
    return ids if good else []


def _is_run(head: Head) -> bool:
    return head.shape is Shape.JSON_LINES and head.has("input_toks", "output_toks", "arrival_time", "queued_ts")


_RUN = Table(
    format=RUN_FORMAT,
    mapping=ColumnMapping(
        prompt="input_toks", output="output_toks", arrival="arrival_time", arrival_unit=TimeUnit.SECONDS
    ),
)


def _read_run(given: Given) -> Trace:
    table = Table(format=_RUN.format, mapping=_RUN.mapping, notes=_run_notes(given.options))
    return read_table(given.source, given.head, table)


def _run_notes(options: ReadOptions) -> tuple[str, ...]:
    """Say which run this was, from the `meta.json` beside it."""
    opener = options.siblings.get("meta.json")
    if opener is None:
        return ()
    with opener() as raw:
        try:
            meta = msgspec.json.decode(raw.read(_META_BYTES))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ()
    if not isinstance(meta, dict):
        return ()
    cache, hardware = meta.get("kv_cache"), meta.get("hardware")
    where = hardware.get("device_name") if isinstance(hardware, dict) else None
    notes = [f"recorded with vLLM {meta.get('vllm_version')}, {meta.get('model')}" + (f", on {where}" if where else "")]
    if isinstance(cache, dict) and cache.get("num_gpu_blocks"):
        notes.append(f"the run had {cache['num_gpu_blocks']} blocks of {cache.get('block_size')} tokens")
    return tuple(str(note)[:300] for note in notes)


WORKLOAD = Reader(format=WORKLOAD_FORMAT, matches=_is_workload, read=_read_workload)
RUN = Reader(format=RUN_FORMAT, matches=_is_run, read=_read_run)
