"""The recording rules of an SGLang server over its own metrics (``--enable-metrics``, 0.4 to 0.5.23).

SGLang says what is held, kept and free (``kv_*_tokens`` from 0.5.13). Every held page has at least one token; the
tokens of the decode batch (``decode_sum_seq_lens``) count a shared prefix once for each request, so they bound nothing.
Models with a second pool (sliding windows) are left out: one number does not tell their pools apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.report.prometheus.rules import HOST, Rule, RuleGroup, at_most, label_as_number, with_label

__all__ = ["sglang_rules"]

_WHOSE = (*HOST, "model_name", "engine_type", "dp_rank", "pp_rank", "tp_rank", "moe_ep_rank")
_BY_WHOSE = f"({', '.join(_WHOSE)})"
_HELD = "kvledger:held_tokens"


def sglang_rules(*, prefix: str = "sglang:") -> RuleGroup:
    """Return the rules of SGLang; ``prefix`` is how its names begin in this Prometheus."""

    def find(name: str) -> str:
        return f'sum by {_BY_WHOSE} ({prefix}{name}{{priority=""}} >= 0)'

    held = f"({find('kv_used_tokens')} or {find('num_used_tokens')})"
    page = f"{find('page_size')}\nor {label_as_number(f'{prefix}cache_config_info', 'page_size', keep=_WHOSE)}"
    return RuleGroup(
        name="kvledger-sglang",
        rules=(
            Rule(record="kvledger:running_requests", meaning="Requests that run", expr=find("num_running_reqs")),
            Rule(record="kvledger:waiting_requests", meaning="Requests that wait", expr=find("num_queue_reqs")),
            Rule(
                record="kvledger:capacity_tokens",
                meaning="Token slots of the pool, where there is only one",
                expr=f"{find('max_total_num_tokens')}\n"
                f"unless ({find('max_total_num_tokens_swa')} > 0 or {find('swa_used_tokens')} > 0)",
            ),
            Rule(record="kvledger:block_tokens", meaning="Tokens of a page", expr=page),
            Rule(
                record=_HELD,
                meaning="Token slots that running requests hold",
                expr=at_most(held, "kvledger:capacity_tokens"),
            ),
            *_used(),
            *_reservation(find("context_len")),
            Rule(
                record="kvledger:available_tokens",
                meaning="Slots that requests can still take: free or cached",
                expr=f"kvledger:capacity_tokens - {_HELD}",
            ),
            _accounts(find("kv_evictable_tokens")),
        ),
    )


def _used() -> Iterator[Rule]:
    yield Rule(
        record="kvledger:used_high_tokens", meaning="Most distinct tokens in the cache: all that is held", expr=_HELD
    )
    yield Rule(
        record="kvledger:used_low_tokens",
        meaning="Least of them: one in each page",
        expr=f"(ceil({_HELD} / kvledger:block_tokens) or 0 * {_HELD})",
    )
    yield Rule(
        record="kvledger:internal_low_tokens",
        meaning="Least slots that are held and hold no token: not told",
        expr=f"0 * {_HELD}",
    )
    yield Rule(
        record="kvledger:internal_high_tokens",
        meaning="Most slots that are held and hold no token",
        expr=f"{_HELD} - kvledger:used_low_tokens",
    )


def _reservation(length: str) -> Iterator[Rule]:
    running = "kvledger:running_requests"
    yield Rule(record="kvledger:max_model_len_tokens", meaning="Longest request", expr=length)
    yield Rule(
        record="kvledger:reservation_tokens",
        meaning="What reservation at the longest length would hold for the requests now running",
        expr=with_label(f"kvledger:max_model_len_tokens * ({running} > 0)", "policy", "max"),
    )
    admitted = f"floor((kvledger:capacity_tokens and {running} > 0) / kvledger:max_model_len_tokens)"
    tables = f"floor(kvledger:capacity_tokens * {running} / ({_HELD} > 0))"
    yield Rule(
        record="kvledger:admitted_requests",
        meaning="Requests like those now running that the pool admits under reservation, and in pages",
        expr=f"{with_label(admitted, 'policy', 'max')}\nor {with_label(tables, 'policy', 'block-tables')}",
    )


def _accounts(evictable: str) -> Rule:
    cached = f"({at_most(evictable, f'kvledger:capacity_tokens - {_HELD}')} or 0 * {_HELD})"
    free = f"(clamp_min(kvledger:capacity_tokens - {_HELD} - {evictable}, 0) or 0 * {_HELD})"
    known = {"used": "kvledger:used_low_tokens", "internal": f"0 * {_HELD}", "cached": cached, "free": free}
    rest = " - ".join(("kvledger:capacity_tokens", "kvledger:used_low_tokens", cached, free))
    parts = [with_label(value, "account", name) for name, value in known.items()]
    return Rule(
        record="kvledger:pool_tokens",
        meaning="The pool by account; they sum to it. Intervals stand with their least, the rest is unattributed",
        expr="\nor ".join([*parts, with_label(rest, "account", "unattributed")]),
    )
