"""Chinese for the sentences that results bring along. What is not known stays English.

``assets/chinese*.toml`` pair an English sentence, with what varies in braces, with its Chinese; of several that fit,
the one that says most by itself is taken. Sentences that follow each other, and parts between semicolons, are
translated one by one.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache

from kvledger.report.html.phrases import read_asset

__all__ = ["ASSETS", "translate"]

ASSETS = ("chinese.toml", "chinese_findings.toml", "chinese_measure.toml", "chinese_size.toml", "chinese_traces.toml")
_LONGEST = 600
_SHORT = 15
_NUMBER = r"\d[\d.,]*(?: ?[A-Za-z%]{1,5})?"
_PART = r"(?:(?!\. [A-Z0-9`])[^;]){1,100}?"
_WORDS = re.compile(r"([A-Za-z]+)")
_LEAST = 3
_VERBS = {"are": "is", "were": "was", "have": "has", "do": "does"}
_VERB = re.compile(rf"\b({'|'.join(_VERBS)}|fit|hold|keep|own|reserve|run|share|stay|take|wait|would)\b")
_BRACES = re.compile(r"\{\w+\}")
_FIELDS = re.compile(r"\{(\w+)\}([^{]*)")
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
    for rule in _rules():
        match = rule.pattern.fullmatch(text) if text.startswith(rule.start) else None
        if match:
            return rule.chinese.format(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A sentence with its Chinese; ``start`` is what stands before its first field."""

    start: str
    pattern: re.Pattern[str]
    chinese: str


@cache
def _rules() -> tuple[_Rule, ...]:
    pairs = [pair for name in ASSETS for pair in tomllib.loads(read_asset(name))["sentences"]]
    ordered = sorted(pairs, key=lambda pair: -_said(pair[0]))
    return tuple(
        _Rule(start=_start(english), pattern=_pattern(english), chinese=chinese) for english, chinese in ordered
    )


def _start(english: str) -> str:
    """Return what stands before anything that varies."""
    verb = _VERB.search(english)
    return english.partition("{")[0][: verb.start() if verb else None]


def _agreeing(literal: str, *, after_field: bool) -> str:
    """Return what matches a literal, with a noun behind a field, and with verbs, of any number."""
    parts = _WORDS.split(literal)
    words = [part for part in parts if part.isalpha()]
    nouns = {word for word in words[:2] if word.endswith("s") and len(word) > _LEAST} if after_field else set()
    return "".join(
        f"(?:{part}|{_VERBS.get(part, part + 's')})"
        if _VERB.fullmatch(part)
        else f"{part[:-1]}s?"
        if part in nouns
        else re.escape(part)
        for part in parts
    )


def _said(english: str) -> int:
    """Count what a sentence says beside its fields."""
    return len(_BRACES.sub("", english))


def _pattern(english: str) -> re.Pattern[str]:
    """Return what matches a sentence.

    A field is short and within one part and one sentence, and only a number where hardly anything else is said;
    ``rest``, or what begins so, is anything that follows.
    """
    seen: set[str] = set()
    short = _NUMBER if _said(english) < _SHORT and not {"`", "("} & set(english) else _PART
    parts = [_agreeing(english.partition("{")[0], after_field=False)]
    for name, literal in _FIELDS.findall(english):
        long = ".{1,400}?" if name.startswith("rest") else short
        parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>{long})")
        parts.append(_agreeing(literal, after_field=True))
        seen.add(name)
    return re.compile("".join(parts), re.DOTALL)
