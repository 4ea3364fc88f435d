"""HTML as text that cannot be injected into: every string is escaped unless it is `Markup` already."""

from __future__ import annotations

import html
import json
from typing import Any

__all__ = ["Markup", "data_script", "element", "join"]

_VOID = {"meta", "link", "br", "col", "rect", "path", "line", "circle"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | Markup | None


def element(name: str, /, *content: Content, **attributes: str | int | float | bool | None) -> Markup:
    """Return one element. Attributes that are None or False are left out; ``class_`` is ``class``, ``_`` is ``-``.

    >>> element("a", "1 < 2", href="#x", class_="y")
    '<a href="#x" class="y">1 &lt; 2</a>'
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(f" {attribute}" if value is True else f' {attribute}="{html.escape(str(value))}"')
    parts.append(">")
    if name in _VOID:
        return Markup("".join(parts) if name in ("meta", "link", "br", "col") else "".join(parts) + f"</{name}>")
    return Markup("".join(parts) + join(*content) + f"</{name}>")


def join(*content: Content) -> Markup:
    """Return content in a row, escaped where it is not HTML already."""
    return Markup(
        "".join(c if isinstance(c, Markup) else html.escape(c, quote=False) for c in content if c is not None)
    )


def data_script(identifier: str, value: Any) -> Markup:
    """Return a script element that holds JSON and cannot be closed or turned into a comment from inside."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{html.escape(identifier)}">{text}</script>')
