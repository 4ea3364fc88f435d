"""Warnings and errors of vLLM that carry numbers, or change what other numbers mean."""

from __future__ import annotations

import re

from kvledger.engines.facts import NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.units import GIB

__all__ = ["NOTICE_RULES"]

_TOO_LONG = re.compile(
    r"max seq len \((?P<asked>\d{1,12})\),? \(?(?P<need>[\d.]{1,12}) G(?:i)?B KV cache is needed"
    r".{0,120}?available KV cache memory \((?P<have>-?[\d.]{1,12}) G(?:i)?B\)"
    r"(?:.{0,80}?estimated maximum model length is (?P<longest>\d{1,12}))?"
)
_TOO_LONG_V0 = re.compile(
    r"max seq len \((?P<asked>\d{1,12})\) is larger than the maximum number of tokens that can be stored in KV cache "
    r"\((?P<have>\d{1,12})\)"
)
_PROMPT_V0 = re.compile(
    r"Input prompt \((?P<asked>\d{1,12}) tokens\) is too long and exceeds the capacity of block_manager"
)
_NO_MEMORY = re.compile(r"No available memory for the cache blocks")
_FEW_STATES = re.compile(
    r"max_num_seqs \((?P<asked>\d{1,9})\) exceeds available Mamba cache blocks \((?P<have>\d{1,9})\)"
)
_PADDING = re.compile(
    r"Add (?P<count>\d{1,6}) padding layers, may waste at most (?P<percent>[\d.]{1,12})% KV cache memory"
)
_HYBRID = re.compile(r"Hybrid KV cache manager is disabled for this hybrid model")
_PAGES = re.compile(r"KV cache page sizes cannot be unified")
_WIDENED = re.compile(r"Setting attention block size to (?P<count>\d{1,9}) tokens")
_STATE = re.compile(r"Padding mamba page size by (?P<percent>[\d.]{1,12})%")
_SHARDS = re.compile(r"Multiplying the \w{1,12} KV cache size by the \w{0,4}cp_world_size (?P<count>\d{1,6})")
_FITTED = re.compile(
    r"Auto-fit max_model_len: (?:full model context length (?P<full>\d{1,12}) fits"
    r"|reduced from (?P<asked>\d{1,12}) to (?P<count>\d{1,12}) to fit)"
)
_OFFLOAD = re.compile(r"Mamba cache mode is set to '(?P<mode>\w{1,20})'")


def _too_long(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(
        hit,
        NoticeKind.TOO_LONG,
        is_error=True,
        asked=hit.integer("asked"),
        needed=hit.bytes("need", GIB, decimals=2),
        available=hit.bytes("have", GIB, decimals=2),
        longest=hit.integer("longest"),
    )
    if builder.get("max_model_len") is None:
        builder.set(hit, max_model_len=hit.whole("asked"))


def _too_long_v0(builder: LogBuilder, hit: Hit) -> None:
    """The second number is tokens: all blocks of the smallest rank."""
    builder.notice(hit, NoticeKind.TOO_LONG, is_error=True, asked=hit.integer("asked"), longest=hit.integer("have"))
    builder.pool(hit, tokens=hit.whole("have"))
    if builder.get("max_model_len") is None:
        builder.set(hit, max_model_len=hit.whole("asked"))


def _prompt_v0(builder: LogBuilder, hit: Hit) -> None:
    """The tokens are those of the chunk that was tried, not of the prompt."""
    builder.notice(hit, NoticeKind.NEVER_FITS, is_error=True, asked=hit.integer("asked"))


def _few_states(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(
        hit, NoticeKind.TOO_FEW_STATES, is_error=True, asked=hit.integer("asked"), available=hit.whole("have")
    )


def _widened(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(hit, NoticeKind.BLOCK_WIDENED, count=hit.integer("count"))
    builder.set(hit, block_tokens=hit.whole("count"))


def _fitted(builder: LogBuilder, hit: Hit) -> None:
    length = hit.whole("count") or hit.whole("full")
    builder.notice(
        hit,
        NoticeKind.LENGTH_FITTED,
        asked=hit.integer("asked") or hit.integer("full"),
        count=None if length is None else int(length.value),
    )
    builder.set(hit, max_model_len=length)


def _padding(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(
        hit, NoticeKind.PADDING_LAYERS, count=hit.integer("count"), ratio=hit.number("percent", 0.01, decimals=2)
    )


def _state(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(hit, NoticeKind.STATE_PADDED, ratio=hit.number("percent", 0.01, decimals=2))


NOTICE_RULES = (
    Rule("KV cache is needed", _TOO_LONG, _too_long),
    Rule("stored in KV cache", _TOO_LONG_V0, _too_long_v0),
    Rule("Input prompt (", _PROMPT_V0, _prompt_v0),
    Rule("No available memory for", _NO_MEMORY, lambda b, h: b.notice(h, NoticeKind.NO_MEMORY, is_error=True)),
    Rule("exceeds available Mamba", _FEW_STATES, _few_states),
    Rule("padding layers", _PADDING, _padding),
    Rule("Hybrid KV cache manager", _HYBRID, lambda b, h: b.notice(h, NoticeKind.HYBRID_DISABLED)),
    Rule("cannot be unified", _PAGES, lambda b, h: b.notice(h, NoticeKind.PAGES_NOT_UNIFIED)),
    Rule("Setting attention block", _WIDENED, _widened),
    Rule("Padding mamba page", _STATE, _state),
    Rule("Multiplying the", _SHARDS, lambda b, h: b.notice(h, NoticeKind.SHARDS_MULTIPLIED, count=h.integer("count"))),
    Rule("Auto-fit", _FITTED, _fitted),
    Rule("Mamba cache mode", _OFFLOAD, lambda b, h: b.option(h, "mamba_cache_mode", h.text("mode") or "")),
)
"""Rules for warnings and errors."""
