"""OpenTelemetry spans of generative AI calls, as OTLP JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvledger.traces.batches import arrow, iter_objects
from kvledger.traces.builder import WorkloadBuilder
from kvledger.traces.head import Head, Shape
from kvledger.traces.record import Trace, TraceFormat
from kvledger.traces.registry import Given, Reader
from kvledger.traces.rows import RowBuffer
from kvledger.traces.times import Clock, TimeUnit

__all__ = ["READER"]

FORMAT = TraceFormat(name="otlp", sentence="OpenTelemetry gen_ai spans (OTLP JSON): start times and token usage")
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_LIMIT = ("gen_ai.request.max_tokens",)
_CHOICES = "gen_ai.request.choice.count"


def _matches(head: Head) -> bool:
    return head.shape in (Shape.JSON_LINES, Shape.JSON_DOCUMENT) and (
        "resourceSpans" in head.keys or head.has("startTimeUnixNano", "attributes")
    )


def _items(value: Any, *names: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the lists found under the first of these names that exists."""
    if isinstance(value, dict):
        found: list[Any] = next((value[name] for name in names if isinstance(value.get(name), list)), [])
        yield from (item for item in found if isinstance(item, dict))


def _spans(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "startTimeUnixNano" in document:
        yield document
    for resource in _items(document, "resourceSpans"):
        for scope in _items(resource, "scopeSpans", "instrumentationLibrarySpans"):
            yield from _items(scope, "spans")


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in _items(span, "attributes"):
        value = attribute.get("value")
        if isinstance(value, dict):
            value = next((value[kind] for kind in ("intValue", "doubleValue", "stringValue") if kind in value), None)
        found[str(attribute.get("key"))] = value
    return found


def _first(attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _read(given: Given) -> Trace:
    builder = WorkloadBuilder(FORMAT, source=given.source.name)
    builder.absolute = True
    rows, clock = RowBuffer(builder, sampled=True), Clock(TimeUnit.NANOSECONDS)
    for document in iter_objects(given.source, given.head, builder.drop):
        for span in _spans(document):
            attributes = _attributes(span)
            prompt, output = _first(attributes, _PROMPT), _first(attributes, _OUTPUT)
            if prompt is None and output is None:
                builder.drop("span without token usage")
                continue
            seconds = float(clock.seconds(arrow([span.get("startTimeUnixNano")]))[0])
            choices = attributes.get(_CHOICES)
            each = _shared_out(output, choices)
            builder.adjusted["output tokens of several choices: shared out evenly"] += each is not None
            rows.add(
                prompt,
                output if each is None else each,
                arrival_seconds=seconds,
                max_tokens=_first(attributes, _LIMIT),
                samples=choices,
            )
    rows.flush()
    return builder.build()


def _shared_out(output: Any, choices: Any) -> int | None:
    """Return the tokens of one of several choices, whose usage is counted together; None when there is one."""
    try:
        whole, parts = int(output), int(choices)
    except (TypeError, ValueError, OverflowError):
        return None
    return -(-whole // parts) if parts > 1 else None


READER = Reader(format=FORMAT, matches=_matches, read=_read)
