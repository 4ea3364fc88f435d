"""Access logs of nginx or an ingress before the engine: token counts only by bytes, with a wide error band."""

from __future__ import annotations

import re
from datetime import datetime

from kvledger.ledger import Accuracy
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.formats.engine_logs import BYTES_PER_TOKEN, text_lines
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import ErrorBand, Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader
from kvledger.traces.rows import RowBuffer

__all__ = ["COMPLETIONS", "FAILED", "NO_CALL", "OUTPUT_BAND", "PROMPT_BAND", "READER", "tokens_of_bytes"]

FORMAT = TraceFormat(name="nginx", sentence="combined access log with timing: token counts are estimated from bytes")
_LINE = re.compile(
    r"^\S{1,200} \S{1,200} \S{1,200} \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    r'"([A-Z]{3,10}) (\S{1,4000})[^"]{0,40}" (\d{3}) (\d{1,15}|-)'
)
_TIMING = {
    name: re.compile(rf'\b(?:{keys})="?(\d{{1,9}}(?:\.\d{{1,6}})?)')
    for name, keys in (("seconds", "rt|request_time"), ("bytes", "rl|request_length"))
}
NO_CALL, FAILED = "not a completion call (health, metrics, other)", "request failed"
COMPLETIONS = re.compile(r"/(?:completions|chat|generate|responses|messages)(?:[/?]|$)")
PROMPT_BAND = ErrorBand(low_ratio=0.3, high_ratio=2.0)
"""A request body also holds JSON keys, roles and escapes; text has 2 to 6 bytes a token."""
OUTPUT_BAND = ErrorBand(low_ratio=0.015, high_ratio=2.0)
"""A streamed response has some 250 bytes around every token, a plain one 2 to 6 bytes a token."""


def _matches(head: Head) -> bool:
    return head.shape in (Shape.TEXT, Shape.CSV) and any(_LINE.match(line[:5000]) for line in head.lines[:50])


def _read(given: Given) -> Trace:
    """Read completion calls: arrival = logged time - request time, tokens = bytes / 4."""
    builder = WorkloadBuilder(FORMAT, source=given.source.name)
    builder.absolute = True
    rows = RowBuffer(builder)
    for line in text_lines(given.source):
        match = _LINE.match(line[:8000])
        if match is None:
            builder.drop("line is not in the combined format")
        elif match[2] != "POST" or not COMPLETIONS.search(match[3]):
            builder.drop(NO_CALL)
        elif not match[4].startswith("2"):
            builder.drop(FAILED)
        else:
            _add(line[match.end() : match.end() + 8000], match, rows)
    rows.flush()
    builder.accuracy = TraceAccuracy(
        arrivals=Accuracy.DERIVED,
        prompts=Accuracy.MODELLED,
        outputs=Accuracy.MODELLED,
        prompt_band=PROMPT_BAND,
        output_band=OUTPUT_BAND,
    )
    builder.note(f"lengths are bytes / {BYTES_PER_TOKEN:g}, for responses that are not streamed; expect a wide error")
    builder.note("the log shows when requests ended: arrivals are that minus the request time, to the second")
    return builder.build()


def _add(rest: str, match: re.Match[str], rows: RowBuffer) -> None:
    seconds, length = (_TIMING[name].search(rest) for name in ("seconds", "bytes"))
    try:
        ended = datetime.strptime(match[1], "%d/%b/%Y:%H:%M:%S %z").timestamp()
    except (ValueError, OverflowError):
        ended = float("nan")
    rows.add(
        tokens_of_bytes(float(length[1])) if length else None,
        tokens_of_bytes(float(match[5])) if match[5] != "-" else None,
        arrival_seconds=ended - (float(seconds[1]) if seconds else 0.0),
    )


def tokens_of_bytes(size_bytes: float) -> float:
    """Estimate tokens from bytes."""
    return float(round(size_bytes / BYTES_PER_TOKEN))


READER = Reader(format=FORMAT, matches=_matches, read=_read)
