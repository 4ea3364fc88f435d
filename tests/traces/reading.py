"""Ways for the tests of this folder to read bytes as a trace."""

import io

from kvledger.traces import ReadOptions, Trace, read_trace


def read(data: bytes | str, *, columns: str | None = None, options: ReadOptions | None = None) -> Trace:
    raw = data.encode() if isinstance(data, str) else data
    return read_trace(io.BytesIO(raw), name="`t`", columns=columns, options=options)


CSV = "arrival_seconds,prompt_tokens,output_tokens\n0,10,5\n1.5,20,6\n2,30,7\n"
