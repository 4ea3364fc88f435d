"""Chinese for the sentences that results bring along. What is not known stays English.

``assets/chinese.toml`` pairs an English sentence, with what varies in braces, with its Chinese. Sentences that follow
each other, and parts between semicolons, are translated one by one.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache

from kvledger.report.html.phrases import read_asset

__all__ = ["translate"]

_LONGEST = 600
_FIELD = re.compile(r"\\\{(\w+)\\\}")
_BREAKS = ((re.compile(r"(?<=\.) (?=[A-Z0-9`])"), ""), (re.compile("; "), "；"), (re.compile(", and "), "，"))


def translate(text: str) -> str | None:
    """Return a sentence in Chinese, or None when this is not one of ours.

    >>> translate("no such sentence") is None
    True
    """
    if not text or len(text) > _LONGEST:
        return None
    found = _match(text)
    if found is not None:
        return found
    for between, joint in _BREAKS:
        parts = between.split(text)
        if len(parts) > 1:
            chinese = [translate(part) for part in parts]
            if all(part is not None for part in chinese):
                return joint.join(part for part in chinese if part)
    return None


def _match(text: str) -> str | None:
    for pattern, chinese in _rules():
        match = pattern.fullmatch(text)
        if match:
            return chinese.format(**{name: translate(value) or value for name, value in match.groupdict().items()})
    return None


@cache
def _rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    pairs = tomllib.loads(read_asset("chinese.toml"))["sentences"]
    return tuple((_pattern(english), chinese) for english, chinese in pairs)


def _pattern(english: str) -> re.Pattern[str]:
    """Return what matches a sentence. A field is short and within one part; ``rest`` is anything that follows."""
    seen: set[str] = set()

    def field(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>.{{1,400}}?)" if name == "rest" else f"(?P<{name}>[^;]{{1,100}}?)"

    return re.compile(_FIELD.sub(field, re.escape(english)), re.DOTALL)
