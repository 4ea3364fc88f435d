"""Content from another trace of the same requests: one that knows what they share, beside one that knows when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvledger.errors import TraceError
from kvledger.traces.record import Trace
from kvledger.units import counted

__all__ = ["with_content"]


def with_content(trace: Trace, known: Trace, *, origin: str = "another trace of the same requests") -> Trace:
    """Return ``trace`` with the content of ``known``, request by request in order of arrival; a note names ``origin``.

    Raises:
        TraceError: ``known`` tells no content, or its requests have other numbers or prompt lengths.
    """
    mine, theirs = trace.workload, known.workload
    if theirs.content is None:
        raise TraceError(
            f"the content file ({known.format.sentence}) does not tell what its requests share",
            hint="give a trace with token ids or block ids",
        )
    if len(mine) != len(theirs):
        raise TraceError(
            f"the content file has {counted(len(theirs), 'request')}, the trace has {len(mine):,}",
            hint="both must hold the same requests in the same order",
        )
    other = np.flatnonzero(mine.prompt_tokens != theirs.prompt_tokens)
    if len(other):
        first = int(other[0])
        differing = f"{counted(len(other), 'request')} {'differs' if len(other) == 1 else 'differ'}"
        raise TraceError(
            f"request {first} has {counted(mine.prompt_tokens[first], 'prompt token')} in the trace and "
            f"{theirs.prompt_tokens[first]:,} in the content file; {differing}",
            hint="both must hold the same requests in the same order",
        )
    note = f"content of the requests read from {origin} ({known.format.sentence})"
    return replace(trace, workload=replace(mine, content=theirs.content), notes=(*trace.notes, note)).check()
