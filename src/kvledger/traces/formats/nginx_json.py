"""Access logs of nginx written as JSON: a moment at the end of a request, and how long it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from kvledger.ledger import Accuracy
from kvledger.traces.batches import iter_objects
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.columns import can_guess, guess_mapping
from kvledger.traces.formats.engine_logs import BYTES_PER_TOKEN
from kvledger.traces.formats.nginx import COMPLETIONS, FAILED, NO_CALL, OUTPUT_BAND, PROMPT_BAND, tokens_of_bytes
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader
from kvledger.traces.rows import RowBuffer
from kvledger.traces.times import ABSOLUTE_SECONDS, parse_date

__all__ = ["READER"]

FORMAT = TraceFormat(
    name="nginx-json", sentence="access log of nginx as JSON: when requests ended, and how long they took"
)
_ENDS = ("msec", "time_iso8601", "time", "timestamp", "@timestamp", "time_local", "ts")
_SENT = ("body_bytes_sent", "bytes_sent")
_PATHS = ("request_uri", "uri", "path", "url")
_LONGEST_SECONDS = 1e7
_Row = Mapping[str, object]


def _matches(head: Head) -> bool:
    """Tell such a log by a duration in ``request_time`` beside a moment."""
    if head.shape not in (Shape.JSON_LINES, Shape.JSON_ARRAY) or not head.has("request_time"):
        return False
    has_lengths = can_guess(head.names) or (head.has("request_length") and any(head.has(name) for name in _SENT))
    if not head.first:
        return has_lengths and any(head.has(name) for name in _ENDS)
    return has_lengths and math.isfinite(_ended(head.first)) and math.isfinite(_seconds(head.first))


def _read(given: Given) -> Trace:
    """Read completion calls: arrival = logged time - request time; tokens as logged, else bytes / 4."""
    builder = WorkloadBuilder(FORMAT, source=given.source.name)
    builder.absolute = True
    rows = RowBuffer(builder)
    names = given.head.names
    counted = guess_mapping(names, source=given.source.name) if can_guess(names) else None
    for row in iter_objects(given.source, given.head, builder.drop):
        if not _is_call(row):
            builder.drop(NO_CALL)
        elif not str(row.get("status", 200)).startswith("2"):
            builder.drop(FAILED)
        else:
            lengths = (row.get(counted.prompt), row.get(counted.output)) if counted else _estimated(row)
            rows.add(*lengths, arrival_seconds=_ended(row) - _seconds(row))
    rows.flush()
    if counted is None:
        builder.accuracy = TraceAccuracy(
            arrivals=Accuracy.DERIVED,
            prompts=Accuracy.MODELLED,
            outputs=Accuracy.MODELLED,
            prompt_band=PROMPT_BAND,
            output_band=OUTPUT_BAND,
        )
        builder.note(
            f"lengths are bytes / {BYTES_PER_TOKEN:g}, for responses that are not streamed; expect a wide error"
        )
    else:
        builder.accuracy = TraceAccuracy(arrivals=Accuracy.DERIVED)
    builder.note("the log shows when requests ended: arrivals are that minus `request_time`")
    return builder.build()


def _is_call(row: _Row) -> bool:
    """Tell whether a row is a completion call, as far as it says which call it is."""
    method, path = row.get("request_method", row.get("method")), next((row[n] for n in _PATHS if n in row), None)
    request = row.get("request")
    if isinstance(request, str) and len(parts := request[:8000].split(" ")) >= 2:
        method, path = parts[0], parts[1]
    posted = not isinstance(method, str) or method.upper() == "POST"
    return posted and (not isinstance(path, str) or COMPLETIONS.search(path[:8000]) is not None)


def _estimated(row: _Row) -> tuple[float, float]:
    sent = next((row[name] for name in _SENT if name in row), None)
    prompt, output = _number(row.get("request_length")), _number(sent)
    return _tokens(prompt), _tokens(output)


def _tokens(size_bytes: float) -> float:
    return tokens_of_bytes(size_bytes) if math.isfinite(size_bytes) else math.nan


def _seconds(row: _Row) -> float:
    seconds = _number(row.get("request_time"))
    return seconds if 0 <= seconds < _LONGEST_SECONDS else math.nan


def _ended(row: _Row) -> float:
    """Return when a request ended, in seconds since 1970; NaN when the row does not tell."""
    return next((moment for name in _ENDS if math.isfinite(moment := _moment(row.get(name)))), math.nan)


def _moment(value: object) -> float:
    number = _number(value)
    if math.isfinite(number):
        return number / 1000 if number > 1000 * ABSOLUTE_SECONDS else number if number > ABSOLUTE_SECONDS else math.nan
    if not isinstance(value, str) or len(value) > 64:
        return math.nan
    nanoseconds = parse_date(value)
    if nanoseconds is not None:
        return nanoseconds / 1e9
    try:
        return datetime.strptime(value, "%d/%b/%Y:%H:%M:%S %z").timestamp()
    except (ValueError, OverflowError):
        return math.nan


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


READER = Reader(format=FORMAT, matches=_matches, read=_read)
