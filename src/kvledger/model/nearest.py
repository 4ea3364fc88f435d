"""Names like the one that was asked for and is not known."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

__all__ = ["did_you_mean"]

_MOST_NAMES = 5
_LONGEST_KEY = 80


def did_you_mean(key: str, names: Mapping[str, str]) -> str:
    """Ask for the nearest few names; empty when none is near.

    Args:
        key: What was asked for, written as the keys are.
        names: Every name by its key; several keys may mean one name.

    >>> did_you_mean("phi", {"phi4": "phi-4", "phi3mini": "phi-3-mini", "opt13b": "opt-13b"})
    '; did you mean `phi-4` or `phi-3-mini`?'
    """
    key = key[:_LONGEST_KEY]
    beginning = [one for one in names if key and one.startswith(key)]
    close = get_close_matches(key, names, n=_MOST_NAMES, cutoff=0.5)
    near = list(dict.fromkeys(names[one] for one in (*beginning, *close)))[:_MOST_NAMES]
    if not near:
        return ""
    *others, last = (f"`{name}`" for name in near)
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
