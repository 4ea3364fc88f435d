"""Iterations in the logs of TensorRT-LLM: the line of the PyTorch flow, and the JSON of the C++ batch manager."""

from __future__ import annotations

import json
import re

from kvledger.engines.facts import PoolReading, SampleKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import printed
from kvledger.engines.strict_json import number

__all__ = ["SAMPLE_RULES"]

_ITERATION = re.compile(
    r"\biter = (?P<index>\d{1,15}),.{0,400}?num_scheduled_requests: (?P<running>\d{1,9}), states = "
    r"\{'num_ctx_requests': (?P<prefills>\d{1,9}), 'num_ctx_tokens': (?P<prefill_tokens>\d{1,12}), "
    r"'num_generation_tokens': (?P<decode_tokens>\d{1,12})\}"
)
_STEP = re.compile(r"host_step_time = (?P<value>\d{1,12}(?:\.\d{1,6})?) ?ms")
_STATISTICS = re.compile(
    r"(?P<json>\{\"[^{}]{0,200}\"Active Request Count\":[^{}]{0,4000}\}|\{\"Active Request Count\":[^{}]{0,4000}\})"
)


def _iteration(builder: LogBuilder, hit: Hit) -> None:
    tokens = (hit.integer("prefill_tokens") or 0) + (hit.integer("decode_tokens") or 0)
    step = _STEP.search(hit.match[0])
    builder.sample(
        hit,
        kind=SampleKind.ITERATION,
        running=hit.whole("running"),
        new_sequences=hit.whole("prefills"),
        new_tokens=hit.count(tokens),
        step_seconds=None if step is None else printed(step[1], factor=0.001, line=hit.line),
    )


def _statistics(builder: LogBuilder, hit: Hit) -> None:
    try:
        record = json.loads(hit.match["json"])
    except ValueError:
        return
    if not isinstance(record, dict):
        return
    pool = PoolReading(
        unit="blocks",
        capacity=number(record, "Max KV cache blocks"),
        used=number(record, "Used KV cache blocks"),
        free=number(record, "Free KV cache blocks"),
        block_tokens=number(record, "Tokens per KV cache block"),
    )
    builder.sample(
        hit,
        kind=SampleKind.ITERATION,
        running=number(record, "Scheduled Requests", "Scheduled Requests per Model"),
        swapped=number(record, "Paused Requests"),
        pools=(pool,) if pool.capacity or pool.used else (),
    )


SAMPLE_RULES = (
    Rule("num_scheduled_requests", _ITERATION, _iteration),
    Rule("Active Request Count", _STATISTICS, _statistics),
)
"""Rules for iterations."""
