"""What Ollama logs: its own lines (``key=value``), and those of the llama.cpp server inside.

Its own engine prints one ``kv cache`` line a device: they are parts and are added. Sizes have one decimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog
from kvledger.engines.llamacpp.log import BEGINS
from kvledger.engines.llamacpp.log import RULES as LLAMACPP_RULES
from kvledger.engines.log_reader import Hit, LogBuilder, Rule, read_engine_log
from kvledger.engines.quantity import Fact, Quantity, add, exact
from kvledger.ledger import Accuracy
from kvledger.units import GIB, KIB, MIB

__all__ = ["read_log"]

_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_SIZE = r"(?P<size>[\d.]{1,12}) (?P<unit>[KMGT]iB|B)"
_PART = re.compile(
    rf'msg="(?P<what>model weights|kv cache|compute graph)" device=(?P<device>[\w.:-]{{1,40}}) size="{_SIZE}"'
)
_TOTAL = re.compile(rf'msg="total memory" size="{_SIZE}"')
_START = re.compile(r'msg="start(?:ing|ed) (?:runner|llama server|llama-server)"(?P<rest>.{0,4000})')
_FLAG = re.compile(
    r"(?:^|\s)(?P<name>--ctx-size|-c|--parallel|-np|--batch-size|-b|--cache-type-k|-ctk) (?P<value>\w{1,20})"
)
_LOAD = re.compile(r"msg=load request=\"?\{(?P<rest>.{0,4000})")
_FIELD = re.compile(r"\b(?P<name>KvSize|Parallel|BatchSize|KvCacheType|FlashAttention):(?P<value>\w{0,20})")
_FILLED = re.compile(r"\b(?:KvSize|Parallel|BatchSize|KvCacheType|FlashAttention):\w{1,20}(?= [A-Z]|\}|$)")
_VERSION = re.compile(r"Listening on [^ ]{1,80} \(version (?P<version>[\w.+-]{1,40})\)")
_DEFAULT = re.compile(
    r'vram-based default context"? total_vram="?[\d.]{1,12} \w{1,4}"? default_num_ctx=(?P<length>\d{1,12})'
)
_ENVIRONMENT = re.compile(
    r"\bOLLAMA_(?P<name>NUM_PARALLEL|CONTEXT_LENGTH|KV_CACHE_TYPE|FLASH_ATTENTION):(?P<value>\w{0,20})"
)
_REQUIRED = re.compile(r'memory\.required\.kv="(?P<size>[\d.]{1,12}) (?P<unit>[KMGT]iB|B)"')
_MAX_DEVICES = 1024


def _bytes(hit: Hit) -> Quantity | None:
    return hit.bytes("size", _UNITS[hit.match["unit"]])


def _part(builder: LogBuilder, hit: Hit) -> None:
    size = _bytes(hit)
    what, device = hit.match["what"], hit.match["device"]
    name = {"model weights": "weights", "kv cache": "kv", "compute graph": "graph"}[what]
    builder.memory(hit, **{f"{name}_on_{device}": size})
    if what != "kv cache" or size is None:
        return
    parts = builder.scratch.get("parts")
    if not isinstance(parts, dict) or "closed" in builder.scratch:
        parts = builder.scratch["parts"] = {}
        builder.scratch.pop("closed", None)
    if len(parts) < _MAX_DEVICES:
        parts[device] = size
    builder.pool(hit, size_bytes=add(parts.values()))


def _total(builder: LogBuilder, hit: Hit) -> None:
    """End of one proposal of a layout; a later one replaces it."""
    builder.scratch["closed"] = True
    builder.memory(hit, total=_bytes(hit))


def _required(builder: LogBuilder, hit: Hit) -> None:
    """An estimate, made just before the server starts that it is for."""
    if builder.has_size and "started" in builder.scratch:
        builder.begin_start(hit)
    builder.scratch["required"] = True
    builder.pool(hit, size_bytes=_bytes(hit))


def _start(builder: LogBuilder, hit: Hit) -> None:
    if builder.has_size and builder.scratch.pop("required", None) is None:
        builder.begin_start(hit)
    builder.scratch["started"] = True
    for flag in _FLAG.finditer(hit.match["rest"]):
        names = {"--ctx-size": "KvSize", "-c": "KvSize", "--parallel": "Parallel", "-np": "Parallel",
                 "--batch-size": "BatchSize", "-b": "BatchSize"}  # fmt: skip
        _set_field(builder, hit, names.get(flag["name"], "KvCacheType"), flag["value"])


def _load(builder: LogBuilder, hit: Hit) -> None:
    for field in _FIELD.finditer(hit.match["rest"]):
        _set_field(builder, hit, field["name"], field["value"])


def _set_field(builder: LogBuilder, hit: Hit, name: str, value: str) -> None:
    """Take one setting of the server: tokens of all slots, slots, batch and cache type."""
    builder.option(hit, name, value)
    if name == "KvCacheType" and value:
        builder.set(hit, kv_dtype=Fact(value=value, line=hit.line))
    if not (value.isascii() and value.isdigit()) or len(value) > 12 or value == "0":
        return
    number = exact(int(value), line=hit.line)
    if name == "KvSize":
        builder.scratch["tokens"] = int(value)
        builder.pool(hit, tokens=number)
    elif name == "Parallel":
        builder.scratch["slots"] = int(value)
        builder.set(hit, max_running=number)
    elif name == "BatchSize":
        builder.set(hit, batch_tokens=number)
    tokens, slots = builder.scratch.get("tokens"), builder.scratch.get("slots")
    if isinstance(tokens, int) and isinstance(slots, int):
        length = exact(tokens // slots, line=hit.line, accuracy=Accuracy.DERIVED)
        builder.set(hit, max_model_len=length)


def _environment(builder: LogBuilder, hit: Hit) -> None:
    if hit.match["value"]:
        builder.option(hit, f"OLLAMA_{hit.match['name']}", hit.match["value"])


def _default(builder: LogBuilder, hit: Hit) -> None:
    builder.option(hit, "default_num_ctx", hit.text("length") or "")


RULES = (
    Rule("Listening on", _VERSION, lambda b, h: b.set(h, version=h.word("version"))),
    Rule("OLLAMA_", _ENVIRONMENT, _environment),
    Rule("default context", _DEFAULT, _default),
    Rule('msg="start', _START, _start, _FLAG),
    Rule("msg=load", _LOAD, _load, _FILLED),
    Rule(" device=", _PART, _part),
    Rule("total memory", _TOTAL, _total),
    Rule("memory.required.kv", _REQUIRED, _required),
    *LLAMACPP_RULES,
)
"""Rules for all lines of Ollama."""


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of Ollama: a text, or its lines in order."""
    return read_engine_log(lines, engine=Engine.OLLAMA, rules=RULES, begins=BEGINS, own_headers=False)
