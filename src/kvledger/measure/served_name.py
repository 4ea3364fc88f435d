"""Whether the model a price was asked for can be the one that is served, as far as their names tell.

A server may serve a model under any name, so only what surely differs counts: the parameters (``8b``, ``70b``), the
family when both are known ones, and the price when the catalogue knows the served name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.errors import Error
from kvledger.model.spec import ModelSpec

__all__ = ["explain_difference"]

_LONGEST_NAME = 200
_PARAMETERS = re.compile(r"(?<![a-z0-9.])(?:\d{1,3}x)?\d{1,4}(?:\.\d{1,3})?[bm](?![a-z0-9])")
_FAMILY = re.compile(r"[a-z]{3,}")


def explain_difference(
    served: str, model: ModelSpec, known: ModelSpec | None, *, families: Iterable[str] = ()
) -> str | None:
    """Return why the served model is surely not ``model``, or None where the names leave it open.

    Args:
        served: The name that the server tells.
        model: The model that was given.
        known: The catalogue's entry for the served name, where there is one.
        families: Names of models whose families are known.

    >>> from kvledger.model.catalogue import find_model
    >>> explain_difference("meta-llama/Llama-3.1-8B-Instruct", find_model("llama-3.1-70b"), None)
    '`8b` is served, but `70b` was given'
    """
    theirs, ours = _plain(served), _plain(model.name)
    sizes = _find_sizes(theirs), _find_sizes(ours)
    if all(sizes) and sizes[0] != sizes[1]:
        return f"`{sizes[0]}` is served, but `{sizes[1]}` was given"
    words = {word for name in families for word in _FAMILY.findall(_plain(name))[:1]}
    mine, yours = words & set(_FAMILY.findall(theirs)), words & set(_FAMILY.findall(ours))
    is_alias = not sizes[0] and known is None  # `gpt-4` is served by many who serve another model
    if mine and yours and not is_alias and not any(a in b or b in a for a in mine for b in yours):
        return f"`{min(mine)}` is served, but `{min(yours)}` was given"
    prices = _count_bytes(known), _count_bytes(model)
    if None not in prices and prices[0] != prices[1]:
        return f"a token of the served model costs {prices[0]:,} bytes, but {prices[1]:,} of the one given"
    return None


def _plain(name: str) -> str:
    """Return a name without organisation and case, its parts set apart by ``-``."""
    last = name[:_LONGEST_NAME].strip().rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9.]+", "-", last)


def _find_sizes(name: str) -> str:
    """Return the parameters a name tells; of a mixture's total and active ones the total, which comes first."""
    found = _PARAMETERS.search(name)
    return found[0] if found else ""


def _count_bytes(model: ModelSpec | None) -> int | None:
    try:
        return None if model is None else model.bytes_per_token("bfloat16")
    except Error:
        return None
