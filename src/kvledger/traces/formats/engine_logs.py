"""Request logs of vLLM and SGLang: lines of Python representations, read without evaluating anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from kvledger.ledger import Accuracy
from kvledger.traces.batch import IdentityKind
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import ErrorBand, Trace, TraceAccuracy, TraceFormat
from kvledger.traces.registry import Given, Reader
from kvledger.traces.rows import RowBuffer
from kvledger.traces.stream import TraceInput

__all__ = ["BYTES_PER_TOKEN", "NOT_A_REQUEST", "SGLANG", "TEXT_BAND", "VLLM", "text_lines"]

BYTES_PER_TOKEN = 4.0
"""A rough mean for English text and code; other scripts and tokenizers lie between 2 and 6."""
TEXT_BAND = ErrorBand(low_ratio=4 / 6, high_ratio=4 / 2)
NOT_A_REQUEST = "line describes no request"
_DAY_SECONDS = 86_400
_YEAR_SECONDS = 365 * _DAY_SECONDS

VLLM_FORMAT = TraceFormat(
    name="vllm-log", sentence="vLLM request log: arrival to the second, declared max_tokens; no output lengths"
)
SGLANG_FORMAT = TraceFormat(
    name="sglang-log", sentence="SGLang request log: receive time, prompt and completion tokens from the finish line"
)

_VLLM_LINE = re.compile(r"INFO (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d).{0,200}? Received request ([^\s:]{1,200}):")
_MAX_TOKENS = re.compile(r"[(, ]max_tokens=(\d{1,12}|None)")
_SAMPLES = (re.compile(r"[(, ]best_of=(\d{1,6})"), re.compile(r"[(, ]n=(\d{1,6})"))
_BEAM_WIDTH = re.compile(r"[(, ]beam_width=(\d{1,6})")
_TOKEN_LIST = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_SGLANG_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?[^\]]{0,80}\] (Receive|Finish): obj=")
_RID = re.compile(r"\brid='([^']{1,200})'")
_NEW_TOKENS = re.compile(r"'max_new_tokens': (\d{1,12})")


def text_lines(source: TraceInput) -> Iterator[str]:
    """Yield lines as text; bytes that are not UTF-8 are replaced."""
    for line in source.lines():
        yield line.decode("utf-8", errors="replace")


def _some_line(head: Head, pattern: re.Pattern[str]) -> bool:
    return head.shape in (Shape.TEXT, Shape.CSV) and any(pattern.search(line[:4000]) for line in head.lines)


class _YearlessClock:
    """Month, day and time without a year: a jump back of more than half a year is a new year."""

    def __init__(self) -> None:
        self._years = 0
        self._is_leap = False
        self._last = 0

    def seconds(self, month: int, day: int, *clock: int) -> float | None:
        """Return seconds since the start of the first year, or None for a day that does not exist."""
        self._is_leap |= (month, day) == (2, 29)
        try:
            date = datetime(2000 if self._is_leap else 2001, month, day)
        except ValueError:
            return None
        moment = date.timetuple().tm_yday * _DAY_SECONDS + clock[0] * 3600 + clock[1] * 60 + clock[2]
        if moment + self._years * _YEAR_SECONDS < self._last - _YEAR_SECONDS // 2:
            self._years += 1
        self._last = moment + self._years * _YEAR_SECONDS
        return float(self._last)


def _read_vllm(given: Given) -> Trace:
    builder = WorkloadBuilder(VLLM_FORMAT, source=given.source.name)
    builder.absolute = True
    rows, clock = RowBuffer(builder, identified=given.options.identity, sampled=True), _YearlessClock()
    counted = identified = 0
    for line in text_lines(given.source):
        match = _VLLM_LINE.search(line[:4000])
        if match is None:
            builder.drop(NOT_A_REQUEST)
            continue
        end = max(line.rfind("params: SamplingParams("), line.rfind("params: BeamSearchParams("))
        limit = _MAX_TOKENS.search(line, max(end, match.end()))
        if limit is None or limit[1] == "None":
            builder.drop("request without max_tokens: nothing bounds its output")
            continue
        ids = _token_list(line, max(end, match.end()))
        tokens: float | None = len(ids) if ids else _from_text(line, match.end(), end)
        samples, searches = _answers(line, max(end, match.end()))
        rows.add(
            tokens,
            limit[1],
            arrival_seconds=clock.seconds(*map(int, match.groups()[:5])),
            max_tokens=limit[1],
            samples=samples,
            searches=searches,
        )
        counted += bool(ids)
        if given.options.identity and ids:
            rows.identify(ids)
            identified += 1
    rows.flush()
    builder.identity = IdentityKind.tokens() if identified else None
    _explain_vllm(builder, exact=counted == len(builder))
    return builder.build()


def _answers(line: str, start: int) -> tuple[str | None, bool]:
    """Return how many answers a request decodes together, and whether they are candidates of a beam search."""
    width = _BEAM_WIDTH.search(line, start)
    if width:
        return width[1], True
    found = next((match for match in (pattern.search(line, start) for pattern in _SAMPLES) if match), None)
    return found[1] if found else None, "use_beam_search=True" in line[start:]


def _token_list(line: str, start: int) -> list[int]:
    match = _TOKEN_LIST.search(line, start)
    ids = [int(part) for part in match[1].split(",") if part.strip() and len(part) < 12] if match else []
    return [i for i in ids if i < 2**31]


def _from_text(line: str, start: int, end: int) -> float | None:
    """Estimate the prompt's tokens by its bytes, when the log holds its text."""
    mark = line.find("prompt: ", start)
    if mark < 0 or end <= mark:
        return None
    text = line[mark + len("prompt: ") : end].rstrip(", ")[1:-1]
    return max(1.0, float(round(len(text.encode("utf-8", errors="replace")) / BYTES_PER_TOKEN)))


def _explain_vllm(builder: WorkloadBuilder, *, exact: bool) -> None:
    builder.accuracy = TraceAccuracy(
        prompts=Accuracy.MEASURED if exact else Accuracy.MODELLED,
        outputs=Accuracy.MODELLED,
        prompt_band=None if exact else TEXT_BAND,
        output_band=ErrorBand(low_ratio=0.0, high_ratio=1.0),
    )
    builder.note("the log has no output lengths: max_tokens is taken, an upper bound")
    builder.note("times are whole seconds without a year")
    if not exact:
        builder.note(f"prompt tokens are estimated from the logged text at {BYTES_PER_TOKEN:g} bytes a token")


def _read_sglang(given: Given) -> Trace:
    builder = WorkloadBuilder(SGLANG_FORMAT, source=given.source.name)
    builder.absolute = True
    rows = RowBuffer(builder, observed=True)
    received: dict[str, float] = {}
    for line in text_lines(given.source):
        match = _SGLANG_LINE.search(line[:400])
        rid = _RID.search(line, match.end()) if match else None
        if match is None or rid is None:
            builder.drop(NOT_A_REQUEST)
            continue
        try:
            seconds = (datetime.fromisoformat(match[1]) - datetime(2000, 1, 1)).total_seconds()
        except ValueError:
            builder.drop("time is not a date")
            continue
        if match[2] == "Receive":
            received[rid[1]] = seconds
        else:
            _finish(line, rid[1], seconds, received, rows)
    builder.drop("request received but never finished in this log", len(received))
    rows.flush()
    builder.note("times are whole seconds")
    return builder.build()


def _finish(line: str, rid: str, seconds: float, received: dict[str, float], rows: RowBuffer) -> None:
    """Add the request that a finish line describes; its numbers stand behind the last `meta_info`."""
    meta = line[max(0, line.rfind("'meta_info'")) :]

    def value(name: str) -> float | None:
        found = re.search(rf"'{name}': (\d{{1,12}}(?:\.\d{{1,12}})?)", meta)
        return float(found[1]) if found else None

    limit = _NEW_TOKENS.search(line)
    arrival = received.pop(rid, None)
    latency = value("e2e_latency")
    if arrival is None:
        arrival = seconds - (latency or 0.0)
    rows.add(
        value("prompt_tokens"),
        value("completion_tokens"),
        arrival_seconds=arrival,
        max_tokens=limit[1] if limit else None,
        moments=(None, arrival + latency if latency else seconds),
    )


VLLM = Reader(format=VLLM_FORMAT, matches=lambda head: _some_line(head, _VLLM_LINE), read=_read_vllm)
SGLANG = Reader(format=SGLANG_FORMAT, matches=lambda head: _some_line(head, _SGLANG_LINE), read=_read_sglang)
