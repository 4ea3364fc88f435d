"""What sections have in common."""

from __future__ import annotations

from kvledger.report.html.markup import Markup, element

__all__ = ["section", "subsection"]


def section(identifier: str, title: Markup, note: Markup | None, *content: Markup, run: str | None = None) -> Markup:
    """Return a section with its heading and a line on what its numbers are; ``run`` names the one of two it is of."""
    return element(
        "section",
        element("h2", title, id=f"{identifier}-title"),
        element("p", element("bdi", run), class_="of-run") if run is not None else None,
        element("p", note, class_="lead") if note else None,
        *content,
        id=identifier,
        aria_labelledby=f"{identifier}-title",
    )


def subsection(identifier: str, title: Markup, note: Markup | None, *content: Markup) -> Markup:
    """Return a part of a section; its heading names the table of that identifier."""
    return element(
        "div",
        element("h3", title, id=f"{identifier}-title"),
        element("p", note, class_="lead") if note else None,
        *content,
        class_="part",
    )
