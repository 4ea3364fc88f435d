"""LLMServingSim: workloads with token ids, and runs of vLLM recorded on them."""

from __future__ import annotations

import re
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvledger.traces.batch import Batch, IdentityKind
from kvledger.traces.batches import iter_columns, iter_objects
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.rows import RowBuffer
from kvledger.traces.times import Clock, TimeUnit, numbers

__all__ = ["RUN", "RUN_FORMAT", "WORKLOAD", "workload_of_run"]

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
_FILE_NAME = re.compile(r"[\w.-]{1,200}\.jsonl")


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


_RUN_COLUMNS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


def _read_run(given: Given) -> Trace:
    """Read a run; the engine's own clock is set so that the request that was queued soonest was queued at once."""
    builder = WorkloadBuilder(RUN_FORMAT, source=given.source.name)
    for note in _run_notes(given.options):
        builder.note(note)
    clock = Clock(TimeUnit.SECONDS)
    parts: list[list[NDArray[np.float64]]] = [[] for _ in _RUN_COLUMNS]
    for columns in iter_columns(given.source, given.head, _RUN_COLUMNS, builder.drop, needed=_RUN_COLUMNS[:4]):
        for part, name in zip(parts, _RUN_COLUMNS):
            values = columns[name]
            part.append(clock.seconds(values) if name == "arrival_time" else numbers(values))
    if not parts[0]:
        return builder.build()
    prompt, output, arrival, queued, first, end = (np.concatenate(part) for part in parts)
    builder.absolute = clock.absolute
    delay = queued - arrival
    offset = np.nanmin(delay) if np.isfinite(delay).any() else np.nan
    builder.add(
        Batch(
            prompt_tokens=prompt,
            output_tokens=output,
            arrival_seconds=arrival,
            first_token_seconds=first - offset,
            end_seconds=end - offset,
        )
    )
    return builder.build()


def _meta(raw: BinaryIO) -> dict[str, Any]:
    try:
        meta = msgspec.json.decode(raw.read(_META_BYTES))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}


def workload_of_run(raw: BinaryIO) -> str | None:
    """Return the file name, without folders, of the workload that a run's ``meta.json`` names."""
    name = str(_meta(raw).get("dataset_path")).replace("\\", "/").rpartition("/")[2]
    return name if _FILE_NAME.fullmatch(name) else None


def _run_notes(options: ReadOptions) -> tuple[str, ...]:
    """Say which run this was, from the `meta.json` beside it."""
    opener = options.siblings.get("meta.json")
    if opener is None:
        return ()
    with opener() as raw:
        meta = _meta(raw)
    if not meta:
        return ()
    cache, hardware = meta.get("kv_cache"), meta.get("hardware")
    where = hardware.get("device_name") if isinstance(hardware, dict) else None
    notes = [f"recorded with vLLM {meta.get('vllm_version')}, {meta.get('model')}" + (f", on {where}" if where else "")]
    if isinstance(cache, dict) and cache.get("num_gpu_blocks"):
        notes.append(f"the run had {cache['num_gpu_blocks']} blocks of {cache.get('block_size')} tokens")
    return tuple(str(note)[:300] for note in notes)


WORKLOAD = Reader(format=WORKLOAD_FORMAT, matches=_is_workload, read=_read_workload)
RUN = Reader(format=RUN_FORMAT, matches=_is_run, read=_read_run)
