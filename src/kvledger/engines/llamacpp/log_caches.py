"""The lines of llama.cpp about its caches: cells, layers, streams and bytes, by cache and by device."""

from __future__ import annotations

import re

from kvledger.engines.facts import NoticeKind
from kvledger.engines.log_reader import Hit, LogBuilder, Rule
from kvledger.engines.quantity import Quantity, add, exact
from kvledger.ledger import Accuracy
from kvledger.units import MIB

__all__ = ["CACHE_RULES"]

_MIB = r"[\d.]{1,16}"
_SIZE = re.compile(
    rf"(?P<owner>[\w^]{{0,60}}):?\s{{0,16}}\bsize\s{{0,8}}=\s{{0,8}}(?P<size>{_MIB}) MiB "
    r"\(\s{0,8}(?P<cells>\d{1,12}) cells?,\s{0,8}(?P<layers>\d{1,6}) layers"
    r"(?:,\s{0,8}(?P<seqs>\d{1,6})(?:/\s{0,4}(?P<streams>\d{1,6}))? seqs(?:\s{1,4}(?P<kept>\d{1,6}) rs_seq)?)?\)"
    rf"(?:,?\s{{0,16}}(?P<first>[KR]) ?\((?P<ktype>\w{{1,16}})\):?\s{{0,8}}(?P<k>{_MIB})(?: MiB)?(?:,| \+)"
    rf"\s{{0,8}}[VS] ?\((?P<vtype>\w{{1,16}})\):?\s{{0,8}}(?P<v>{_MIB})(?: MiB)?)?"
)
_BARE = re.compile(rf"llama_kv_cache\w{{0,20}}:\s{{0,16}}size\s{{0,8}}=\s{{0,8}}(?P<size>{_MIB}) MiB(?! \(\s{{0,8}}\d)")
"""The size line without its cells, as people shorten it."""
_SELF = re.compile(
    rf"(?:KV|kv) self size\s{{0,8}}=\s{{0,8}}(?P<size>{_MIB}) Mi?B"
    rf"(?:, (?:K|c\^KV) \((?P<ktype>\w{{1,16}})\):\s{{0,8}}(?P<k>{_MIB}) MiB"
    rf"(?:, (?:V|kv\^T) \((?P<vtype>\w{{1,16}})\):\s{{0,8}}(?P<v>{_MIB}) MiB|, kv\^T: (?P<none>not used))?)?"
)
_BUFFER = re.compile(
    rf"(?<![\w.:\[\]-])(?P<device>[\w.:\[\]-]{{1,40}})(?: \([^)]{{0,40}}\))? "
    rf"(?P<kind>KV|RS) buffer size\s{{0,8}}=\s{{0,8}}"
    rf"(?P<size>{_MIB}) MiB"
)
_CELLS = re.compile(
    r"kv_size = (?P<cells>\d{1,12}),(?: offload = \d,)? type_k = '(?P<ktype>\w{1,16})', type_v = '(?P<vtype>\w{1,16})'"
)
_CREATING = re.compile(
    r"creating\s{1,8}(?P<kind>non-SWA|SWA|indexer|main|base|raw) KV cache, size\s{0,8}=\s{1,8}(?P<cells>\d{1,12}) cells"
)
_REUSE = re.compile(r"layer\s{1,4}(?P<layer>\d{1,6}): reuse layer\s{1,4}(?P<other>\d{1,6}), is_swa = (?P<swa>\d)")
_NAMES = {"non-SWA": "full", "SWA": "swa", "indexer": "index", "main": "kv", "base": "kv", "raw": "kv"}


def _next_name(builder: LogBuilder, hit: Hit) -> str:
    """Return the cache that the next size line speaks of: the one announced, or the draft model's after the first."""
    announced = builder.scratch.get("creating")
    if isinstance(announced, str):
        return announced
    held = builder.find_pool(hit)
    done = held is not None and held.layers is not None
    return "draft" if done else "kv"


def _cells(builder: LogBuilder, hit: Hit) -> None:
    """All sequences share these cells; up to about b5900 this line came before the sizes."""
    held = builder.find_pool(hit)
    if held is None or held.cells is None:
        cells, types = hit.whole("cells"), {"key_dtype": hit.text("ktype"), "value_dtype": hit.text("vtype")}
        builder.pool(hit, cells=cells, tokens=cells, streams=exact(1, line=hit.line), **types)


def _creating(builder: LogBuilder, hit: Hit) -> None:
    name = _NAMES[hit.match["kind"]]
    if name == "swa" and builder.find_pool(hit, "full") is None:
        builder.rename_pool(hit, "kv", "full")  # its own announcement is not in the text
    builder.scratch["creating"] = name
    builder.scratch["buffers"] = []
    builder.pool(hit, name, cells=hit.whole("cells"))


def _size(builder: LogBuilder, hit: Hit) -> None:
    size = hit.bytes("size", MIB)
    if hit.text("first") == "R" or "recurrent" in hit.match["owner"]:
        slots, layers, kept = hit.whole("cells"), hit.whole("layers"), hit.whole("kept")
        builder.pool(hit, "state", size_bytes=size, slots=slots, layers=layers, kept_states=kept)
        return
    name = _next_name(builder, hit)
    streams = hit.whole("streams")
    builder.pool(
        hit,
        name,
        size_bytes=size,
        key_bytes=hit.bytes("k", MIB),
        value_bytes=hit.bytes("v", MIB),
        key_dtype=hit.text("ktype"),
        value_dtype=hit.text("vtype"),
        cells=hit.whole("cells"),
        streams=streams,
        slots=hit.whole("seqs"),
        layers=hit.whole("layers"),
        tokens=_tokens(hit, streams),
    )
    builder.scratch["creating"], builder.scratch["buffers"] = None, []


def _bare(builder: LogBuilder, hit: Hit) -> None:
    builder.pool(hit, _next_name(builder, hit), size_bytes=hit.bytes("size", MIB))
    builder.scratch["creating"], builder.scratch["buffers"] = None, []


def _tokens(hit: Hit, streams: Quantity | None) -> Quantity | None:
    """Return the tokens of all streams: the line gives the cells of one."""
    cells = hit.integer("cells")
    if cells is None or streams is None:
        return None
    return exact(cells * streams.value, line=hit.line, accuracy=Accuracy.DERIVED)


def _self_size(builder: LogBuilder, hit: Hit) -> None:
    values = exact(0, line=hit.line) if hit.text("none") else hit.bytes("v", MIB)
    builder.pool(
        hit,
        size_bytes=hit.bytes("size", MIB),
        key_bytes=hit.bytes("k", MIB),
        value_bytes=values,
        key_dtype=hit.text("ktype"),
        value_dtype=hit.text("vtype"),
    )
    builder.scratch["buffers"] = []


def _buffer(builder: LogBuilder, hit: Hit) -> None:
    size = hit.bytes("size", MIB)
    builder.memory(hit, **{f"{hit.match['kind'].lower()}_on_{hit.match['device']}": size})
    if hit.match["kind"] == "RS":
        return
    buffers = builder.scratch.setdefault("buffers", [])
    if isinstance(buffers, list) and len(buffers) < 1024:
        buffers.append(size)
        builder.pool(hit, _next_name(builder, hit), size_bytes=add(buffers))


def _reuse(builder: LogBuilder, hit: Hit) -> None:
    builder.notice(hit, NoticeKind.LAYERS_SHARED, count=1)


CACHE_RULES = (
    Rule("kv_size = ", _CELLS, _cells),
    Rule("reuse layer", _REUSE, _reuse),
    Rule("KV cache, size", _CREATING, _creating),
    Rule("buffer size", _BUFFER, _buffer),
    Rule(" MiB (", _SIZE, _size),
    Rule("llama_kv_cache", _BARE, _bare),
    Rule(" self size", _SELF, _self_size),
)
"""Rules for caches and the memory they take by device."""
