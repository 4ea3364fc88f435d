"""What the page says, in English and in Chinese, and how both stand on it: one of them is shown."""

from __future__ import annotations

import html
import re

from kvledger.ledger import Account
from kvledger.report.html.chinese import translate
from kvledger.report.html.markup import Markup
from kvledger.report.html.phrases import phrases

__all__ = [
    "account_name",
    "both",
    "both_in_svg",
    "code",
    "engine_name",
    "labels",
    "prose",
    "script_phrases",
    "told",
    "told_as_sentence",
]

_LONGEST_NAME = 64
_ENGINES = {
    "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "ollama": "Ollama", "tensorrt-llm": "TensorRT-LLM",
    "tgi": "TGI", "lmdeploy": "LMDeploy", "transformers": "Transformers", "mlx": "MLX",
}  # fmt: skip
_TAG = re.compile(r"(<[^>]*>)")
_CODE = re.compile(r"`([^`]+)`")


def both(key: str, **values: str | Markup) -> Markup:
    """Return a phrase in both languages; ``values`` are put in, escaped unless they are HTML."""
    english, chinese = phrases()[key]
    filled = {k: v if isinstance(v, Markup) else html.escape(v, quote=False) for k, v in values.items()}
    return _pair(_fill(english, filled), _fill(chinese, filled))


def both_in_svg(key: str, **values: str | Markup) -> Markup:
    """Return a phrase in both languages as parts of an SVG text."""
    return Markup(both(key, **values).replace("<span", "<tspan").replace("</span", "</tspan"))


def told(text: str) -> Markup:
    """Return a sentence that a result brings along, with its translation when there is one."""
    chinese = translate(text)
    return prose(text) if chinese is None else _pair(prose(text), prose(chinese))


def told_as_sentence(text: str) -> Markup:
    """Return the same, beginning with a capital."""
    chinese = translate(text)
    english = prose(text[:1].upper() + text[1:])
    return english if chinese is None else _pair(english, prose(chinese))


def prose(text: str) -> Markup:
    """Return a sentence with what stands in backticks as code; a number and its percent sign stay together."""
    whole = text.replace(" %", "\u202f%")
    return Markup(_CODE.sub(r"<code>\1</code>", html.escape(whole, quote=False)))


def code(text: str) -> Markup:
    """Return a name as code, isolated from the direction of the text around it, and cut when it is no name any more."""
    short = text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
    return Markup(f"<code><bdi>{html.escape(short, quote=False)}</bdi></code>")


def account_name(account: Account) -> Markup:
    """Return the name of an account in both languages."""
    return both(f"account.{account}")


def engine_name(name: str) -> str:
    """Return an engine's name as its makers write it."""
    return _ENGINES.get(name, name)


def labels(title: Markup) -> tuple[str, str]:
    """Return a title as plain text in English and in Chinese.

    >>> labels(both("cost.held"))
    ('held', '占用')
    """
    return _in_language(title, "en"), _in_language(title, "zh")


def _in_language(title: Markup, language: str) -> str:
    """Return the text of a title outside the spans of the other language, which may hold spans themselves."""
    text, kept = [], [True]
    for tag in _TAG.split(title):
        if tag.startswith("<span"):
            other = 'class="zh"' if language == "en" else 'class="en"'
            kept.append(kept[-1] and other not in tag)
        elif tag == "</span>":
            kept.pop()
        elif kept[-1]:
            text.append(" " if tag.startswith("<small") else "" if tag.startswith("<") else tag)
    return html.unescape("".join(text)).strip()


def script_phrases() -> dict[str, tuple[str, str]]:
    """Return the phrases that the script needs."""
    return {key.removeprefix("script."): pair for key, pair in phrases().items() if key.startswith("script.")} | {
        f"account.{account}": phrases()[f"account.{account}"] for account in Account
    }


def _fill(phrase: str, values: dict[str, str]) -> Markup:
    return Markup(_CODE.sub(r"<code>\1</code>", html.escape(phrase, quote=False)).format(**values))


def _pair(english: Markup, chinese: Markup) -> Markup:
    if english == chinese:
        return english
    return Markup(f'<span class="en" lang="en">{english}</span><span class="zh" lang="zh-Hans">{chinese}</span>')
