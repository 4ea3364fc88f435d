"""Pictures that need no script, drawn twice: for a wide page, and for a phone, on which small text cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvledger.report.html.markup import Markup, element

__all__ = ["Canvas", "picture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The measures of one drawing: its size, and what is kept free around the plot for marks and names."""

    width: int
    height: int
    left: int = 0
    right: int = 0
    top: int = 0
    bottom: int = 0

    @property
    def floor(self) -> int:
        """Where the plot ends below."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """Where the plot ends to the right."""
        return self.width - self.right

    def x(self, share: float) -> float:
        """Return where a share of the plot's width lies."""
        return self.left + share * (self.end - self.left)

    def y(self, share: float) -> float:
        """Return where a share of the plot's height lies; 0 is below."""
        return self.floor - share * (self.floor - self.top)


def picture(
    draw: Callable[[Canvas], list[Markup]], canvases: tuple[Canvas, Canvas], *, kind: str, caption: Markup
) -> Markup:
    """Return a figure with the drawing on both canvases, the wide one first; the page shows the one that fits."""
    drawn = [
        element(
            "svg",
            *draw(canvas),
            viewBox=f"0 0 {canvas.width} {canvas.height}",
            class_=f"{kind} {fit}",
            aria_hidden="true",
        )
        for canvas, fit in zip(canvases, ("wide", "narrow"), strict=True)
    ]
    return element("figure", element("div", *drawn, class_="scroll"), caption)
