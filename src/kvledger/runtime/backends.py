"""The ways to compute attention over block tables, and which serves an engine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from kvledger.runtime.compiled import Compiled
from kvledger.runtime.flashinfer import FlashInfer
from kvledger.runtime.gather import Gather
from kvledger.runtime.layout import Layer, Layout
from kvledger.runtime.options import Attention
from kvledger.runtime.pages import Pages
from kvledger.runtime.tables import BlockTables

if TYPE_CHECKING:
    import torch

    from kvledger.runtime.attention import Manner
    from kvledger.runtime.batch import Batch
    from kvledger.runtime.team import Team

__all__ = ["Backend", "choose_backend"]


class Backend(Protocol):
    """Computes attention for the packed tokens of a step."""

    joins: bool
    """Whether it can be given queries, keys and values in one tensor."""

    @property
    def team(self) -> Team | None:
        """The threads it shares its work among, where it computes by compiled kernels."""

    def attend(
        self, batch: Batch, layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Store keys and values in their blocks (mutates), and return the answer: (1, rows, heads, head_size)."""

    def attend_joined(
        self, batch: Batch, layer: Layer, joined: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], manner: Manner
    ) -> torch.Tensor:
        """Do the same of queries, keys and values in one tensor, not turned yet, where ``joins`` says so."""

    def close(self) -> None:
        """Let go of threads and memory (mutates)."""


def choose_backend(attention: Attention, layout: Layout, pages: Pages, tables: BlockTables) -> Backend:
    """Return the way of computing attention that was asked for, or the best there is.

    Raises:
        UsageError: It cannot serve this device or these numbers.
        MissingExtra: It needs a package that is not installed.
    """
    import torch

    kind, dtype = pages.kv.device.type, layout.shape.dtype
    if attention is Attention.AUTO:
        attention = _find_best(kind, dtype)
    match attention:
        case Attention.COMPILED:
            return Compiled(layout, pages, tables, threads=torch.get_num_threads())
        case Attention.FLASHINFER:
            return FlashInfer(layout, pages, tables)
        case _:
            return Gather(layout, pages, tables)


def _find_best(device: str, dtype: str) -> Attention:
    if device == "cpu" and dtype != "float16":
        return Attention.COMPILED
    if device == "cuda" and dtype != "float32" and find_spec("flashinfer") is not None:
        return Attention.FLASHINFER
    return Attention.GATHER
