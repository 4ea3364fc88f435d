"""JSON from servers, read strictly: bounded, without repeated trust in what it holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from kvledger.engines.quantity import Quantity, exact
from kvledger.errors import SourceError
from kvledger.units import counted

__all__ = ["MAX_JSON", "find_object", "number", "read_json"]

MAX_JSON = 64 * 2**20
"""Characters of one answer; longer ones are refused."""


def read_json(text: str, *, what: str) -> object:
    """Read an answer of a server.

    Raises:
        SourceError: It is too long, too deep, or no JSON.
    """
    if len(text) > MAX_JSON:
        raise SourceError(f"{what} is {counted(len(text), 'character')} long, more than the {MAX_JSON:,} that are read")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{what} is no JSON: {str(error)[:200]}", hint="save the whole answer of the server, unchanged"
        ) from None


def find_object(value: object, *path: str) -> Mapping[str, object]:
    """Return the object at the end of a path of names, or an empty one."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def number(holder: Mapping[str, object], *names: str, source: str = "") -> Quantity | None:
    """Return the first of those fields that holds a finite, believable number (not a boolean)."""
    for name in names:
        value = holder.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            continue
        return exact(value, source=f"{source}{name}")
    return None
