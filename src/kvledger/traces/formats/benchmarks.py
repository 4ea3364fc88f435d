"""Results of load generators: vllm bench serve, aiperf, guidellm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvledger.errors import TraceError
from kvledger.ledger import Accuracy
from kvledger.traces.batch import Batch
from kvledger.traces.batches import arrow, iter_objects
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader, ReadOptions
from kvledger.traces.rows import RowBuffer
from kvledger.traces.times import Clock, TimeUnit, numbers
from kvledger.units import counted

__all__ = ["READERS"]

BENCH = TraceFormat(
    name="vllm-bench", sentence="result of `vllm bench serve`: lengths per request with --save-detailed"
)
AIPERF = TraceFormat(name="aiperf", sentence="aiperf profile export: start and end in nanoseconds, sequence lengths")
GUIDELLM = TraceFormat(name="guidellm", sentence="guidellm benchmark report: start times, prompt and output tokens")
_MAX_MEAN_REQUESTS = 10_000_000
_MOST_GAPS = 1 << 24


def _is_bench(head: Head) -> bool:
    return head.shape in (Shape.JSON_LINES, Shape.JSON_DOCUMENT) and head.has("num_prompts", "total_input_tokens")


def _read_bench(given: Given) -> Trace:
    builder = WorkloadBuilder(BENCH, source=given.source.name)
    base_seconds, runs = 0.0, 0
    for run in iter_objects(given.source, given.head, builder.drop):
        runs += 1
        base_seconds = _add_run(run, builder, given.options, base_seconds)
    if runs > 1:
        builder.note(f"{counted(runs, 'run')}, one behind the other")
    return builder.build()


def _add_run(run: dict[str, Any], builder: WorkloadBuilder, options: ReadOptions, base_seconds: float) -> float:
    """Add one run's requests; return when the next run may start."""
    prompts, outputs = run.get("input_lens"), run.get("output_lens")
    if isinstance(prompts, list) and isinstance(outputs, list):
        rows = min(len(prompts), len(outputs))
        builder.drop("input_lens and output_lens differ in number", max(len(prompts), len(outputs)) - rows)
    else:
        prompts, outputs = _means(run, builder)
        rows = len(prompts)
    arrivals = _bench_arrivals(run, rows, options.seed, builder)
    prompt, output = numbers(arrow(prompts[:rows])), numbers(arrow(outputs[:rows]))
    first, end = _bench_moments(run, arrivals)
    failed = output == 0
    builder.drop("request failed (0 output tokens)", int(failed.sum()))
    builder.add(
        Batch(
            prompt_tokens=prompt[~failed],
            output_tokens=output[~failed],
            arrival_seconds=(arrivals + base_seconds)[~failed],
            first_token_seconds=(first + base_seconds)[~failed],
            end_seconds=(end + base_seconds)[~failed],
        )
    )
    duration = _number(run.get("duration"))
    return base_seconds + max(duration if math.isfinite(duration) else 0.0, float(arrivals[-1]) if rows else 0.0)


def _bench_moments(run: dict[str, Any], arrivals: Any) -> tuple[Any, Any]:
    """Return when each request got its first and last token, where start times and delays were saved."""
    rows = len(arrivals)
    firsts, gaps = run.get("ttfts"), run.get("itls")
    unknown = np.full(rows, np.nan)
    if not (isinstance(run.get("start_times"), list) and isinstance(firsts, list) and len(firsts) >= rows):
        return unknown, unknown
    first = arrivals + numbers(arrow(firsts[:rows]))
    if not (isinstance(gaps, list) and len(gaps) >= rows):
        return first, unknown
    return first, first + np.array([_sum(gap) for gap in gaps[:rows]], np.float64)


def _sum(gaps: Any) -> float:
    return math.fsum(map(_number, gaps)) if isinstance(gaps, list) and len(gaps) <= _MOST_GAPS else math.nan


def _means(run: dict[str, Any], builder: WorkloadBuilder) -> tuple[list[int], list[int]]:
    """Stand in for the lengths that were not saved: every request gets the mean of the run."""
    count = _number(run.get("completed", run.get("num_prompts")))
    total_in, total_out = _number(run.get("total_input_tokens")), _number(run.get("total_output_tokens"))
    if not (1 <= count <= _MAX_MEAN_REQUESTS and total_in >= count and total_out >= count):
        raise TraceError(
            f"{builder.source} has neither lengths per request nor usable totals: "
            f"{run.get('completed')} requests, {run.get('total_input_tokens')} tokens in",
            hint="run `vllm bench serve` with --save-result --save-detailed",
        )
    builder.accuracy = TraceAccuracy(arrivals=Accuracy.MODELLED, prompts=Accuracy.MODELLED, outputs=Accuracy.MODELLED)
    builder.note("saved without --save-detailed: every request has the run's mean lengths; real ones vary")
    return [round(total_in / count)] * int(count), [round(total_out / count)] * int(count)


def _bench_arrivals(run: dict[str, Any], rows: int, seed: int, builder: WorkloadBuilder) -> Any:
    """Start times where saved; otherwise Poisson at the run's request rate, or all at 0 when it is infinite."""
    starts = run.get("start_times")
    if isinstance(starts, list) and len(starts) >= rows:
        values = numbers(arrow(starts[:rows]))
        return values - np.nanmin(values) if np.isfinite(values).any() else values
    old = builder.accuracy
    builder.accuracy = TraceAccuracy(arrivals=Accuracy.MODELLED, prompts=old.prompts, outputs=old.outputs)
    rate = _number(run.get("request_rate"))
    if not 0 < rate < math.inf:
        builder.note("no arrival times, and a request rate of `inf`: all requests arrive at the start of the run")
        return np.zeros(rows)
    builder.note(f"no arrival times: Poisson arrivals at the run's rate of {rate:g} a second, seed {seed}")
    return np.cumsum(-np.log1p(-np.random.default_rng([seed, 0xBE7C]).random(rows)) / rate)


def _number(value: Any) -> float:
    try:
        return float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _is_aiperf(head: Head) -> bool:
    return head.shape is Shape.JSON_LINES and head.has("metadata", "metrics")


def _read_aiperf(given: Given) -> Trace:
    builder = WorkloadBuilder(AIPERF, source=given.source.name)
    rows = RowBuffer(builder, sessions=True, observed=True)
    clock, sessions = Clock(TimeUnit.NANOSECONDS), dict[str, int]()
    for record in iter_objects(given.source, given.head, builder.drop):
        metadata, metrics = record.get("metadata"), record.get("metrics")
        if not isinstance(metadata, dict) or not isinstance(metrics, dict):
            builder.drop("line is not an aiperf record")
        elif metadata.get("benchmark_phase", "profiling") != "profiling":
            builder.drop("warm-up request")
        elif metadata.get("was_cancelled") or record.get("error"):
            builder.drop("cancelled or failed request")
        else:
            conversation = metadata.get("conversation_id")
            session = sessions.setdefault(str(conversation), len(sessions)) if conversation is not None else -1
            seconds, end = (
                float(clock.seconds(arrow([metadata.get(f"request_{side}_ns")]))[0]) for side in ("start", "end")
            )
            first = seconds + _number(_value(metrics, "time_to_first_token")) / 1000
            lengths = (_value(metrics, f"{side}_sequence_length") for side in ("input", "output"))
            rows.add(*lengths, arrival_seconds=seconds, session=session, moments=(first, end))
    builder.absolute = clock.absolute
    rows.flush()
    return builder.build()


def _value(metrics: dict[str, Any], name: str) -> Any:
    metric = metrics.get(name)
    return metric.get("value") if isinstance(metric, dict) else metric


def _is_guidellm(head: Head) -> bool:
    return head.shape in (Shape.JSON_LINES, Shape.JSON_DOCUMENT) and "benchmarks" in head.keys


def _read_guidellm(given: Given) -> Trace:
    builder = WorkloadBuilder(GUIDELLM, source=given.source.name)
    builder.absolute = True
    rows = RowBuffer(builder, observed=True)
    clock = Clock(TimeUnit.SECONDS)
    for report in iter_objects(given.source, given.head, builder.drop):
        for benchmark in _listed(report, "benchmarks"):
            requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
            if not isinstance(requests, dict):
                builder.note("a benchmark without its requests is left out")
                continue
            for status in ("incomplete", "errored"):
                builder.drop(f"request {status}", len(_listed(requests, status)))
            for request in _listed(requests, "successful"):
                _add_guidellm(request, rows, clock, builder)
    rows.flush()
    return builder.build()


def _listed(holder: dict[str, Any], name: str) -> list[Any]:
    value = holder.get(name)
    return value if isinstance(value, list) else []


_START_PATHS = (
    ("request_start_time",),
    ("start_time",),
    ("info", "timings", "request_start"),
    ("scheduler_info", "request_timings", "request_start"),
)


_FIRST_PATHS = (("first_token_time",), ("info", "timings", "first_iteration"))
_END_PATHS = (
    ("request_end_time",),
    ("end_time",),
    ("info", "timings", "request_end"),
    ("scheduler_info", "request_timings", "request_end"),
)


def _first_of(request: Any, paths: tuple[tuple[str, ...], ...]) -> Any:
    return next((value for path in paths if (value := _walk(request, path)) is not None), None)


def _add_guidellm(request: Any, rows: RowBuffer, clock: Clock, builder: WorkloadBuilder) -> None:
    if not isinstance(request, dict):
        builder.drop("request is not an object")
        return
    start = _first_of(request, _START_PATHS)
    seconds = float(clock.seconds(arrow([start]))[0])
    moments = tuple(_first_of(request, paths) for paths in (_FIRST_PATHS, _END_PATHS))
    first, end = (math.nan if m is None else float(clock.seconds(arrow([m]))[0]) for m in moments)
    rows.add(request.get("prompt_tokens"), request.get("output_tokens"), arrival_seconds=seconds, moments=(first, end))


def _walk(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


READERS = (
    Reader(format=BENCH, matches=_is_bench, read=_read_bench),
    Reader(format=AIPERF, matches=_is_aiperf, read=_read_aiperf),
    Reader(format=GUIDELLM, matches=_is_guidellm, read=_read_guidellm),
)
