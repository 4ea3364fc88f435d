"""What LMDeploy logs: the cache's configuration, TurboMind's blocks, and its periodic line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog, NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule, named_values, read_engine_log
from kvledger.engines.quantity import Fact, given, printed_bytes, truncated_bytes, whole
from kvledger.engines.torch_lines import OUT_OF_MEMORY
from kvledger.units import MIB

__all__ = ["read_log"]

_NUMBER = r"\d{1,12}(?:\.\d{1,6})?"
_BEGINS = re.compile(
    r"\s{0,8}(?:\[BlockManager\]|Building \w{0,6} ?CacheEngine|\[\d{4}-[^\]]{1,40}\] ?Avg thr|Avg thr"
    r"|No enough gpu memory)"
)
_CONFIG = re.compile(r"Building (?P<draft>Spec )?CacheEngine with config:\s{0,4}(?P<config>.{0,16000})", re.DOTALL)
_ENGINE_CONFIG = re.compile(r"\b(?:Pytorch|Turbomind)EngineConfig\((?P<config>.{0,4000})", re.DOTALL)
_PAIR = re.compile(r"\b(?P<name>[a-z_]{2,40})=(?P<value>'[^']{0,100}'|[\w.+-]{1,60})")
_BLOCK = re.compile(r"\[BlockManager\] block_size = (?P<size>\d{1,9})(?P<part>\.\d{1,6})? MB")
_COUNT = re.compile(r"\[BlockManager\] max_block_count = (?P<blocks>\d{1,12})")
_NO_MEMORY = re.compile(r"No enough gpu memory for kv cache")
_INTERVAL = re.compile(
    rf"(?:Engine (?P<engine>\d{{1,4}})\] |DP(?P<dp>\d{{1,4}})\] )?Avg thr \(in/out\): (?P<prompt>{_NUMBER}) / "
    rf"(?P<generation>{_NUMBER})"
    r" tokens/s,.{0,160}?Engine \(running/waiting\): (?P<running>\d{1,9}) / (?P<waiting>\d{1,9})"
    rf"(?:, KV cache: (?P<usage>{_NUMBER})\s?%)?(?:, Prefix cache hit rate: (?P<hits>{_NUMBER})\s?%)?"
)
_NUMBERS = {
    "tp": "tp", "dp": "dp", "session_len": "max_model_len", "max_batch_size": "max_running",
    "max_batches": "max_running", "max_prefill_token_num": "batch_tokens", "block_size": "block_tokens",
    "cache_block_seq_len": "block_tokens",
}  # fmt: skip

_KNOWN = named_values(
    {*_NUMBERS, "num_gpu_blocks", "num_cpu_blocks", "cache_max_entry_count", "enable_prefix_caching", "dtype"}
)


def _set_pairs(builder: LogBuilder, hit: Hit, config: str, pool: str) -> None:
    for count, match in enumerate(_PAIR.finditer(config)):
        name, value = match["name"], match["value"].strip("'")
        if count >= 200:
            break
        if value in ("None", ""):
            continue
        builder.option(hit, name, value)
        number = whole(value, line=hit.line) if value.isdigit() else None
        if name in _NUMBERS and number is not None and number.value > 0:
            builder.set(hit, **{_NUMBERS[name]: number})
            if name == "block_size" and pool:
                builder.pool(hit, pool, block_tokens=number)
        elif name in ("num_gpu_blocks", "num_cpu_blocks") and number is not None and pool:
            if number.value > 0:
                field = "blocks" if name == "num_gpu_blocks" else "host_blocks"
                builder.pool(hit, pool, None, **{field: number})
        elif name == "cache_max_entry_count":
            builder.set(hit, memory_ratio=given(value, line=hit.line))
        elif name == "enable_prefix_caching":
            builder.set(hit, prefix_caching=Fact(value=value == "True", line=hit.line))
        elif name == "dtype":
            builder.set(hit, dtype=Fact(value=value, line=hit.line))


def _config(builder: LogBuilder, hit: Hit) -> None:
    draft = hit.text("draft") is not None
    if builder.has_size and not draft:
        builder.begin_start(hit)
    _set_pairs(builder, hit, hit.match["config"], "draft" if draft else "kv")


def _block(builder: LogBuilder, hit: Hit) -> None:
    """TurboMind writes MiB, which it calls MB: with decimals since 0.7, before that cut to whole ones."""
    whole_mib, part = hit.integer("size"), hit.text("part")
    if part is not None:
        builder.pool(hit, block_bytes=printed_bytes(f"{hit.match['size']}{part}", MIB, line=hit.line))
    elif whole_mib is not None:
        builder.pool(hit, block_bytes=truncated_bytes(whole_mib, MIB, line=hit.line))


def _interval(builder: LogBuilder, hit: Hit) -> None:
    builder.sample(
        hit,
        engine_index=hit.integer("engine") or hit.integer("dp") or 0,
        running=hit.whole("running"),
        waiting=hit.whole("waiting"),
        usage_ratio=hit.number("usage", 0.01),
        prompt_tokens_per_second=hit.number("prompt"),
        generation_tokens_per_second=hit.number("generation"),
        prefix_hit_ratio=hit.number("hits", 0.01),
    )


RULES = (
    Rule("EngineConfig(", _ENGINE_CONFIG, lambda b, h: _set_pairs(b, h, h.match["config"], "")),
    Rule("CacheEngine with config", _CONFIG, _config, _KNOWN),
    Rule("[BlockManager]", _BLOCK, _block),
    Rule("[BlockManager]", _COUNT, lambda b, h: b.pool(h, blocks=h.whole("blocks"))),
    Rule("No enough gpu memory", _NO_MEMORY, lambda b, h: b.notice(h, NoticeKind.NO_MEMORY, is_error=True)),
    Rule("Avg thr", _INTERVAL, _interval),
    OUT_OF_MEMORY,
)
"""Rules for all lines of LMDeploy."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of LMDeploy: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.LMDEPLOY, rules=RULES, begins=_BEGINS)
