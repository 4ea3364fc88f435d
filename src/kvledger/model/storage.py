"""Storage: how a deployment stores a cache, and where derived facts came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvledger.model.formats import Dtype, KvFormat

__all__ = ["Origin", "Storage", "Windows"]


class Windows(StrEnum):
    """What is counted of a layer with a sliding window or chunk."""

    CAPPED = "capped"
    """At most the window: tokens outside it are dropped."""
    FULL = "full"
    """Every token: the engine keeps what the layer no longer reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a derived value came from."""

    name: str
    """What was derived, such as ``kv_heads``."""
    value: str
    """Its value, as text."""
    source: str
    """The config field, class default or catalogue entry, such as ``text_config.num_key_value_heads``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a deployment stores the cache: what the model alone does not decide."""

    kv: KvFormat
    """Keys, values and latent vectors."""
    values: KvFormat | None = None
    """Values, where they are not stored as keys are (llama.cpp's ``--cache-type-v``)."""
    index: KvFormat | None = None
    """Keys of sparse-attention indexers, instead of the model's own (:class:`~kvledger.model.layers.Indexer`)."""
    conv: Dtype | None = None
    """Element type of convolution states, instead of the model's own."""
    state: Dtype | None = None
    """Element type of recurrent states, instead of the model's own."""
    tp: int = 1
    """Tensor-parallel ranks; bytes are those of one rank."""
    windows: Windows = Windows.CAPPED

    @property
    def value_format(self) -> KvFormat:
        """The format of values: that of keys unless another was chosen."""
        return self.values or self.kv
