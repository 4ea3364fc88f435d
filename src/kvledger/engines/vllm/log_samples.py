"""The periodic lines of vLLM: V0, V1, several engines averaged, and one line a step."""

from __future__ import annotations

import re
from dataclasses import replace

from kvledger.engines.facts import SampleKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import Quantity

__all__ = ["SAMPLE_RULES"]

_NUMBER = r"\d{1,12}(?:\.\d{1,6})?"
_INTERVAL = re.compile(
    rf"(?:(?P<engines>\d{{1,4}}) Engines Aggregated: )?"
    rf"Avg prompt throughput: (?P<prompt>{_NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<generation>{_NUMBER}) tokens/s, "
    # A fork or a local build puts figures of its own between.
    r"(?:(?!Running: )[^,%]{1,80}, ){0,4}"
    r"Running: (?P<running>\d{1,9}) reqs"
    r"(?:, Swapped: (?P<swapped>\d{1,9}) reqs)?(?:, (?:Waiting|Pending): (?P<waiting>\d{1,9}) reqs)?"
    r"(?:, Deferred: (?P<deferred>\d{1,9}) reqs)?"
    r"(?:, (?!Preemptions: |Prefix |\w{1,12} KV cache usage)[^,%]{1,80}){0,4}"
    r"(?:, Preemptions: (?P<preemptions>\d{1,9}))?"
    rf"(?:, \w{{1,12}} KV cache usage: (?P<usage>{_NUMBER})%)?(?:, CPU KV cache usage: (?P<host>{_NUMBER})%)?"
    rf"(?:, Prefix cache hit rate: (?P<hits>{_NUMBER})%)?"
)
_HIT_RATE = re.compile(rf"Prefix cache hit rate: GPU: (?P<hits>{_NUMBER})%")
_PREEMPTED = re.compile(
    r"Sequence group .{1,120}? is preempted by .{1,60}? mode because there is not enough KV cache space"
    r".{0,300}?total_num_cumulative_preemption=(?P<total>\d{1,12})"
)
_ITERATION = re.compile(
    r"Iteration\((?P<index>\d{1,15})\): (?P<prefills>\d{1,9}) context requests, "
    r"(?P<prefill_tokens>\d{1,12}) context tokens, (?P<decodes>\d{1,9}) generation requests, "
    r"(?P<decode_tokens>\d{1,12}) generation tokens, "
    rf"iteration elapsed time: (?P<elapsed>{_NUMBER}) ms(?: \(dummy\))?"
    rf"(?:, \w{{1,12}} KV cache usage: (?P<usage>{_NUMBER})%)?"
)


def _ratio(hit: Hit, name: str) -> Quantity | None:
    return hit.number(name, 0.01)


def _interval(builder: LogBuilder, hit: Hit) -> None:
    builder.sample(
        hit,
        aggregated_engines=hit.integer("engines") or 1,
        running=hit.whole("running"),
        waiting=hit.whole("waiting"),
        swapped=hit.whole("swapped"),
        deferred=hit.whole("deferred"),
        preemptions=hit.whole("preemptions"),
        usage_ratio=_ratio(hit, "usage"),
        host_usage_ratio=_ratio(hit, "host"),
        prompt_tokens_per_second=hit.number("prompt"),
        generation_tokens_per_second=hit.number("generation"),
        prefix_hit_ratio=_ratio(hit, "hits"),
    )


def _hit_rate(builder: LogBuilder, hit: Hit) -> None:
    """V0 prints the hit rate on a line of its own, after the line it belongs to."""
    if builder.samples and builder.samples[-1].prefix_hit_ratio is None:
        builder.samples[-1] = replace(builder.samples[-1], prefix_hit_ratio=_ratio(hit, "hits"))


def _preempted(builder: LogBuilder, hit: Hit) -> None:
    """V0 prints every fiftieth preemption with the number of all until then; that restarts with the engine."""
    total, before = hit.integer("total") or 0, builder.scratch.get("preempted")
    new = total - before if isinstance(before, int) and before <= total else total
    builder.scratch["preempted"] = total
    builder.sample(hit, kind=SampleKind.EVENT, preemptions=hit.count(new))


def _iteration(builder: LogBuilder, hit: Hit) -> None:
    prefills, decodes = hit.integer("prefills") or 0, hit.integer("decodes") or 0
    tokens = (hit.integer("prefill_tokens") or 0) + (hit.integer("decode_tokens") or 0)
    builder.sample(
        hit,
        kind=SampleKind.ITERATION,
        running=hit.count(prefills + decodes),
        new_tokens=hit.count(tokens),
        step_seconds=hit.number("elapsed", 0.001),
        usage_ratio=_ratio(hit, "usage"),
    )


SAMPLE_RULES = (
    Rule("Avg prompt", _INTERVAL, _interval),
    Rule("Prefix cache hit rate: GPU", _HIT_RATE, _hit_rate),
    Rule("is preempted by", _PREEMPTED, _preempted),
    Rule("Iteration(", _ITERATION, _iteration),
)
"""Rules for the periodic lines."""
