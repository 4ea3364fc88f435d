"""The pages of findings, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvledger.findings.rule import Page

__all__ = ["list_text", "page_json", "page_text"]


def page_text(page: Page) -> RenderableType:
    """Return one page for the terminal."""
    parts: list[RenderableType] = [Text(f"{page.code}  {page.title}", style="bold")]
    for name, text in page.sections.items():
        parts.append(Text(f"\n{name}", style="bold"))
        parts += [Padding(Text(paragraph), (0, 0, 0, 2)) for paragraph in _paragraphs(text)]
    return Group(*parts)


def list_text(pages: Sequence[Page]) -> RenderableType:
    """Return the codes and what they mean."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for page in pages:
        table.add_row(page.code, Text(page.title))
    return table


def page_json(pages: Sequence[Page]) -> dict[str, Any]:
    """Return the object of ``explain --json``."""
    return {
        "schema": "kvledger/explain",
        "schema_version": 1,
        "findings": [
            {
                "code": page.code,
                "title": page.title,
                "sections": {name: " ".join(text.split()) for name, text in page.sections.items()},
            }
            for page in pages
        ],
    }


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]
