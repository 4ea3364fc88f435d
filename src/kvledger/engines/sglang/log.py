"""What SGLang 0.4 to 0.5.23 logs: start-up lines, batch lines and retractions.

What it calls GB is GiB (2**30), and every line speaks for one rank. Radix-cached tokens do not count as used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog, NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule, named_values, read_engine_log
from kvledger.engines.quantity import Fact, add, printed, whole
from kvledger.engines.sglang.log_samples import SAMPLE_RULES
from kvledger.engines.torch_lines import OUT_OF_MEMORY
from kvledger.units import GIB

__all__ = ["read_log"]

_BEGINS = re.compile(
    r"\s{0,8}(?:Prefill batch|Decode batch|(?:[\w-]{1,30} ){0,3}\w{0,30}KV Cache is allocated|\w{0,30}KV Cache VA upper"
    r"|Physical KV Cache|Mamba Cache is allocated|Use .liding window memory|SWAKVPool mem usage|max_total_num_tokens="
    r"|Load weight end|Memory pool end|Using KV cache dtype|Post-capture KV sizing|server_args=|KV cache pool is full"
    r"|Decode out of memory)"
)
_GB = r"[\d.]{1,24}"
_POOL = re.compile(
    rf"(?:(?P<label>(?:[\w.-]{{1,30}} ){{0,3}}))?(?P<virtual>Virtual|Physical )?KV [Cc]ache "
    rf"(?:is allocated|allocated|(?P<bound>VA upper bound)|limits by --mem-fraction-static)[.:]"
    rf"(?: dtype: (?P<dtype>[\w.]{{1,40}}),)? #tokens: (?P<tokens>\d{{1,15}})"
    rf"(?:, (?:K size: (?P<k>{_GB}) GB, V size: (?P<v>{_GB}) GB|KV size: (?P<kv>{_GB}) GB))?"
)
_STATE = re.compile(
    rf"Mamba Cache is allocated\.(?: max_mamba_cache_size: (?P<slots>\d{{1,12}}),)?"
    rf" conv_state size: (?P<conv>{_GB}) ?GB, ssm_state size: (?P<ssm>{_GB}) ?GB"
    rf"(?:,? intermediate_ssm_state_cache size: (?P<more>{_GB}) ?GB)?"
    rf"(?:,? intermediate_conv_window_cache size: (?P<most>{_GB}) ?GB)?"
)
_WINDOWS = re.compile(
    r"(?P<final>Post-capture KV sizing: )?(?:full_layer_tokens=(?P<full>\d{1,15}), )?swa_layer_tokens=(?P<swa>\d{1,15})"
)
_BOTH = re.compile(
    rf"SWAKVPool mem usage: (?P<size>{_GB}) GB, swa size: (?P<swa>\d{{1,15}}), full size: (?P<full>\d{{1,15}})"
)
_TOTAL = re.compile(
    r"\bmax_total_num_tokens=(?P<tokens>\d{1,15})(?:, chunked_prefill_size=(?P<chunk>-?\d{1,12}|None))?"
    r"(?:, max_prefill_tokens=\d{1,12})?(?:, max_running_requests=(?P<running>\d{1,12}))?"
    rf"(?:, context_len=(?P<length>\d{{1,12}}))?(?:, available_(?:gpu|cpu)_mem=(?P<free>{_GB}) GB)?"
)
_WEIGHTS = re.compile(
    rf"Load weight end\.(?: elapsed={_GB} s,)?(?: type=(?P<type>\w{{1,100}}),)?(?: dtype=(?P<dtype>[\w.]{{1,40}}),)?"
    rf"(?:.{{0,200}}?avail mem=(?P<free>-?{_GB}) GB)?(?:, mem usage=(?P<size>-?{_GB}) GB)?"
)
_POOL_END = re.compile(rf"Memory pool end\. avail mem=(?P<free>-?{_GB}) GB")
_KV_DTYPE = re.compile(r"Using KV cache dtype: (?P<dtype>[\w.]{1,40})")
_NO_MEMORY = re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static")
_ARGS = re.compile(r"server_args=(?:ServerArgs)?[({](?P<args>.{0,16000})", re.DOTALL)
_PAIR = re.compile(r"['\"]?\b(?P<name>[a-z_]{2,60})['\"]?[=:] ?(?P<value>'[^']{0,300}'|[\w./+-]{1,300})")
_KEPT = re.compile(
    r"mem_fraction|max_(?:running|total|prefill)|chunked|page_size|context_length|_size$|dtype|radix|mamba|swa|hicache"
    r"|speculative|schedule_policy|conservativeness|quantization|attention_backend|cuda_graph|disable_overlap"
)
_NUMBERS = {"tp_size": "tp", "pp_size": "pp", "dp_size": "dp", "page_size": "block_tokens"}

_KNOWN = named_values(
    {*_NUMBERS, "model_path", "device", "mem_fraction_static", "disable_radix_cache", "context_length"}
)


def _arguments(builder: LogBuilder, hit: Hit) -> None:
    if builder.has_size:
        builder.begin_start(hit)
    for count, match in enumerate(_PAIR.finditer(hit.match["args"])):
        name, value = match["name"], match["value"].strip("'")
        if count >= 600:
            break
        if value in ("None", ""):
            continue
        if _KEPT.search(name):
            builder.option(hit, name, value)
        if name in _NUMBERS:
            builder.set(hit, **{_NUMBERS[name]: whole(value, line=hit.line, origin=hit.origin)})
        elif name in ("model_path", "device"):
            fact = "model" if name == "model_path" else name
            builder.set(hit, **{fact: Fact(value=value, line=hit.line, origin=hit.origin)})
        elif name == "mem_fraction_static":
            # printed as it was set, or computed to three decimals
            builder.set(hit, memory_ratio=printed(value, decimals=3, line=hit.line, origin=hit.origin))
        elif name == "disable_radix_cache":
            builder.set(hit, prefix_caching=Fact(value=value != "True", line=hit.line, origin=hit.origin))


def _dtype(hit: Hit) -> str | None:
    found = hit.text("dtype")
    return None if found is None else found.removeprefix("torch.")


def _pool(builder: LogBuilder, hit: Hit) -> None:
    keys, values = hit.bytes("k", GIB), hit.bytes("v", GIB)
    tokens = hit.whole("tokens")
    virtual = hit.text("virtual") == "Virtual" or hit.text("bound") is not None
    name = "virtual" if virtual else _pool_name(builder, hit, int(tokens.value) if tokens else -1)
    dtype = _dtype(hit)
    builder.pool(
        hit,
        name,
        tokens=tokens,
        key_bytes=keys,
        value_bytes=values,
        size_bytes=hit.bytes("kv", GIB) or add((keys, values)),
        key_dtype=dtype,
        value_dtype=dtype,
        is_memory=not virtual,
    )


def _pool_name(builder: LogBuilder, hit: Hit, tokens: int) -> str:
    """Name a pool by its label or by the sizes announced for two pools; a second one is the draft's or a window's.

    A draft has as many tokens as the model; layers with a window have fewer than the others.
    """
    label = (hit.text("label") or "").lower().replace("post-capture kv sizing", "")
    for word in ("draft", "swa", "full", "index"):
        if word in label.split():
            return word
    announced = {
        name: pool.tokens.value
        for name in ("swa", "full")
        if (pool := builder.find_pool(hit, name)) is not None and pool.tokens is not None
    }
    for name, size in announced.items():
        held = builder.find_pool(hit, name)
        if size == tokens and held is not None and held.size_bytes is None:
            return name
    held = builder.find_pool(hit)
    if held is None or held.size_bytes is None or "Post-capture" in hit.record.text:
        return "kv"
    if held.tokens is None or held.tokens.value == tokens:
        return "draft"
    first, second = ("swa", "full") if held.tokens.value < tokens else ("full", "swa")
    builder.rename_pool(hit, "kv", first)
    return second


def _state(builder: LogBuilder, hit: Hit) -> None:
    parts = [hit.bytes(name, GIB) for name in ("conv", "ssm", "more", "most")]
    builder.pool(hit, "state", slots=hit.whole("slots"), size_bytes=add(part for part in parts if part is not None))


def _windows(builder: LogBuilder, hit: Hit) -> None:
    if hit.text("swa") == "0" and hit.text("final"):
        return
    builder.pool(hit, "swa", tokens=hit.whole("swa"))
    if hit.text("full") is not None:
        builder.pool(hit, "full", tokens=hit.whole("full"))


def _both(builder: LogBuilder, hit: Hit) -> None:
    builder.pool(hit, "swa", tokens=hit.whole("swa"))
    builder.pool(hit, "full", tokens=hit.whole("full"))
    builder.pool(hit, size_bytes=hit.bytes("size", GIB))


def _total(builder: LogBuilder, hit: Hit) -> None:
    builder.set(hit, max_running=hit.whole("running"), max_model_len=hit.whole("length"))
    chunk = hit.whole("chunk") if hit.text("chunk") not in (None, "None") else None
    builder.set(hit, batch_tokens=chunk if chunk and chunk.value > 0 else None)
    builder.memory(hit, free=hit.bytes("free", GIB))
    held = builder.find_pool(hit)
    if held is None or held.tokens is None:
        builder.pool(hit, tokens=hit.whole("tokens"))
    builder.scratch["total"] = True


def _weights(builder: LogBuilder, hit: Hit) -> None:
    if "total" in builder.scratch and builder.has_size:
        builder.begin_start(hit)
    if hit.text("type"):
        builder.option(hit, "architecture", hit.text("type") or "")
    dtype = _dtype(hit)
    if dtype and builder.get("dtype") is None:
        builder.set(hit, dtype=Fact(value=dtype, line=hit.line, origin=hit.origin))
    builder.memory(hit, weights=hit.bytes("size", GIB), free_after_weights=hit.bytes("free", GIB))


def _kv_dtype(builder: LogBuilder, hit: Hit) -> None:
    builder.set(hit, kv_dtype=Fact(value=_dtype(hit), line=hit.line, origin=hit.origin))


RULES = (
    Rule("server_args=", _ARGS, _arguments, _KNOWN),
    Rule("Load weight end", _WEIGHTS, _weights),
    Rule("KV cache dtype", _KV_DTYPE, _kv_dtype),
    Rule("swa_layer_tokens=", _WINDOWS, _windows),
    Rule("KV Cache", _POOL, _pool),
    Rule("KV cache allocated", _POOL, _pool),
    Rule("Mamba Cache", _STATE, _state),
    Rule("SWAKVPool", _BOTH, _both),
    Rule("Memory pool end", _POOL_END, lambda b, h: b.memory(h, free_after_pool=h.bytes("free", GIB))),
    Rule("max_total_num_tokens=", _TOTAL, _total),
    Rule("Not enough memory", _NO_MEMORY, lambda b, h: b.notice(h, NoticeKind.NO_MEMORY, is_error=True)),
    *SAMPLE_RULES,
    OUT_OF_MEMORY,
)
"""Rules for all lines of SGLang."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of SGLang: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.SGLANG, rules=RULES, begins=_BEGINS)
