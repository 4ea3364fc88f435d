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
_AMOUNT = re.compile(r"(at most )?(\d[\d.,]*)(?: to (\d[\d.,]*))?( %)?")
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
            return chinese.format(
                **{name: translate(value) or _translate_amount(value) for name, value in match.groupdict().items()}
            )
    return None


def _translate_amount(text: str) -> str:
    """Return a field in Chinese where it is a number with bounds, else as it is.

    >>> _translate_amount("at most 31.5 %"), _translate_amount("11.3 to 11.9 %"), _translate_amount("paged")
    ('最多 31.5 %', '11.3 到 11.9 %', 'paged')
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return text
    most, low, high, unit = match.groups(default="")
    return ("最多 " if most else "") + low + (f" 到 {high}" if high else "") + unit


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
