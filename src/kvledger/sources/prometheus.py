"""A Prometheus server as a source: range queries over many instances, turned back into the scrapes they came from.

All series of one scrape carry one timestamp in Prometheus, so at any evaluation time every series of an instance comes
from the same scrape, and the laws hold for it as they do for a direct one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.engines.vllm.series import is_series, spelling_of, wanted_pattern
from kvledger.errors import SourceError, UsageError
from kvledger.measure.recording import RecordedSample
from kvledger.sources.endpoints import Answer, read_text
from kvledger.sources.http import Access, Address, fetch_with_retries, parse_address

__all__ = ["Range", "fetch_instances", "read_api_answer"]

_POINTS_A_QUERY = 500
_MAX_INSTANCES = 2000
_INSTANCE_LABELS = ("cluster", "namespace", "job", "pod", "instance")
_SELECTOR = re.compile(r"\{(?P<inside>[^{}]{0,2000})\}")
_START = "process_start_time_seconds"
_OTHERS = ("sglang:", "tgi_", "trtllm_", "trtllm:", "nv_trt_llm_", "lmdeploy:")
"""How the series of other engines begin; llama.cpp's say nothing about its slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What to ask for: a label selector such as ``{job="vllm"}``, and evaluation times."""

    start_seconds: float
    end_seconds: float
    step_seconds: float
    selector: str = "{}"


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] | None = None


class _Data(msgspec.Struct, rename={"kind": "resultType"}):
    result: list[_Series]
    kind: str = ""


class _Answer(msgspec.Struct, rename={"error_type": "errorType"}):
    status: str
    data: _Data | None = None
    error: str = ""
    error_type: str = ""


@dataclass(slots=True)
class _Instances:
    """Instances in the order in which they were first seen."""

    names: list[str]
    numbers: dict[tuple[str, ...], int]

    def number(self, labels: Mapping[str, str]) -> int:
        key = tuple(labels.get(name, "") for name in _INSTANCE_LABELS)
        found = self.numbers.get(key)
        if found is None:
            if len(self.names) >= _MAX_INSTANCES:
                raise SourceError(
                    f"more than {_MAX_INSTANCES:,} instances answer",
                    hint="narrow them with --selector '{job=\"vllm\"}'",
                )
            found = self.numbers[key] = len(self.names)
            self.names.append(labels.get("pod") or labels.get("instance") or f"instance {found + 1}")
        return found


def fetch_instances(url: str, access: Access, span: Range) -> Iterator[tuple[list[str], RecordedSample]]:
    """Yield (names so far, sample) of every instance, in the order of time within each slice of the range.

    Raises:
        UsageError: The range or the selector cannot be used.
        SourceError: The server cannot be asked, or has no series of an engine.
    """
    if not span.step_seconds > 0 or not span.end_seconds >= span.start_seconds:
        raise UsageError("the range of time is empty", hint="give --since 1h and --every 15s")
    address = parse_address(url, default_path="")
    known = _Instances([], {})
    query, found = _query(span.selector), False
    at = span.start_seconds
    while at <= span.end_seconds:
        until = min(span.end_seconds, at + (_POINTS_A_QUERY - 1) * span.step_seconds)
        parameters = {"query": query, "start": f"{at:.3f}", "end": f"{until:.3f}", "step": f"{span.step_seconds:g}"}
        for sample in _samples(_ask(address, access, parameters), known):
            found = True
            yield known.names, sample
        at = until + span.step_seconds
    if not found:
        raise SourceError(
            "the Prometheus server has no series of an engine in this range",
            hint="check --selector and --since; names begin with `vllm:` (or `vllm_`, `ray_vllm:`, `ray_vllm_`), "
            + ", ".join(f"`{one}`" for one in _OTHERS),
        )


def read_api_answer(content: bytes) -> tuple[list[str], list[RecordedSample]]:
    """Read a saved answer of the Prometheus HTTP API, instant or range.

    Raises:
        SourceError: It is none, or holds no series of an engine.
    """
    known = _Instances([], {})
    samples = list(_samples(_decode(content), known))
    if not samples:
        raise SourceError("the answer of the Prometheus API holds no series of an engine")
    return known.names, samples


def _query(selector: str) -> str:
    match = _SELECTOR.fullmatch(selector.strip() or "{}")
    if match is None:
        raise UsageError(f"`{selector[:80]}` is no label selector", hint="write one such as '{job=\"vllm\"}'")
    inside = match["inside"].strip().strip(",")
    others = "|".join(f"{one}.+" for one in _OTHERS)
    names = f'__name__=~"{wanted_pattern()}|{others}|{_START}",__name__!~".+_bucket"'
    return "{" + ",".join(part for part in (names, inside) if part) + "}"


def _ask(address: Address, access: Access, parameters: Mapping[str, str]) -> _Answer:
    path = f"{address.path.rstrip('/')}/api/v1/query_range?{urlencode(parameters)}"
    body = fetch_with_retries(
        Address(
            host=address.host, port=address.port, path=path, is_tls=address.is_tls, socket_path=address.socket_path
        ),
        access,
    )
    return _decode(body.content)


def _decode(content: bytes) -> _Answer:
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(
            f"the answer is none of the Prometheus API: {str(error)[:100]}", hint="give the address of a Prometheus"
        ) from None
    if answer.status != "success" or answer.data is None:
        raise SourceError(f"the Prometheus server refuses: {answer.error_type} {answer.error}"[:300])
    if answer.data.kind not in ("matrix", "vector"):
        raise SourceError(f"the answer holds a {answer.data.kind[:20]}, not series", hint="query series by name")
    return answer


def _samples(answer: _Answer, known: _Instances) -> Iterator[RecordedSample]:
    assert answer.data is not None
    lines: dict[tuple[float, int], list[str]] = {}
    for series in answer.data.result:
        head = _head(series.metric)
        if head is None:
            continue
        number = known.number(series.metric)
        points = series.values if series.values is not None else [series.value] if series.value else []
        for seconds, text in points:
            lines.setdefault((seconds, number), []).append(f"{head} {text}")
    for (seconds, number), series_lines in sorted(lines.items()):
        if all(line.startswith(_START) for line in series_lines):
            continue
        try:
            said = _read(series_lines)
        except SourceError as error:
            yield RecordedSample(seconds=seconds, source=number, error=error.message)
        else:
            yield RecordedSample(seconds=seconds, source=number, scrape=said.scrape, snapshots=said.snapshots)


def _read(lines: list[str]) -> Answer:
    """Read the series of one instance at one time; where two engines share it, vLLM's."""
    text = "\n".join(lines)
    return Answer(scrape=read_vllm_metrics(text)) if any(map(is_series, lines)) else read_text(text)


def _head(metric: Mapping[str, str]) -> str | None:
    name = metric.get("__name__", "")
    if name == _START:
        return name
    if not spelling_of(name) and not name.startswith(_OTHERS):
        return None
    labels = ",".join(f'{key}="{_escape(value)}"' for key, value in metric.items() if key != "__name__")
    return f"{name}{{{labels}}}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
