"""Layers stated by hand: a short language for models whose config cannot be read.

::

    layers := group ("+" group)*
    group  := [count "x"] "(" word ("," word)* ")"
    word   := name "=" number | "none"

A group of ``kv`` and ``head`` (or ``key`` and ``value``) is attention, with ``window`` or ``chunk`` where it has a
limit, or ``cross`` where it looks at so many encoder tokens. ``latent`` and ``rope`` are MLA, ``index`` adds the keys
of an indexer, ``state`` is a constant number of bytes for a sequence, ``none`` keeps nothing.
"""

from __future__ import annotations

import re

from kvledger.errors import UsageError
from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS
from kvledger.model.fields import MAX_INTEGER
from kvledger.model.formats import find_dtype
from kvledger.model.layers import (
    AttentionCache,
    Cache,
    CrossAttentionCache,
    Indexer,
    LatentCache,
    Layer,
    NoCache,
    Role,
)
from kvledger.model.spec import Length, ModelSpec
from kvledger.model.states import given
from kvledger.model.storage import Origin
from kvledger.units import counted

__all__ = ["parse_layers", "read_layers"]

MAX_TEXT = 10_000
_GROUP = re.compile(r"\s*(?:(?P<count>\d{1,9})\s*[x*]\s*)?\(\s*(?P<words>[^()]*)\)\s*")
_WORD = re.compile(r"\s*(?P<name>[a-z]+)\s*(?:=\s*(?P<value>\d{1,15})\s*)?")
_LIMITS = {
    "kv": MAX_HEADS,
    "head": MAX_HEAD_SIZE,
    "key": MAX_HEAD_SIZE,
    "value": MAX_HEAD_SIZE,
    "window": MAX_INTEGER,
    "chunk": MAX_INTEGER,
    "cross": MAX_INTEGER,
    "latent": MAX_HEAD_SIZE,
    "rope": MAX_HEAD_SIZE,
    "index": MAX_HEAD_SIZE,
    "state": MAX_INTEGER,
}
_HINT = (
    "write groups such as `32x(kv=8,head=128)`, `52x(kv=16,head=128,window=1024)`, `61x(latent=512,rope=64,index=128)`,"
    " `36x(state=2147840)` or `4x(none)`, joined by `+`"
)


def read_layers(text: str, *, dtype: str = "bfloat16", max_model_len: int | None = None) -> ModelSpec:
    """Read a model stated by hand.

    Raises:
        UsageError: The text does not follow the grammar, or a number is out of bounds.

    >>> read_layers("10x(kv=16,head=128)+52x(kv=16,head=128,window=1024)").bytes_per_token()
    81920
    """
    return ModelSpec(
        name="by hand",
        model_type="by_hand",
        layers=parse_layers(text),
        dtype=find_dtype(dtype).served,
        max_model_len=Length(tokens=max_model_len, source="stated by hand") if max_model_len else None,
        provenance=(Origin(name="layers", value=text.strip()[:200], source="stated by hand"),),
    )


def parse_layers(text: str) -> tuple[Layer, ...]:
    """Parse the language of this module into layers.

    Raises:
        UsageError: The text does not follow the grammar, or a number is out of bounds.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(
            f"the layers are stated in {counted(len(text), 'character')}, more than {MAX_TEXT}", hint=_HINT
        )
    layers: list[Layer] = []
    for part in text.split("+"):
        match = _GROUP.fullmatch(part)
        if match is None:
            raise UsageError(f"`{part.strip()[:60]}` is not a group of layers", hint=_HINT)
        count = int(match["count"] or 1)
        if count < 1 or len(layers) + count > MAX_LAYERS:
            raise UsageError(
                f"`{part.strip()[:60]}` makes {counted(len(layers) + count, 'layer')}: 1 to {MAX_LAYERS} can be stated",
                hint=_HINT,
            )
        cache = _parse_cache(match["words"], part)
        role = Role.CROSS if isinstance(cache, CrossAttentionCache) else Role.MAIN
        origin = f"stated by hand: {part.strip()[:80]}"
        start = len(layers)  # the list grows while it is extended
        layers.extend(Layer(index=start + i, cache=cache, role=role, origin=origin) for i in range(count))
    return tuple(layers)


def _parse_cache(words: str, part: str) -> Cache:
    values = _parse_words(words, part)
    names = set(values)
    if names == {"none"}:
        return NoCache(reason="stated by hand")
    if names == {"state"}:
        return given(values["state"])
    indexer = Indexer(key_size=values["index"]) if "index" in names else None
    if "latent" in names and names <= {"latent", "rope", "index"}:
        return LatentCache(latent_size=values["latent"], rope_size=values.get("rope", 0), indexer=indexer)
    sizes = names & {"head", "key", "value"}
    limits = names & {"window", "chunk", "cross"}
    if "kv" in names and sizes in ({"head"}, {"key", "value"}) and len(limits) < 2 and "cross" not in names:
        if names <= {"kv", "head", "key", "value", "window", "chunk", "index"}:
            return _attention(values, indexer)
    elif names == {"kv", "cross", *sizes} and sizes in ({"head"}, {"key", "value"}):
        return CrossAttentionCache(
            kv_heads=values["kv"],
            key_size=values.get("head") or values["key"],
            value_size=values.get("head") or values["value"],
            encoder_tokens=values["cross"],
        )
    raise UsageError(f"`{part.strip()[:60]}` is not a cache kvledger knows", hint=_HINT)


def _attention(values: dict[str, int], indexer: Indexer | None) -> AttentionCache:
    return AttentionCache(
        kv_heads=values["kv"],
        key_size=values.get("head") or values["key"],
        value_size=values.get("head") or values["value"],
        window_tokens=values.get("window"),
        chunk_tokens=values.get("chunk"),
        indexer=indexer,
    )


def _parse_words(words: str, part: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for word in words.split(","):
        match = _WORD.fullmatch(word)
        name = match["name"] if match else ""
        if match is None or name in values or (name == "none") != (match["value"] is None):
            raise UsageError(f"`{word.strip()[:40]}` in `{part.strip()[:60]}` is not understood", hint=_HINT)
        if name == "none":
            values[name] = 0
            continue
        value, high = int(match["value"]), _LIMITS.get(name)
        if high is None:
            raise UsageError(f"`{name[:40]}` in `{part.strip()[:60]}` is not a word of layers", hint=_HINT)
        if not 1 <= value <= high:
            raise UsageError(f"`{word.strip()[:40]}` is outside 1 to {high}", hint=_HINT)
        values[name] = value
    return values
