"""The pool of a vLLM engine as recording rules: its blocks, its longest request, what is held."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.measure.pool import Structure
from kvledger.report.prometheus.rules import Rule
from kvledger.report.prometheus.vllm_names import BY_HOST, VllmNames

__all__ = ["pool_rules"]


def pool_rules(names: VllmNames) -> Iterator[Rule]:
    """Yield the rules of load and pool."""
    yield from _load(names)
    yield from _pool(names)
    yield from _length(names)
    yield from _held(names)


def _load(names: VllmNames) -> Iterator[Rule]:
    for name in ("running", "waiting"):
        yield Rule(
            record=f"kvledger:{name}_requests",
            meaning=f"Requests that {'run' if name == 'running' else 'wait'}",
            expr=names.find(f"num_requests_{name}"),
        )


def _pool(names: VllmNames) -> Iterator[Rule]:
    blocks, engines = (
        "kvledger:config_blocks",
        f"on {BY_HOST} group_left () count by {BY_HOST} (kvledger:running_requests)",
    )
    yield Rule(
        record=blocks,
        meaning="Blocks as the server says them: of all its engines",
        expr=names.read_config("num_gpu_blocks"),
    )
    yield Rule(
        record="kvledger:pool_blocks",
        meaning="Blocks of one engine, the null block included",
        expr=f"({blocks} / {engines} and {blocks} % {engines} == 0)\nor {blocks}",
    )
    yield Rule(record="kvledger:block_tokens", meaning="Tokens of a block", expr=names.read_config("block_size"))


def _length(names: VllmNames) -> Iterator[Rule]:
    size, most, length = "kvledger:config_size_tokens", "kvledger:config_concurrency", "kvledger:max_model_len_tokens"
    yield Rule(
        record=size,
        meaning="Concurrency times the longest request, as 0.26 and later say it",
        expr=names.read_config("kv_cache_size_tokens"),
    )
    yield Rule(
        record=most,
        meaning="Longest requests that fit at once, as 0.26 and later say it",
        expr=names.read_config("kv_cache_max_concurrency"),
    )
    guess = f"round({size} / {most})"
    told = f"({guess} and abs(floor({most} * {guess}) - {size}) <= clamp_min({most}, 1))"
    given = "" if names.max_model_len is None else f"\nor 0 * kvledger:pool_blocks + {names.max_model_len}"
    yield Rule(record=length, meaning="Longest request", expr=f"{told}{given}")
    blocks = "kvledger:pool_blocks"
    fits = f"abs({most} * ceil({length} / kvledger:block_tokens) - {blocks}) <= 1e-6 * {blocks}"
    assumed = f"\nor (1 + 0 * {blocks} unless {size})" if names.structure is Structure.ONE_GROUP else ""
    yield Rule(
        record="kvledger:one_table",
        meaning="1 where a request has one block table, since every layer keeps every token",
        expr=f"1 + 0 * ({fits}){assumed}",
    )


def _held(names: VllmNames) -> Iterator[Rule]:
    usage = f"({names.find('kv_cache_usage_perc')} or {names.find('gpu_cache_usage_perc')})"
    asleep = names.find("engine_sleep_state", 'sleep_state="awake"')
    now, old, held = "kvledger:gauge_blocks", "kvledger:old_gauge_blocks", "kvledger:held_blocks"
    yield Rule(
        record=now,
        meaning="What the gauge says in blocks, the null block outside (0.10 and later); not while the engine sleeps",
        expr=f"{usage} * (kvledger:pool_blocks - 1) unless {asleep} == 0",
    )
    yield Rule(
        record=old,
        meaning="The same with the null block inside, as up to 0.9.2",
        expr=f"({usage} > 0) * kvledger:pool_blocks and {now} unless kvledger:config_size_tokens",
    )
    inside = f"({old} and abs({old} - round({old})) < abs({now} - round({now})))"
    yield Rule(
        record=held,
        meaning="Blocks that running requests hold; a gauge that is no whole number of blocks gives none",
        expr=f"(clamp_min(round({inside}) - 1, 0) and {_is_whole(old)})\nor (round({now}) and {_is_whole(now)})",
    )
    yield Rule(
        record="kvledger:held_tokens",
        meaning="Token slots that running requests hold",
        expr=f"{held} * kvledger:block_tokens",
    )


def _is_whole(value: str) -> str:
    return f"abs({value} - round({value})) <= 1e-4 * clamp_min({value}, 1)"
