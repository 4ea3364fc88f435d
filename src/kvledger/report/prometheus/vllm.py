"""The recording rules of a vLLM server: pool, law, what reservation would hold, and the closed accounts."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.report.prometheus.rules import Rule, RuleGroup, at_most, with_label
from kvledger.report.prometheus.vllm_names import VllmNames
from kvledger.report.prometheus.vllm_pool import pool_rules
from kvledger.report.prometheus.vllm_tokens import token_rules

__all__ = ["vllm_rules"]


def vllm_rules(names: VllmNames) -> RuleGroup:
    """Return the rules of vLLM in the order in which they build on each other."""
    rules = (*pool_rules(names), *token_rules(names), *_reservation(names), *_accounts(names))
    return RuleGroup(name="kvledger-vllm", rules=rules)


def _reservation(names: VllmNames) -> Iterator[Rule]:
    length, running = "kvledger:max_model_len_tokens", "kvledger:running_requests"
    prompt, output, asked = (
        f"({names.find(f'request_{what}_sum')} / ({names.find(f'request_{what}_count')} > 0))"
        for what in ("prompt_tokens", "generation_tokens", "params_max_tokens")
    )
    declared = f"ceil({prompt} + {asked})"
    policies = {
        "max": length,
        "declared": f"{at_most(declared, length)} or {declared}",
        "exact": f"ceil({prompt} + {output})",
    }
    yield Rule(
        record="kvledger:reservation_request_tokens",
        meaning="What a request would reserve: the longest length, or as one of mean length of those that ended",
        expr="\nor ".join(with_label(f"clamp_min({expr}, 1)", "policy", name) for name, expr in policies.items()),
    )
    yield Rule(
        record="kvledger:reservation_tokens",
        meaning="What reservation would hold for the requests now running",
        expr=f"kvledger:reservation_request_tokens * ignoring (policy) group_left () ({running} > 0)",
    )
    pool, block = "kvledger:pool_blocks", "kvledger:block_tokens"
    tables = f"floor(({pool} - 1) * {block} * {running} / (kvledger:held_tokens > 0)) and kvledger:one_table"
    yield Rule(
        record="kvledger:admitted_requests",
        meaning="Requests like those now running that the pool admits under reservation, and in blocks",
        expr=f"floor(({pool} * {block} and {running} > 0) / ignoring (policy) group_right () "
        f"kvledger:reservation_request_tokens)\nor {with_label(tables, 'policy', 'block-tables')}",
    )


def _accounts(names: VllmNames) -> Iterator[Rule]:
    block, blocks = "kvledger:block_tokens", "kvledger:pool_blocks"
    idle = f"({blocks} - 1 - kvledger:held_blocks)"
    prompts, queries = names.find("prompt_tokens_total"), names.find("prefix_cache_queries_total")
    computed = f"{prompts} + {names.find('generation_tokens_total')} + clamp_min({queries} - {prompts}, 0)"
    yield Rule(
        record="kvledger:free_low_tokens",
        meaning="Least slots that never held a token: no more blocks can be kept for reuse than were ever filled",
        expr=f"clamp_min({block} * ({idle} and {names.says('enable_prefix_caching', 'False')}), 0)\n"
        f"or clamp_min({block} * ({idle} - floor(({computed}) / {block})), 0)\nor 0 * {idle}",
    )
    yield Rule(
        record="kvledger:available_tokens",
        meaning="Slots that requests can still take: free or cached",
        expr=f"clamp_min({idle} * {block}, 0)",
    )
    known = {
        "used": "kvledger:used_low_tokens",
        "internal": "kvledger:internal_low_tokens",
        "free": "kvledger:free_low_tokens",
    }
    rest = f"{blocks} * {block} - {' - '.join(known.values())}"
    parts = [with_label(f"{value} and kvledger:one_table", "account", name) for name, value in known.items()]
    yield Rule(
        record="kvledger:pool_tokens",
        meaning="The pool by account; they sum to it. Intervals stand with their least, the rest is unattributed",
        expr="\nor ".join([*parts, with_label(rest, "account", "unattributed")]),
    )
