"""Where the content of blocks lies, as the scheduler sees it: it moves whole blocks and knows nothing of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["NoStore", "Saved", "Store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Blocks that were swapped out: the entries of each table they belong to, and their content.

    ``firsts`` and ``ends``: (groups,) int64. The content holds the blocks group by group.
    """

    firsts: NDArray[np.int64]
    ends: NDArray[np.int64]
    content: Any


class Store(Protocol):
    """What holds the content of blocks."""

    def copy_blocks(self, pairs: NDArray[np.int64]) -> None:
        """Copy blocks (mutates); ``pairs``: (copies, 2), from and to."""

    def save_blocks(self, blocks: NDArray[np.int32]) -> Any:
        """Return a copy of blocks in host memory; None when there is no room for it."""

    def load_blocks(self, content: Any, blocks: NDArray[np.int32]) -> None:
        """Write saved content into blocks (mutates), and let go of the copy."""

    def drop(self, content: Any) -> None:
        """Let go of a copy that nobody needs any more."""


class NoStore:
    """A store without content, for a scheduler that is watched without a model. Nothing can be swapped."""

    def copy_blocks(self, pairs: NDArray[np.int64]) -> None:
        """Copy nothing."""

    def save_blocks(self, blocks: NDArray[np.int32]) -> Any:  # noqa: ARG002
        """Refuse."""
        return None

    def load_blocks(self, content: Any, blocks: NDArray[np.int32]) -> None:
        """Load nothing."""

    def drop(self, content: Any) -> None:
        """Drop nothing."""
