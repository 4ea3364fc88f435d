"""What Hugging Face Transformers logs about continuous batching: memory for the cache, pages and batch.

``mb_per_sector`` is cut to whole MiB, so the bytes of the pool are an interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog
from kvledger.engines.log_reader import Hit, LogBuilder, Rule, read_engine_log
from kvledger.engines.quantity import Quantity, truncated_bytes
from kvledger.engines.torch_lines import OUT_OF_MEMORY
from kvledger.units import MIB

__all__ = ["read_log"]

_BEGINS = re.compile(r"\s{0,8}(?:Paged ?[Aa]?\w{0,20} initialized|Memory available for cache|PagedAttentionCache)")
_SECTORS = re.compile(
    r"Paged cache initialized: self\.max_batch_tokens = (?P<batch>\d{1,12}), "
    r"self\.num_sectors = (?P<sectors>\d{1,12}), mb_per_sector = (?P<size>\d{1,9})"
)
_BLOCKS = re.compile(r"PagedAttentionCache initialized with (?P<rest>.{0,600})")
_FIELD = re.compile(r"self\.(?P<name>num_blocks|block_size|max_batch_tokens|page_size) ?= ?(?P<value>\d{1,12})")
_MEMORY = re.compile(r"Memory available for cache allocation: (?P<size>\d{1,12}) MB")


def _cut(quantity: Quantity | None, factor: int) -> Quantity | None:
    """Return bytes of whole MiB that were cut, not rounded."""
    if quantity is None:
        return None
    return truncated_bytes(int(quantity.value), MIB, times=factor, line=quantity.line)


def _sectors(builder: LogBuilder, hit: Hit) -> None:
    if builder.has_size:
        builder.begin_start(hit)
    sectors, size = hit.whole("sectors"), hit.whole("size")
    builder.set(hit, batch_tokens=hit.whole("batch"))
    builder.pool(
        hit,
        blocks=sectors,
        block_bytes=_cut(size, 1),
        size_bytes=None if sectors is None else _cut(size, max(1, int(sectors.value))),
    )


def _blocks(builder: LogBuilder, hit: Hit) -> None:
    for field in _FIELD.finditer(hit.match["rest"]):
        value = hit.count(int(field["value"]))
        if field["name"] == "num_blocks":
            builder.pool(hit, blocks=value)
        elif field["name"] == "block_size":
            builder.pool(hit, block_tokens=value)
            builder.set(hit, block_tokens=value)
        elif field["name"] == "max_batch_tokens":
            builder.set(hit, batch_tokens=value)


RULES = (
    Rule("Memory available", _MEMORY, lambda b, h: b.memory(h, available=_cut(h.whole("size"), 1))),
    Rule("Paged cache", _SECTORS, _sectors),
    Rule("PagedAttentionCache", _BLOCKS, _blocks),
    OUT_OF_MEMORY,
)
"""Rules for all lines of Transformers."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of Transformers: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.TRANSFORMERS, rules=RULES, begins=_BEGINS)
