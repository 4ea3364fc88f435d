"""The law of a vLLM server (V1) as recording rules over its own metrics.

What the meter does with one sample after another, a rule does with one instant and the last idle one::

    counted = what entered - what ended                     alive and lost
    lost    = counted, at the last idle instant of this process
    live    = counted - lost                                exact while nobody was lost since then
    held    = gauge * (blocks - 1) * tokens of a block
    used    = live - unsaved - shared ... live + prefill, and held less a tail for each running request ... held

``low`` and ``high`` are the ends of an interval that holds the truth. What follows from a series that is missing is
missing too.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.report.prometheus.rules import Rule, at_least, at_most
from kvledger.report.prometheus.vllm_names import BY_HOST, BY_WHOSE, VllmNames

__all__ = ["token_rules"]

_ANCHOR = "1d"
"""How far back an idle instant is looked for."""
_IS_SETTLED = "max_over_time(kvledger:crowded[2m]) == 0"
"""A request that runs again after a preemption has computed its tokens by then."""
_KINDS = ("tokens", "requests", "hit_tokens", "pending_tokens")


def token_rules(names: VllmNames) -> Iterator[Rule]:
    """Yield the rules of the law: what is counted, lost, live, used and internal."""
    yield from _counted(names)
    yield from _lost()
    yield from _hidden(names)
    yield from _live()
    yield from _used()


def _counted(names: VllmNames) -> Iterator[Rule]:
    find = names.find
    prompts = find("request_prompt_tokens_sum")
    yield Rule(
        record="kvledger:counted_tokens",
        meaning="Tokens that entered less tokens of ended requests: of live requests and of lost ones. "
        "Raw counters, whose restarts come together",
        expr=f"{find('prompt_tokens_total')} - {prompts}\n"
        f"+ {find('generation_tokens_total')} - {find('request_generation_tokens_sum')}",
    )
    yield Rule(
        record="kvledger:counted_requests",
        meaning="Requests that emitted a token less those that ended",
        expr=f"{find('time_to_first_token_seconds_count')} - {find('request_prompt_tokens_count')}",
    )
    yield Rule(
        record="kvledger:counted_hit_tokens",
        meaning="Tokens found in the prefix cache, less those of ended requests (0.16 and later)",
        expr=f"{find('prompt_tokens_cached_total')}\n- ({prompts} - {find('request_prefill_kv_computed_tokens_sum')})",
    )
    caching = names.says("enable_prefix_caching", "True")
    yield Rule(
        record="kvledger:counted_pending_tokens",
        meaning="Prompts that were admitted and have emitted nothing; counted with prefix caching only",
        expr=f"{find('prefix_cache_queries_total')} - {find('prompt_tokens_total')}\nand {caching}",
    )


def _lost() -> Iterator[Rule]:
    ours = f"process_start_time_seconds and on {BY_HOST} kvledger:running_requests"
    yield Rule(
        record="kvledger:process_info",
        meaning="When the server started, as a label: what was lost before a restart is not lost after it",
        expr=f'1 + 0 * count_values by {BY_HOST} ("start", {ours})',
    )
    for kind in _KINDS:
        yield Rule(
            record=f"kvledger:idle_{kind}",
            meaning="What is counted although nothing runs and nothing waits: it was lost",
            expr=f"(kvledger:counted_{kind} and kvledger:running_requests == 0 and kvledger:waiting_requests == 0)\n"
            f"* on {BY_HOST} group_left (start) kvledger:process_info",
        )
        yield Rule(
            record=f"kvledger:lost_{kind}",
            meaning="The same at the last idle instant of this process",
            expr=_in_this_process(f"last_over_time(kvledger:idle_{kind}"),
        )


def _in_this_process(function: str) -> str:
    """Return the PromQL of a function over the past of a record, as far as the process is the same."""
    start = BY_HOST.replace(")", ", start)")
    return f"sum by {BY_WHOSE} (\n  {function}[{_ANCHOR}])\n  * on {start} group_left () kvledger:process_info\n)"


def _hidden(names: VllmNames) -> Iterator[Rule]:
    """What the counters and the gauge do not see alike."""
    running, waiting = "kvledger:running_requests", "kvledger:waiting_requests"
    block = "kvledger:block_tokens"
    yield Rule(
        record="kvledger:prefill_high_tokens",
        meaning="Most prompt tokens of requests that are admitted and have emitted nothing",
        expr=_since_idle("pending_tokens"),
    )
    yield Rule(
        record="kvledger:prefilling_high_requests",
        meaning="Most requests that are admitted and have emitted nothing",
        expr=f"(0 * {running} and kvledger:counted_pending_tokens == kvledger:lost_pending_tokens)\nor {running}",
    )
    yield Rule(
        record="kvledger:unseen_high_requests",
        meaning="Most requests that are counted and do not run: preempted, or lost since the last idle instant",
        expr=f"{_since_idle('requests')} - {running} + kvledger:prefilling_high_requests",
    )
    yield Rule(
        record="kvledger:hit_high_tokens",
        meaning="Most tokens that live requests found in the prefix cache",
        expr=f"{names.says('enable_prefix_caching', 'False')}\nor {_since_idle('hit_tokens')}",
    )
    drafts = names.find("spec_decode_num_draft_tokens_total")
    yield Rule(
        record="kvledger:tail_high_tokens",
        meaning="Most slots behind the last token of running requests; a draft may hold a block more",
        expr=f"{running} * ({block} - 1 + {block} * (({drafts} > bool 0) or 0 * {running}))",
    )
    longest = f"(kvledger:max_model_len_tokens or floor((kvledger:pool_blocks - 1) * {block} / 4))"
    full = f"(kvledger:held_blocks + ceil({longest} / {block}) > bool kvledger:pool_blocks - 1)"
    preempted = f"(({waiting} > bool 0) * (kvledger:unseen_high_requests > bool 0) or {waiting} > bool 0)"
    yield Rule(
        record="kvledger:crowded",
        meaning="1 where a request may have been preempted: counted, and holding nothing",
        expr=f"clamp_max({full} + {preempted}, 1)",
    )


def _live() -> Iterator[Rule]:
    started = f"* on {BY_HOST} group_left (start) kvledger:process_info"
    by_gauge = "kvledger:held_tokens + kvledger:running_requests + kvledger:hit_high_tokens"
    yield Rule(
        record="kvledger:lost_floor_tokens",
        meaning="Least that was lost: all that is counted while idle, else what is counted beyond what is held",
        expr="kvledger:idle_tokens\n"
        f"or (clamp_min(kvledger:counted_tokens - ({by_gauge}), 0) and kvledger:one_table and {_IS_SETTLED})\n"
        f"  {started}",
    )
    yield Rule(
        record="kvledger:lost_low_tokens",
        meaning="The most of these in the life of the process, since what is lost only grows",
        expr=_in_this_process("max_over_time(kvledger:lost_floor_tokens"),
    )
    yield Rule(
        record="kvledger:live_high_tokens",
        meaning="Most prompt and generated tokens of the requests that have emitted one",
        expr="clamp_min(kvledger:counted_tokens - kvledger:lost_low_tokens, 0)\nor kvledger:counted_tokens",
    )
    by_gauge = "clamp_min(kvledger:held_tokens - kvledger:tail_high_tokens - kvledger:prefill_high_tokens, 0)"
    sure = "(kvledger:live_high_tokens and kvledger:lost_tokens and kvledger:unseen_high_requests <= 0)"
    low = f"({by_gauge} and kvledger:one_table) or 0 * kvledger:live_high_tokens"
    yield Rule(
        record="kvledger:live_low_tokens",
        meaning="Least of them: all when nobody can have been lost since the last idle instant, else what is held",
        expr=f"{sure}\nor {at_most(low, 'kvledger:live_high_tokens')}",
    )


def _since_idle(kind: str) -> str:
    return f"(clamp_min(kvledger:counted_{kind} - kvledger:lost_{kind}, 0) or kvledger:counted_{kind})"


def _used() -> Iterator[Rule]:
    running, held = "kvledger:running_requests", "kvledger:held_tokens"
    alone = f"({running} unless on {BY_HOST} kvledger:process_info) or 0 * {running}"
    counted = f"kvledger:live_high_tokens + kvledger:prefill_high_tokens + ({alone})"
    yield Rule(
        record="kvledger:used_high_tokens",
        meaning="Most distinct tokens in the cache. Several API servers, which have no start time, are a step apart",
        expr=f"({at_most(counted, held)} or {held})\nand kvledger:one_table",
    )
    by_gauge = f"clamp_min({held} - kvledger:tail_high_tokens, 0)"
    by_count = f"(kvledger:live_low_tokens - {running} - kvledger:hit_high_tokens and {_IS_SETTLED})"
    least = f"({at_least(by_count, by_gauge)} or {by_gauge})"
    yield Rule(
        record="kvledger:used_low_tokens",
        meaning="Least of them: the token sampled last may not be stored, and hits are stored once",
        expr=f"{at_most(least, 'kvledger:used_high_tokens')}",
    )
    for end, other in (("low", "high"), ("high", "low")):
        yield Rule(
            record=f"kvledger:internal_{end}_tokens",
            meaning=f"{'Least' if end == 'low' else 'Most'} slots that are held and hold no token",
            expr=f"{held} - kvledger:used_{other}_tokens",
        )
