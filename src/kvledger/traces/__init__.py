"""Request traces: one reader a format, found by content, and seeded synthetic workloads."""

from kvledger.traces.attach import with_content
from kvledger.traces.read import read_folder, read_trace
from kvledger.traces.record import ErrorBand, Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import ReadOptions
from kvledger.traces.retime import with_rate
from kvledger.traces.sessions import SessionStarts
from kvledger.traces.synthetic import synthesise

__all__ = [
    "ErrorBand",
    "ReadOptions",
    "SessionStarts",
    "Trace",
    "TraceAccuracy",
    "TraceFormat",
    "read_folder",
    "read_trace",
    "synthesise",
    "with_content",
    "with_rate",
]
