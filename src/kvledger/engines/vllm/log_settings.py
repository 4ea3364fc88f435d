"""The settings that vLLM logs: version, configuration, arguments, lengths and weights."""

from __future__ import annotations

import re

from kvledger.engines.log_reader import Hit, LogBuilder, Rule, named_values
from kvledger.engines.quantity import Fact, given, whole
from kvledger.units import GIB

__all__ = ["SETTING_RULES", "begin_when_done"]

_VERSION = r"\d{1,4}\.\d{1,4}[\w.+-]{0,60}"
_INITIALIZING = re.compile(
    rf"Initializing an? (?P<core>V\d )?LLM engine(?: \(v?(?P<version>{_VERSION})\))? with config: "
    r"(?P<config>.{0,16000})",
    re.DOTALL,
)
_SERVER = re.compile(rf"(?:vLLM API server version |▀▄▀ █  version |\bvLLM version )(?P<version>{_VERSION})")
_ARGUMENTS = re.compile(r"non-default args: \{(?P<args>.{0,16000})", re.DOTALL)
_PAIR = re.compile(
    r"['\"]?(?P<name>[a-z_]{2,60})['\"]?\s?[=:]\s?(?P<value>'[^']{0,300}'|\"[^\"]{0,300}\"|[\w./+-]{1,300})"
)
_SPECULATIVE = re.compile(r"speculative_config['\"]?[=:] ?(?:SpeculativeConfig\(|\{)(?P<inner>[^)}]{0,2000})")
_LENGTH = re.compile(r"Using max model len (?P<length>\d{1,12})")
_CHUNKED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(?P<tokens>\d{1,12})")
_KV_DTYPE = re.compile(r"Using (?P<dtype>[\w.]{2,40}) data type to store kv cache")
_BLOCK = re.compile(r"Setting kv cache block size to (?P<block>\d{1,9})(?: for|\.|$| )")
_WEIGHTS = re.compile(
    r"(?:Model loading took (?P<size>[\d.]{1,16}) GiB|Loading model weights took (?P<old>[\d.]{1,16}) G(?:i)?B)"
)
_GRAPHS = re.compile(r"Graph capturing finished in [\d.]{1,12} secs?, took (?P<size>-?[\d.]{1,12}) GiB")
_GRAPH_POOL = re.compile(r"CUDA graph pool memory: (?P<size>-?[\d.]{1,12}) GiB \(actual\)")

_WORDS = {"dtype": "dtype", "kv_cache_dtype": "kv_dtype", "device_config": "device", "model": "model"}
_NUMBERS = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "decode_context_parallel_size": "dcp",
    "max_seq_len": "max_model_len",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_running",
    "max_num_batched_tokens": "batch_tokens",
    "block_size": "block_tokens",
}
_KNOWN = named_values({*_WORDS, *_NUMBERS, "gpu_memory_utilization", "enable_prefix_caching"})
# Flags that say how memory is used; the rest (addresses, keys, paths) is not kept.
_KEPT = re.compile(
    r"block|cache|mamba|gpu_memory|max_(?:model|num)|num_|prefix|chunk|parallel|dtype|quantization|speculative_m"
    r"|enforce_eager|swap|offload|window|attention|async_sched|scheduling|load_format|runner|stats"
)


def begin_when_done(builder: LogBuilder, hit: Hit, what: str) -> None:
    """Begin a new start when the present one is complete and this process announces ``what`` again."""
    seen = builder.scratch.setdefault(what, set())
    assert isinstance(seen, set)
    mark = hit.origin
    if builder.has_size and (mark in seen or what == "server"):
        builder.begin_start(hit)
        seen = builder.scratch.setdefault(what, set())
        assert isinstance(seen, set)
    seen.add(mark)


def _read_pairs(builder: LogBuilder, hit: Hit, text: str, *, keep: bool) -> None:
    """Set the facts among ``name=value`` or ``'name': value`` pairs; nothing is evaluated."""
    for count, match in enumerate(_PAIR.finditer(text)):
        if count >= 400:
            break
        name, value = match["name"], match["value"].strip("'\"")
        if value in ("None", ""):
            continue
        if keep and _KEPT.search(name):
            builder.option(hit, name, value)
        _set_pair(builder, hit, name, value)


def _set_pair(builder: LogBuilder, hit: Hit, name: str, value: str) -> None:
    if name in _WORDS:
        word = value.removeprefix("torch.") if name in ("dtype", "kv_cache_dtype") else value
        builder.set(hit, **{_WORDS[name]: Fact(value=word, line=hit.line, origin=hit.origin)})
    elif name in _NUMBERS:
        number = whole(value, line=hit.line, origin=hit.origin)
        if number is not None and number.value > 0:
            builder.set(hit, **{_NUMBERS[name]: number})
    elif name == "gpu_memory_utilization":
        builder.set(hit, memory_ratio=given(value, line=hit.line, origin=hit.origin))
    elif name == "enable_prefix_caching" and value in ("True", "False"):
        builder.set(hit, prefix_caching=Fact(value=value == "True", line=hit.line, origin=hit.origin))


def _initializing(builder: LogBuilder, hit: Hit) -> None:
    begin_when_done(builder, hit, "initializing")
    core = (hit.text("core") or "V0").strip().lower()
    builder.option(hit, "core", core)
    builder.set(hit, version=hit.word("version"))
    _read_pairs(builder, hit, _without_nested(hit.match["config"]), keep=False)
    _read_speculative(builder, hit, hit.match["config"])


def _without_nested(config: str) -> str:
    """Cut what follows the flat part of a configuration: nested settings repeat names with other meanings."""
    for name in ("compilation_config=", "kernel_config="):
        config = config.partition(name)[0]
    depth, flat = 0, []
    for character in config:
        depth += character in "({["
        if depth <= 0:
            flat.append(character)
        depth -= character in ")}]" and depth > 0
    return "".join(flat)


def _server(builder: LogBuilder, hit: Hit) -> None:
    begin_when_done(builder, hit, "server")
    builder.set(hit, version=hit.word("version"))


def _arguments(builder: LogBuilder, hit: Hit) -> None:
    args = hit.match["args"]
    _read_pairs(builder, hit, _SPECULATIVE.sub("", args), keep=True)
    _read_speculative(builder, hit, args)


def _read_speculative(builder: LogBuilder, hit: Hit, text: str) -> None:
    """Keep how tokens are proposed, under names of their own: the draft has a model and a dtype too."""
    found = _SPECULATIVE.search(text)
    for match in _PAIR.finditer(found["inner"]) if found is not None else ():
        name, value = match["name"], match["value"].strip("'\"")
        if name == "method":
            builder.option(hit, "speculative_method", value)
        elif name in ("num_speculative_tokens", "num_spec_tokens"):
            builder.option(hit, "speculative_tokens", value)


def _weights(builder: LogBuilder, hit: Hit) -> None:
    builder.memory(hit, weights=hit.bytes("size", GIB, decimals=2) or hit.bytes("old", GIB, decimals=2))


SETTING_RULES = (
    Rule("version ", _SERVER, _server),
    Rule("non-default args", _ARGUMENTS, _arguments, _KNOWN),
    Rule("LLM engine", _INITIALIZING, _initializing, _KNOWN),
    Rule("Using max model len", _LENGTH, lambda b, h: b.set(h, max_model_len=h.whole("length"))),
    Rule("max_num_batched_tokens=", _CHUNKED, lambda b, h: b.set(h, batch_tokens=h.whole("tokens"))),
    Rule("data type to store kv", _KV_DTYPE, lambda b, h: b.set(h, kv_dtype=h.word("dtype"))),
    Rule("Setting kv cache block", _BLOCK, lambda b, h: b.set(h, block_tokens=h.whole("block"))),
    Rule(" took ", _WEIGHTS, _weights),
    Rule("Graph capturing", _GRAPHS, lambda b, h: b.memory(h, graphs=h.bytes("size", GIB, decimals=2))),
    Rule("graph pool memory", _GRAPH_POOL, lambda b, h: b.memory(h, graphs=h.bytes("size", GIB, decimals=2))),
)
"""Rules for settings and for memory outside the pool."""
