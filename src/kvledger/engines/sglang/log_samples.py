"""The batch lines of SGLang, and its retractions (preemptions)."""

from __future__ import annotations

import re

from kvledger.engines.facts import PoolReading, SampleKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import Quantity, largest, printed, whole

__all__ = ["SAMPLE_RULES"]

_BATCH = re.compile(
    r"(?P<kind>Prefill|Decode) batch(?: \[\d{1,15}\])?[.,] (?P<body>(?:(?!Prefill batch|Decode batch)[^\n]){1,1200})"
)
_FIELDS = re.compile(
    r"(?P<name>#[a-z]{1,20}(?: |-)?[a-z]{0,20}|(?:full |swa |mamba |gpu |cpu )?token usage|mamba usage|mamba num"
    r"|pre-allocated usage|cache hit rate|(?:gen|input) throughput \(token/s\)): (?P<value>\d{1,15}(?:\.\d{1,6})?)"
)
_RETRACT = re.compile(
    r"(?:KV cache pool is full\. Retract requests|Decode out of memory happened)\."
    r".{0,200}?#retracted_reqs: (?P<count>\d{1,9})"
)
_POOLS = (("full", "#full token", "full token usage"), ("swa", "#swa token", "swa token usage"))


def _read_fields(hit: Hit) -> dict[str, str]:
    return {match["name"]: match["value"] for match in _FIELDS.finditer(hit.match["body"])}


def _batch(builder: LogBuilder, hit: Hit) -> None:
    fields = _read_fields(hit)

    def count(name: str) -> Quantity | None:
        return whole(fields[name], line=hit.line, origin=hit.origin) if name in fields else None

    def ratio(name: str, factor: float = 1.0) -> Quantity | None:
        return printed(fields[name], factor=factor, line=hit.line, origin=hit.origin) if name in fields else None

    pools = [
        PoolReading(name=name, used=count(used), usage_ratio=ratio(usage))
        for name, used, usage in _POOLS
        if usage in fields
    ]
    if "mamba usage" in fields:
        pools.append(PoolReading(name="state", unit="slots", used=count("mamba num"), usage_ratio=ratio("mamba usage")))
    if "cpu token usage" in fields:
        pools.append(PoolReading(name="host", used=count("#cpu token"), usage_ratio=ratio("cpu token usage")))
    builder.sample(
        hit,
        kind=SampleKind(hit.match["kind"].lower()),
        running=count("#running-req"),
        waiting=count("#queue-req"),
        swapped=count("#retracted-req"),
        tokens=count("#token") or count("#full token") or count("#gpu token"),
        usage_ratio=ratio("token usage") or largest(pool.usage_ratio for pool in pools if pool.name != "host"),
        generation_tokens_per_second=ratio("gen throughput (token/s)"),
        prompt_tokens_per_second=ratio("input throughput (token/s)"),
        prefix_hit_ratio=ratio("cache hit rate", 0.01),
        new_sequences=count("#new-seq"),
        new_tokens=count("#new-token"),
        cached_tokens=count("#cached-token"),
        pools=tuple(pools),
    )


def _retract(builder: LogBuilder, hit: Hit) -> None:
    builder.sample(hit, kind=SampleKind.EVENT, preemptions=hit.whole("count"))


SAMPLE_RULES = (
    Rule(" batch", _BATCH, _batch, _FIELDS),
    Rule("#retracted_reqs", _RETRACT, _retract),
)
"""Rules for the periodic lines."""
