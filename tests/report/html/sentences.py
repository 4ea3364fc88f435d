"""Sentences that results bring along, and those of them that nobody has put into Chinese."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvledger.report.html.chinese import translate

SAID_IN = {"meaning", "why", "sentence", "advice", "proof", "worse", "gain", "cause"}
"""Arguments that hold a sentence for the reader."""
_NAME = re.compile(r"`[^`]*`|\S*[-_=\d]\S*")
_WORD = re.compile(r"[A-Za-z]{2,}")
_WORDS = re.compile(r"(?!token\b)[a-z]{2,} (?!id\b)[a-z]{2,}")
_SAMPLE = "7"


def is_name(text: str) -> bool:
    """Tell whether a text is only options, numbers and names, which are the same in every language."""
    return not _WORD.search(_NAME.sub(" ", text))


def untold(texts: Iterable[str]) -> set[str]:
    """Return the texts that have no Chinese, or one in which English words are left."""
    return {text for text in texts if text and not is_name(text) and not _is_told(translate(text))}


def _is_told(chinese: str | None) -> bool:
    return chinese is not None and not _WORDS.search(_NAME.sub(" ", chinese))


def said_in(folder: Path) -> Iterator[str]:
    """Yield every sentence that a module passes on under one of these names, with a number for each field."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in SAID_IN:
                yield from filter(None, map(_written, _leaves(node.value)))


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        yield from (*_leaves(node.body), *_leaves(node.orelse))
    else:
        yield node


def _written(node: ast.expr) -> str | None:
    """Return a constant, or a formatted text whose fields are numbers; not what is put together from pieces."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(str(part.value) if isinstance(part, ast.Constant) else _sample(part) for part in node.values)


def _sample(part: ast.expr) -> str:
    """Return a number for a field; a number of things where it is `counted`, and the plural of a verb."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        words = [one.value for one in value.args[1:] if isinstance(one, ast.Constant)]
        if value.func.id == "counted" and words:
            return f"{_SAMPLE} {words[1] if len(words) > 1 else f'{words[0]}s'}"
        if value.func.id == "agree" and len(words) == 2:
            return str(words[1])
    return _SAMPLE
