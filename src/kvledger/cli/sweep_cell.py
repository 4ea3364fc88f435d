"""One cell of a sweep, in whatever process or on whatever machine it runs."""

from __future__ import annotations

import traceback
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

import kvledger
from kvledger.cli.answer import ask
from kvledger.cli.sweep_settings import SweepSettings
from kvledger.errors import CapacityError, Error, SourceError
from kvledger.report.replay import ReplayReport
from kvledger.sources.files import load_trace
from kvledger.sources.memory import available_bytes, explain_memory
from kvledger.sweep.columns import Cell, result_of
from kvledger.sweep.job import Job, JobResult, failed
from kvledger.traces import Trace

__all__ = ["run_cell"]


def run_cell(payload: bytes) -> bytes:
    """Replay one cell; whatever goes wrong is in the answer, so that no other cell is kept from running."""
    job = msgspec.msgpack.decode(payload, type=Job)
    try:
        result = _replayed(job)
    except Error as error:
        result = failed(job.key, code=error.code, message=error.message)
    except MemoryError as error:
        result = failed(job.key, code=Error.code, message=explain_memory(error, available=available_bytes()).message)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
        result = failed(job.key, code=Error.code, message=f"{what}; this is a fault of kvledger, please report it")
    return msgspec.json.encode(result)


@lru_cache(maxsize=1)
def _load(inputs: tuple[str, ...], spec: str, **options: Any) -> Trace:  # noqa: ARG001
    """Load a trace, or take the one of the cell before: neighbours in a grid mostly have the same."""
    return load_trace(spec, **options)


def _replayed(job: Job) -> JobResult:
    if job.version != kvledger.__version__:
        raise SourceError(
            f"the worker has kvledger {kvledger.__version__} and was given a cell of {job.version}",
            hint="install the same version everywhere",
        )
    report = ask(SweepSettings().question(job.values, folder=Path(job.folder)), load=partial(_load, job.inputs))
    shared = _shared_columns(report)
    rows = [{"policy": outcome.policy, **shared, **result_of(outcome)} for outcome in report.outcomes]
    rows += [{"policy": name, "error_code": CapacityError.code, "error": why} for name, why in report.left_out.items()]
    return JobResult(key=job.key, rows=rows)


def _shared_columns(report: ReplayReport) -> dict[str, Cell]:
    """Return what all rows of a cell share."""
    clock = report.settings.clock
    return {
        "model_name": report.model,
        "token_bytes": report.pool.bytes_per_token,
        "longest_tokens": report.settings.max_model_len,
        "clock_name": clock.name,
        "clock_base": clock.base,
        "clock_a": clock.a,
        "clock_b": clock.b,
        "clock_c": clock.c,
        "trace_format": report.trace.format.name,
        "trace_span_seconds": report.trace.workload.span_seconds,
        "notes": "\n".join((*report.trace.notes, *report.notes)),
    }
