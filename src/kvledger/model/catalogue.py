"""The catalogue: well-known models by name, priced from the config fields that decide their cache."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import msgspec

from kvledger.errors import UsageError
from kvledger.model.nearest import did_you_mean
from kvledger.model.reader import read_config
from kvledger.model.spec import ModelSpec
from kvledger.model.storage import Origin

__all__ = ["CatalogueEntry", "catalogue", "find_model"]

_PACKAGING = re.compile(
    r"[-_.](?:fp8|nvfp4|mxfp4|fp4|awq|gptq|autoround|bnb|gguf|mlx|marlin|quantized|int4|int8|4bit|8bit|bf16|fp16"
    r"|w4a16|w8a8|w8a16|w4a8|q[2-8](?:_[01k](?:_[sml])?)?|dynamic|hf|it|chat|instruct)$"
)
"""What a name says at its end about weights and tuning, neither of which a layer's cache depends on."""


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One well-known model."""

    name: str
    source: str
    """Where the field values were published."""
    config: dict[str, Any]
    """The fields of its config that matter here."""
    aliases: tuple[str, ...] = ()


@cache
def catalogue() -> Mapping[str, CatalogueEntry]:
    """Return every entry by its name, in the order of the data file."""
    data = files("kvledger.model").joinpath("data", "models.toml").read_text("utf-8")
    entries = msgspec.convert(tomllib.loads(data)["model"], type=list[CatalogueEntry])
    return MappingProxyType({entry.name: entry for entry in entries})


@cache
def _by_key() -> Mapping[str, str]:
    keys = {_key(name): entry.name for entry in catalogue().values() for name in (entry.name, *entry.aliases)}
    return MappingProxyType(keys)


def _key(name: str) -> str:
    """Return a name without organisation, case and punctuation, so that ``Meta-Llama/Llama_3 8B`` finds its entry."""
    return re.sub(r"[^a-z0-9]", "", name.strip().lower().rpartition("/")[2])


def _find_entry(name: str) -> str | None:
    """Return the entry of a name, else of the name without what is said of its weights at the end."""
    found = _by_key().get(_key(name))
    rest = name.strip().lower()
    while found is None and (end := _PACKAGING.search(rest)) is not None:
        rest = rest[: end.start()]
        found = _by_key().get(_key(rest))
    return found


def find_model(name: str) -> ModelSpec:
    """Find a well-known model by name.

    Raises:
        UsageError: The catalogue has no such model; the nearest names are told.

    >>> find_model("opt-13b").bytes_per_token()
    819200
    """
    found = _find_entry(name[:200])
    if found is None:
        raise UsageError(
            f"the catalogue has no model `{name[:80]}`{did_you_mean(_key(name[:200]), _by_key())}",
            hint="give the model's config.json, its folder or a .gguf file; "
            f"`kvledger size --list models` shows the {len(catalogue())} of the catalogue",
            model=name[:80],
        )
    entry = catalogue()[found]
    spec = read_config(entry.config, name=entry.name)
    origin = Origin(name="catalogue", value=entry.name, source=entry.source)
    notes = spec.notes
    if _key(name[:200]) not in _by_key():
        notes += (
            f"`{name.strip()[:80]}` is read as the catalogue's `{entry.name}`: the end of the name is about weights, "
            "and a KV dtype that a quantised checkpoint declares is in its config only",
        )
    return replace(spec, provenance=(origin, *spec.provenance), notes=notes)
