"""The lines of llama.cpp about the server: build, model, context, slots, memory by device, and requests that end."""

from __future__ import annotations

import re
from dataclasses import replace

from kvledger.engines.facts import NoticeKind, SampleKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import Fact, Quantity, truncated_bytes, whole
from kvledger.units import MIB

__all__ = ["SERVER_RULES"]

_BUILD = re.compile(r"\bbuild(?:_info)?[:= ]{1,3}\s{0,16}b?(?P<build>\d{1,8}) ?[(-](?P<commit>\w{1,40})\)?")
_NAME = re.compile(r"general\.name\s{1,80}(?:str\s{1,40})?= (?P<name>.{1,200})")
_CONTEXT = re.compile(
    r"(?:llama_context|llama_new_context_with_model|llama_init_from_model|llama_model_load_internal): "
    r"(?P<name>n_ctx_per_seq|n_ctx_seq|n_ctx|n_seq_max|n_batch|n_ubatch|kv_unified)\s{1,40}= (?P<value>\w{1,20})"
)
_SLOTS = re.compile(
    r"initializing(?: slots)?, n_slots = (?P<slots>\d{1,6})"
    r"(?:, n_ctx_slot = (?P<length>\d{1,12}))?(?:, kv_unified = '?(?P<unified>true|false)'?)?"
)
_SLOT = re.compile(
    r"(?:\bid\s{1,4}(?P<id>\d{1,6}) \| task -?\d{1,9} \| )?new slot,? n_ctx(?:_slot)? = (?P<length>\d{1,12})"
)
_EXHAUSTED = re.compile(r"Context size has been exceeded")
_LONGER = re.compile(
    r"request(?: \((?P<asked>\d{1,12}) tokens\))? exceeds the available context size(?: \((?P<have>\d{1,12}) tokens\))?"
)
_TRAINED = re.compile(r"n_ctx_train\s{1,40}= (?P<length>\d{1,12})")
_WINDOW = re.compile(r"print_info: n_swa\s{1,40}= (?P<tokens>\d{1,12})")
_BREAKDOWN = re.compile(
    r"\|\s{1,8}- (?P<device>[^|\n]{1,80}?)\s{0,40}\|[^|\n]{0,80}?(?P<self>\d{1,9}) =\s{0,12}(?P<model>\d{1,9}) \+"
    r"\s{0,12}(?P<context>\d{1,9}) \+\s{0,12}(?P<compute>\d{1,9})"
)
_REFUSED = re.compile(
    r"allocating (?P<size>[\d.]{1,16}) MiB on device \d{1,4}: cudaMalloc failed"
    r"|ggml_backend_\w{1,20}_buffer_type_alloc_buffer: failed to allocate buffer of size (?P<bytes>\d{1,18})"
)
_CACHE_REFUSED = re.compile(r"failed to allocate buffer for kv cache")
_PAST = re.compile(
    r"n_past = (?P<past>\d{1,12}), (?:cache_tokens|slot\.prompt\.tokens)\.size\(\) = \d{1,12}, seq_id = \d{1,6}, "
    r"pos_min = -?\d{1,12}(?:, n_swa = (?P<window>\d{1,12}))?"
)
_FORGOTTEN = re.compile(r"forcing full prompt re-processing due to lack of cache data")
_PER_SEQUENCE = re.compile(r"n_ctx_(?:per_)?seq \((?P<length>\d{1,12})\) [<>] n_ctx_train \((?P<trained>\d{1,12})\)")
_RELEASE = re.compile(
    r"id\s{1,4}(?P<slot>\d{1,6}) \|.{0,80}?stop processing: (?:n_tokens|n_past) = (?P<tokens>\d{1,12})"
)
_NUMBERS = {
    "n_ctx_seq": "max_model_len",
    "n_ctx_per_seq": "max_model_len",
    "n_seq_max": "max_running",
    "n_ubatch": "batch_tokens",
}


def _build(builder: LogBuilder, hit: Hit) -> None:
    if builder.has_size:
        builder.begin_start(hit)
    number = hit.text("build")
    if number and number != "0":
        builder.set(hit, version=Fact(value=f"b{number}", line=hit.line))


def _name(builder: LogBuilder, hit: Hit) -> None:
    """The name goes to the end of the line, and only of that line."""
    name, starts = hit.word("name"), hit.record.starts
    if name is None or builder.get("model") is not None:
        return
    rest = starts[0][0] - hit.match.start("name") if starts else len(name.value)
    builder.set(hit, model=replace(name, value=name.value[: max(rest, 1)].strip()))


def _context(builder: LogBuilder, hit: Hit) -> None:
    name, value = hit.match["name"], hit.match["value"]
    if any(pool.name == "draft" for pool in builder.pools):
        return
    builder.option(hit, name, value)
    if name == "kv_unified":
        builder.set(hit, unified=Fact(value=value in ("true", "1"), line=hit.line))
    elif name in _NUMBERS:
        builder.set(hit, **{_NUMBERS[name]: whole(value, line=hit.line)})


def _slots(builder: LogBuilder, hit: Hit) -> None:
    unified = hit.text("unified")
    builder.set(
        hit,
        max_running=hit.whole("slots"),
        max_model_len=hit.whole("length"),
        unified=None if unified is None else Fact(value=unified == "true", line=hit.line),
    )


def _slot(builder: LogBuilder, hit: Hit) -> None:
    """Slots are numbered from 0; a build that does not print their number is told by the last of these lines."""
    builder.set(hit, max_model_len=hit.whole("length"))
    last, most = hit.integer("id"), builder.scratch.get("slots", -1)
    own = builder.get("max_running") is None or "slots" in builder.scratch
    if last is not None and own and isinstance(most, int):
        builder.scratch["slots"] = max(most, last)
        builder.set(hit, max_running=hit.count(max(most, last) + 1))


def _longer(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(hit, NoticeKind.NEVER_FITS, is_error=True, asked=hit.integer("asked"), available=hit.whole("have"))


def _breakdown(builder: LogBuilder, hit: Hit) -> None:
    """Whole MiB, cut (not rounded)."""
    device = hit.match["device"].partition(" (")[0].strip()
    sizes = {f"{name}_on_{device}": _cut(hit, name) for name in ("model", "context", "compute")}
    builder.memory(hit, **sizes)


def _cut(hit: Hit, name: str) -> Quantity | None:
    number = hit.integer(name)
    if number is None:
        return None
    return truncated_bytes(number, MIB, line=hit.line)


def _refused(builder: LogBuilder, hit: Hit) -> None:
    size = hit.bytes("size", MIB) or hit.whole("bytes")
    builder.scratch["refused"] = size
    builder.notice(hit, NoticeKind.OUT_OF_MEMORY, is_error=True, needed=size)


def _cache_refused(builder: LogBuilder, hit: Hit) -> None:
    """Named after the allocation that failed, which is that of the cache."""
    size, context = builder.scratch.pop("refused", None), builder.find_option("n_ctx")
    asked = int(context) if context.isascii() and context.isdigit() and len(context) < 13 else None
    builder.notice(hit, NoticeKind.CACHE_REFUSED, is_error=True, needed=size, asked=asked)


def _past(builder: LogBuilder, hit: Hit) -> None:
    builder.scratch["past"] = hit.integer("past"), hit.integer("window")


def _forgotten(builder: LogBuilder, hit: Hit) -> None:
    told = builder.scratch.pop("past", None)
    past, window = told if isinstance(told, tuple) else (None, None)
    builder.notice(hit, NoticeKind.PREFIX_FORGOTTEN, count=past, asked=window)


def _per_sequence(builder: LogBuilder, hit: Hit) -> None:
    """A remark that repeats the context; it stands alone where people quote it."""
    if builder.get("max_model_len") is None and not any(pool.name == "draft" for pool in builder.pools):
        builder.set(hit, max_model_len=hit.whole("length"))
        builder.option(hit, "n_ctx_train", hit.text("trained") or "")


def _release(builder: LogBuilder, hit: Hit) -> None:
    """A request ended; its slot keeps these tokens."""
    builder.sample(hit, kind=SampleKind.EVENT, origin=f"slot {hit.match['slot']}", tokens=hit.whole("tokens"))


SERVER_RULES = (
    Rule("build", _BUILD, _build),
    Rule("general.name", _NAME, _name),
    Rule(" = ", _CONTEXT, _context),
    Rule("n_slots = ", _SLOTS, _slots),
    Rule("new slot", _SLOT, _slot),
    Rule("Context size has", _EXHAUSTED, lambda b, h: b.notice(h, NoticeKind.POOL_EXHAUSTED, is_error=True)),
    Rule("available context size", _LONGER, _longer),
    Rule("n_ctx_train", _TRAINED, lambda b, h: b.option(h, "n_ctx_train", h.text("length") or "")),
    Rule("n_swa ", _WINDOW, lambda b, h: b.option(h, "n_swa", h.text("tokens") or "")),
    Rule("| ", _BREAKDOWN, _breakdown),
    Rule("for kv cache", _CACHE_REFUSED, _cache_refused),
    Rule("pos_min = ", _PAST, _past),
    Rule("forcing full prompt", _FORGOTTEN, _forgotten),
    Rule("n_ctx_train (", _PER_SEQUENCE, _per_sequence),
    Rule("_alloc_buffer: ", _REFUSED, _refused),
    Rule("stop processing", _RELEASE, _release),
)
"""Rules for the server, its context and its requests."""
