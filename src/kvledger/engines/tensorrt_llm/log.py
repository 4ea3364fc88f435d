"""What TensorRT-LLM logs, C++ and PyTorch flow, 0.5 to 2026: pools, windows, budgets and iterations.

The PyTorch flow allocates a small pool to profile memory and then the real one: the last lines are the valid ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog, NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule, read_engine_log
from kvledger.engines.quantity import exact, given
from kvledger.engines.tensorrt_llm.log_samples import SAMPLE_RULES
from kvledger.engines.torch_lines import OUT_OF_MEMORY
from kvledger.ledger import Accuracy
from kvledger.units import GIB

__all__ = ["WINDOW", "read_log"]

_BEGINS = re.compile(
    r"\s{0,8}(?:\[MemUsageChange\]|Allocated? \d|Using \d{1,15} tokens in paged|Number of (?:blocks|tokens)"
    r"|Max KV cache|Memory usage when calc|Peak memory during|Estimated max tokens|Attention window size|TRTGptModel"
    r"|TensorRT-managed)"
)
WINDOW = "max_attention_window"
"""The option that keeps the longest window of a pool: the longest request, unless every layer has a window."""
_GIB = r"[\d.]{1,12}"
_ALLOCATED = re.compile(
    rf"Allocated (?P<size>{_GIB}) GiB for max tokens(?: in paged KV cache)? \((?P<tokens>\d{{1,15}})\)"
)
_BYTES = re.compile(r"Allocate (?P<size>\d{1,18}) bytes for k/v cache")
_USING = re.compile(r"Using (?P<tokens>\d{1,15}) tokens in paged KV cache")
_BLOCKS = re.compile(
    r"Number of blocks in KV cache (?P<pool>primary|secondary) pool(?: for windowSize (?P<window>\d{1,12}))?: "
    r"(?P<blocks>\d{1,12})"
)
_PER_BLOCK = re.compile(r"Number of tokens per block: (?P<tokens>\d{1,9})")
_SEQUENCE = re.compile(
    r"Max KV cache (?:blocks|pages) per sequence: \d{1,12} \[window size=(?P<window>\d{1,12})\], "
    r"tokens per block=(?P<size>\d{1,9}), primary blocks=(?P<blocks>\d{1,12}), secondary blocks=(?P<host>\d{1,12})"
)
_AVAILABLE = re.compile(
    rf"Memory usage when calculating max tokens in paged kv cache: (?:total: (?P<total>{_GIB}) GiB, )?"
    rf"available: (?P<available>{_GIB}) GiB"
)
_PEAK = re.compile(
    rf"Peak memory during memory usage profiling[^:]{{0,60}}: (?P<peak>{_GIB}) GiB, available KV cache memory when "
    rf"calculating max tokens: (?P<available>{_GIB}) GiB(?:, fraction is set (?P<ratio>[\d.]{{1,8}}))?"
    rf"(?:, kv size (?:per token )?is (?P<token>\d{{1,12}}))?(?:.{{0,20}}?device total memory (?P<total>{_GIB}) GiB)?"
)
_ESTIMATE = re.compile(r"Estimated max tokens in KV cache ?: (?P<tokens>\d{1,15})")
_WINDOW_CUT = re.compile(r"Attention window size (?P<asked>\d{1,12}) exceeds upper bound (?P<count>\d{1,12})")
_TOO_LONG = re.compile(
    r"maxTokensInPagedKvCache(?: \((?P<have>\d{1,15})\))? must be large enough to process at least 1"
)
_MODEL = re.compile(
    r"TRTGptModel (?P<name>maxNumSequences|maxBatchSize|maxSequenceLen|maxNumTokens): (?P<value>\d{1,12})"
)
_LIMITS = re.compile(
    r"max_seq_len=(?P<length>\d{1,12}), max_num_requests=(?P<running>\d{1,9}), max_num_tokens=(?P<batch>\d{1,12})"
)
_VERSION = re.compile(r"TensorRT[ -]LLM version: (?P<version>[\w.+-]{1,40})")
_WEIGHTS = re.compile(rf"Memory used after loading model weights \(inside torch\)[^:]{{0,60}}: (?P<size>{_GIB}) GiB")
_MODEL_FACTS = {
    "maxNumSequences": "max_running",
    "maxBatchSize": "max_running",
    "maxSequenceLen": "max_model_len",
    "maxNumTokens": "batch_tokens",
}


def _name(builder: LogBuilder, hit: Hit) -> str:
    """Return the pool of a window: ``kv`` while there is only one; then each has its window in its name."""
    window = hit.text("window")
    if window is None:
        return "kv"
    first = builder.scratch.setdefault("window", window)
    if first == window and builder.find_pool(hit, f"window {window}") is None:
        return "kv"
    if builder.find_pool(hit, f"window {first}") is None:
        builder.rename_pool(hit, "kv", f"window {first}")
    return f"window {window}"


def _blocks(builder: LogBuilder, hit: Hit) -> None:
    field = "blocks" if hit.match["pool"] == "primary" else "host_blocks"
    builder.pool(hit, _name(builder, hit), None, **{field: hit.whole("blocks")})


def _sequence(builder: LogBuilder, hit: Hit) -> None:
    size, blocks = hit.integer("size"), hit.integer("blocks")
    tokens = None
    if size is not None and blocks is not None:
        tokens = exact(size * blocks, line=hit.line, accuracy=Accuracy.DERIVED)
    builder.set(hit, block_tokens=hit.whole("size"))
    window = hit.integer("window") or 0
    if window > int(builder.find_option(WINDOW) or 0):
        builder.option(hit, WINDOW, str(window))
    builder.pool(
        hit,
        _name(builder, hit),
        blocks=hit.whole("blocks"),
        host_blocks=hit.whole("host"),
        block_tokens=hit.whole("size"),
        tokens=tokens,
    )


def _per_block(builder: LogBuilder, hit: Hit) -> None:
    size = hit.whole("tokens")
    builder.set(hit, block_tokens=size)
    for pool in builder.pools:
        if pool.block_tokens is None and pool.blocks is not None:
            builder.pool(hit, pool.name, pool.origin, block_tokens=size)


def _allocated(builder: LogBuilder, hit: Hit) -> None:
    """Take the pool, and note when it follows a larger one: a profiling run takes less than the real one."""
    before, tokens = builder.find_pool(hit, "kv"), hit.integer("tokens")
    if before is not None and before.tokens is not None and tokens is not None and tokens < before.tokens.value:
        builder.notice(hit, NoticeKind.SECOND_POOL, asked=int(before.tokens.value), count=tokens)
    builder.pool(hit, size_bytes=hit.bytes("size", GIB), tokens=hit.whole("tokens"))


def _peak(builder: LogBuilder, hit: Hit) -> None:
    builder.memory(
        hit,
        peak=hit.bytes("peak", GIB),
        total=hit.bytes("total", GIB),
        available=hit.bytes("available", GIB),
        kv_token=hit.whole("token"),
    )
    ratio = hit.text("ratio")
    builder.set(hit, memory_ratio=None if ratio is None else given(ratio.rstrip("."), line=hit.line))


def _available(builder: LogBuilder, hit: Hit) -> None:
    builder.memory(hit, total=hit.bytes("total", GIB), available=hit.bytes("available", GIB))


def _too_long(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(hit, NoticeKind.TOO_LONG, is_error=True, longest=hit.integer("have"))


def _window_cut(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(hit, NoticeKind.WINDOW_CUT, asked=hit.integer("asked"), count=hit.integer("count"))


def _version(builder: LogBuilder, hit: Hit) -> None:
    if builder.has_size and "version" in builder.scratch:
        builder.begin_start(hit)
    builder.scratch["version"] = True
    builder.set(hit, version=hit.word("version"))


def _limits(builder: LogBuilder, hit: Hit) -> None:
    builder.set(
        hit, max_model_len=hit.whole("length"), max_running=hit.whole("running"), batch_tokens=hit.whole("batch")
    )


RULES = (
    Rule("LLM version", _VERSION, _version),
    Rule("TRTGptModel", _MODEL, lambda b, h: b.set(h, **{_MODEL_FACTS[h.match["name"]]: h.whole("value")})),
    Rule("max_num_requests=", _LIMITS, _limits),
    Rule("loading model weights", _WEIGHTS, lambda b, h: b.memory(h, weights=h.bytes("size", GIB))),
    Rule("paged kv cache", _AVAILABLE, _available),
    Rule("Peak memory", _PEAK, _peak),
    Rule("Estimated max tokens", _ESTIMATE, lambda b, h: b.pool(h, tokens=h.whole("tokens"))),
    Rule("Number of blocks", _BLOCKS, _blocks),
    Rule("per sequence", _SEQUENCE, _sequence),
    Rule("tokens per block", _PER_BLOCK, _per_block),
    Rule("Allocate ", _BYTES, lambda b, h: b.pool(h, size_bytes=h.whole("size"))),
    Rule("tokens in paged KV cache", _USING, lambda b, h: b.pool(h, tokens=h.whole("tokens"))),
    Rule("for max tokens", _ALLOCATED, _allocated),
    Rule("Attention window size", _WINDOW_CUT, _window_cut),
    Rule("maxTokensInPagedKvCache", _TOO_LONG, _too_long),
    *SAMPLE_RULES,
    OUT_OF_MEMORY,
)
"""Rules for all lines of TensorRT-LLM."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of TensorRT-LLM: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.TENSORRT_LLM, rules=RULES, begins=_BEGINS)
