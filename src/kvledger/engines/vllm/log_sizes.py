"""The lines of vLLM about the pool: bytes, blocks, tokens and concurrency, and when one belongs to another start.

Ranks restate sizes: they are kept one a rank and never added. All memory lines of a start come before its size lines,
so a memory line of a process that has had both belongs to a new start.
"""

from __future__ import annotations

import re
from dataclasses import replace

from kvledger.engines.facts import NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.units import GIB

__all__ = ["SIZE_RULES"]

_GIB = r"-?[\d.]{1,12}"
_CONCURRENCY_PART = r"Maximum concurrency for (?P<length>[\d,]{1,16}) tokens per request: (?P<concurrency>[\d.]{1,12})x"
_SIZE = re.compile(
    rf"(?<![A-Z])(?P<device>[A-Z]{{2,12}})(?: \+ host)? KV cache size: "
    rf"(?P<tokens>[\d,]{{1,24}}) tokens(?:, {_CONCURRENCY_PART})?"
)
_CONCURRENCY = re.compile(rf"(?<!tokens, ){_CONCURRENCY_PART}")
_BLOCKS = re.compile(
    r"(?<!, )# \w{1,12} blocks: (?P<blocks>\d{1,12})(?:, # CPU blocks: (?P<host>\d{1,12}))?"
    r"|\bGPU blocks: (?P<bare>\d{1,12}), # CPU blocks: (?P<beside>\d{1,12})"  # Markdown took the first `#`
)
_AVAILABLE = re.compile(
    rf"(?:Available KV cache memory: (?P<available>{_GIB}) GiB"
    rf"|reserved (?P<reserved>{_GIB}) GiB memory for KV Cache as specified"
    rf"|(?:Explicitly|Auto) set \((?P<cpu>{_GIB})/(?P<cpu_total>{_GIB})\) GiB for KV cache"
    rf"|VLLM_CPU_KVCACHE_SPACE not set\. Using (?P<default>{_GIB}) GiB for KV cache)"
)
_IN_USE = re.compile(rf"[Cc]urrent kv cache memory in use is (?:(?P<size>{_GIB}) GiB|(?P<bytes>\d{{1,18}}) bytes)")
_ASCEND = re.compile(r"Available memory: (?P<available>\d{1,18}), total memory: (?P<total>\d{1,18})")
"""Of vLLM's plugin for NPUs up to 0.11: whole bytes."""
_OVERRIDE = re.compile(
    r"Overriding num_gpu_blocks=(?P<profiled>\d{1,12}) with num_gpu_blocks_override=(?P<forced>\d{1,12})"
)
_COUNT = re.compile(r"after num_gpu_blocks is: (?P<blocks>\d{1,12})")
_V0_BREAKDOWN = re.compile(
    rf"(?:model weights take (?P<weights>{_GIB})GiB; )?non_torch_memory takes (?P<other>{_GIB})GiB; "
    rf"PyTorch activation peak memory takes (?P<activation>{_GIB})GiB; "
    rf"the rest of the memory reserved for KV Cache is (?P<rest>{_GIB})GiB"
)
_V0_TOTAL = re.compile(
    rf"total_gpu_memory \((?P<total>{_GIB})GiB\) x gpu_memory_utilization \((?P<ratio>[\d.]{{1,8}})\) = "
    rf"(?P<asked>{_GIB})GiB"
)
_V0_RESULTS = re.compile(
    rf"Memory profiling results: total_gpu_memory=(?P<total>{_GIB})GiB.{{0,300}}?kv_cache_size=(?P<rest>{_GIB})GiB"
    r"(?: gpu_memory_utilization=(?P<ratio>[\d.]{1,8}))?"
)
_FREE = re.compile(
    rf"Free memory on device \((?P<free>{_GIB})/(?P<total>{_GIB}) GiB\) on startup\. Desired GPU memory utilization is "
    rf"\((?P<ratio>[\d.]{{1,20}}), (?P<asked>{_GIB}) GiB\)(?:\. Actual usage is (?P<used>{_GIB}) GiB for "
    rf"(?P<what>weight|consumed memory[^,]{{0,40}}), (?P<activation>{_GIB}) GiB for peak activation"
    rf"(?:, (?P<other>{_GIB}) GiB for non-torch memory)?)?"
)


def _available(builder: LogBuilder, hit: Hit) -> None:
    held = builder.find_pool(hit)
    sized = any(pool.tokens or pool.blocks for pool in builder.pools if pool.engine_index == hit.engine_index)
    if builder.has_size and sized and held is not None and held.size_bytes is not None:
        builder.begin_start(hit)
    names = ("available", "reserved", "cpu", "default")
    size = next((found for found in (hit.bytes(name, GIB, decimals=2) for name in names) if found), None)
    # an override before this line belongs to a dry run of CUDA graphs
    builder.scratch.pop("forced", None)
    builder.pool(hit, size_bytes=size)
    builder.memory(hit, total=hit.bytes("cpu_total", GIB, decimals=2))


def _in_use(builder: LogBuilder, hit: Hit) -> None:
    builder.pool(hit, size_bytes=hit.whole("bytes") or hit.bytes("size", GIB, decimals=2))


def _ascend(builder: LogBuilder, hit: Hit) -> None:
    builder.pool(hit, size_bytes=hit.whole("available"))
    builder.memory(hit, total=hit.whole("total"))


def _size(builder: LogBuilder, hit: Hit) -> None:
    held, length = builder.find_pool(hit), hit.whole("length")
    if held is not None and held.blocks is not None and "counted" in builder.scratch:
        builder.begin_start(hit)
        held = None
    tokens = hit.whole("tokens")
    if held is not None and held.tokens is not None and tokens is not None and held.tokens.value < tokens.value:
        # ranks that have more are cut to the one that has least
        tokens = None
    forced = builder.scratch.get("forced")
    builder.pool(hit, tokens=tokens, longest_tokens=length, blocks=forced)
    if tokens is not None:
        builder.pool(hit, concurrency=hit.number("concurrency"))
    if length is not None and builder.get("max_model_len") is None:
        builder.set(hit, max_model_len=length)
    device = hit.word("device")
    if builder.get("device") is None and device is not None and device.value != "GPU":
        builder.set(hit, device=replace(device, value=device.value.lower()))


def _concurrency(builder: LogBuilder, hit: Hit) -> None:
    held, ratio = builder.find_pool(hit), hit.number("concurrency")
    if held is not None and held.concurrency is not None and ratio is not None:
        ratio = min(held.concurrency, ratio, key=lambda quantity: quantity.value)
    builder.pool(hit, longest_tokens=hit.whole("length"), concurrency=ratio)
    if builder.get("max_model_len") is None:
        builder.set(hit, max_model_len=hit.whole("length"))


def _blocks(builder: LogBuilder, hit: Hit) -> None:
    held = builder.find_pool(hit)
    if held is not None and (held.blocks is not None or held.tokens is not None):
        builder.begin_start(hit)
    builder.scratch["counted"] = True
    builder.pool(
        hit,
        blocks=hit.whole("blocks") or hit.whole("bare"),
        host_blocks=hit.whole("host") or hit.whole("beside"),
    )


def _override(builder: LogBuilder, hit: Hit) -> None:
    held = builder.find_pool(hit)
    if not hit.integer("profiled") and (held is None or held.size_bytes is None):
        return  # a dry run of CUDA graphs, before there is memory
    builder.notice(hit, NoticeKind.BLOCKS_FORCED, needed=hit.whole("profiled"), count=hit.integer("forced"))
    if hit.integer("profiled"):
        builder.scratch["forced"] = hit.whole("forced")


def _v0_breakdown(builder: LogBuilder, hit: Hit) -> None:
    held = builder.find_pool(hit)
    if held is not None and held.blocks is not None and held.size_bytes is not None:
        builder.begin_start(hit)
    builder.memory(
        hit,
        weights=hit.bytes("weights", GIB, decimals=2),
        non_torch=hit.bytes("other", GIB, decimals=2),
        activation=hit.bytes("activation", GIB, decimals=2),
    )
    builder.pool(hit, size_bytes=hit.bytes("rest", GIB, decimals=2))


def _v0_total(builder: LogBuilder, hit: Hit) -> None:
    builder.memory(hit, total=hit.bytes("total", GIB, decimals=2), requested=hit.bytes("asked", GIB, decimals=2))
    builder.set(hit, memory_ratio=hit.number("ratio", decimals=2))


def _v0_results(builder: LogBuilder, hit: Hit) -> None:
    builder.memory(hit, total=hit.bytes("total", GIB, decimals=2))
    builder.pool(hit, size_bytes=hit.bytes("rest", GIB, decimals=2))
    builder.set(hit, memory_ratio=hit.number("ratio", decimals=2))


def _free(builder: LogBuilder, hit: Hit) -> None:
    name = "weights" if hit.text("what") == "weight" else "consumed"
    builder.memory(
        hit,
        free=hit.bytes("free", GIB, decimals=2),
        total=hit.bytes("total", GIB, decimals=2),
        requested=hit.bytes("asked", GIB, decimals=2),
        activation=hit.bytes("activation", GIB, decimals=2),
        non_torch=hit.bytes("other", GIB, decimals=2),
        **{name: hit.bytes("used", GIB, decimals=2)},
    )
    ratio = hit.number("ratio")
    if builder.get("memory_ratio") is None and ratio is not None:
        builder.set(hit, memory_ratio=replace(ratio, low=ratio.value, high=ratio.value))


SIZE_RULES = (
    Rule("GiB", _AVAILABLE, _available),
    Rule("Overriding num_gpu_blocks", _OVERRIDE, _override),
    Rule("KV cache size", _SIZE, _size),
    Rule("Maximum concurrency", _CONCURRENCY, _concurrency),
    Rule(" blocks: ", _BLOCKS, _blocks),
    Rule("after num_gpu_blocks is", _COUNT, lambda b, h: b.pool(h, blocks=h.whole("blocks"))),
    Rule("kv cache memory in use", _IN_USE, _in_use),
    Rule("Available memory: ", _ASCEND, _ascend),
    Rule("gpu_memory_utilization", _V0_TOTAL, _v0_total),
    Rule("reserved for KV Cache is", _V0_BREAKDOWN, _v0_breakdown),
    Rule("Memory profiling results", _V0_RESULTS, _v0_results),
    Rule("Free memory on device", _FREE, _free),
)
"""Rules for the pool and for the memory around it."""
