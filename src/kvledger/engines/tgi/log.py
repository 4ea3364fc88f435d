"""What Text Generation Inference logs about its pool: blocks, tokens a block, and the budget of a batch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog, NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule, named_values, read_engine_log
from kvledger.engines.quantity import Fact, exact, given, whole
from kvledger.engines.torch_lines import OUT_OF_MEMORY
from kvledger.ledger import Accuracy

__all__ = ["read_log"]

_BEGINS = re.compile(
    r"\s{0,8}(?:KV-cache blocks: |Setting max batch total tokens|Using prefix caching|Args \{|Using Attention)"
)
_BLOCKS = re.compile(r"KV-cache blocks: (?P<blocks>\d{1,12}), size: (?P<size>\d{1,9})")
_BUDGET = re.compile(r"Setting max batch total tokens to (?P<tokens>\d{1,12})")
_ARGS = re.compile(r"\bArgs \{(?P<args>.{0,16000})", re.DOTALL)
_PAIR = re.compile(r"\b(?P<name>[a-z_]{2,60}): (?:Some\(\s{0,40})?(?P<value>\"[^\"]{0,300}\"|[\w.+-]{1,60})")
_PREFIX = re.compile(r"Using prefix caching = (?P<value>True|False)")
_ATTENTION = re.compile(r"Using Attention = (?P<value>[\w-]{1,40})")
_LIMIT = re.compile(r"Maximum total tokens defaulted to (?P<tokens>\d{1,12})")
_NO_MEMORY = re.compile(r"Not enough memory to handle (?:prefill tokens|\d{1,12} (?:prefill|total) tokens)")
_NUMBERS = {
    "num_shard": "tp",
    "max_total_tokens": "max_model_len",
    "max_batch_prefill_tokens": "batch_tokens",
    "max_concurrent_requests": "max_running",
}
_KEPT = re.compile(r"^(?:max_|cuda_memory|quantize|kv_cache|dtype|num_shard|speculate|waiting_served)")

_KNOWN = named_values({*_NUMBERS, "model_id", "dtype", "kv_cache_dtype", "cuda_memory_fraction"})


def _blocks(builder: LogBuilder, hit: Hit) -> None:
    blocks, size = hit.whole("blocks"), hit.whole("size")
    tokens = None
    if blocks is not None and size is not None:
        tokens = exact(blocks.value * size.value, line=hit.line, accuracy=Accuracy.DERIVED)
    builder.set(hit, block_tokens=size)
    builder.pool(hit, blocks=blocks, block_tokens=size, tokens=tokens)


def _budget(builder: LogBuilder, hit: Hit) -> None:
    held = builder.find_pool(hit)
    if held is None or held.tokens is None:
        builder.pool(hit, tokens=hit.whole("tokens"))
    builder.option(hit, "max_batch_total_tokens", hit.text("tokens") or "")


def _arguments(builder: LogBuilder, hit: Hit) -> None:
    if builder.has_size:
        builder.begin_start(hit)
    for count, match in enumerate(_PAIR.finditer(hit.match["args"])):
        name, value = match["name"], match["value"].strip('"')
        if count >= 200:
            break
        if value in ("None", ""):
            continue
        if _KEPT.match(name):
            builder.option(hit, name, value)
        if name in _NUMBERS:
            builder.set(hit, **{_NUMBERS[name]: whole(value, line=hit.line)})
        elif name in ("model_id", "dtype", "kv_cache_dtype"):
            fact = {"model_id": "model", "dtype": "dtype", "kv_cache_dtype": "kv_dtype"}[name]
            builder.set(hit, **{fact: Fact(value=value.lower() if fact != "model" else value, line=hit.line)})
        elif name == "cuda_memory_fraction":
            builder.set(hit, memory_ratio=given(value, line=hit.line))


def _prefix(builder: LogBuilder, hit: Hit) -> None:
    builder.set(hit, prefix_caching=Fact(value=hit.match["value"] == "True", line=hit.line))


RULES = (
    Rule("Args {", _ARGS, _arguments, _KNOWN),
    Rule("KV-cache blocks", _BLOCKS, _blocks),
    Rule("max batch total", _BUDGET, _budget),
    Rule("prefix caching", _PREFIX, _prefix),
    Rule("Using Attention", _ATTENTION, lambda b, h: b.option(h, "attention", h.text("value") or "")),
    Rule("defaulted to", _LIMIT, lambda b, h: b.set(h, max_model_len=h.whole("tokens"))),
    Rule("Not enough memory", _NO_MEMORY, lambda b, h: b.notice(h, NoticeKind.NO_MEMORY, is_error=True)),
    OUT_OF_MEMORY,
)
"""Rules for all lines of TGI."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of Text Generation Inference: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.TGI, rules=RULES, begins=_BEGINS)
