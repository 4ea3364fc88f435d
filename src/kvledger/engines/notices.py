"""Warnings and errors of a log, as records with the numbers they carry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvledger.engines.quantity import Quantity

__all__ = ["DeviceMemory", "Notice", "NoticeKind"]


class NoticeKind(StrEnum):
    """Lines that change how numbers are to be read, and errors that carry numbers."""

    TOO_LONG = "too-long"
    """Error: one request of the longest length does not fit; carries asked, needed, available, longest."""
    NO_MEMORY = "no-memory"
    """Error: nothing is left for the pool."""
    OUT_OF_MEMORY = "out-of-memory"
    """Error: the device refused an allocation outside the pool; carries needed and available where printed."""
    NEVER_FITS = "never-fits"
    """A prompt was refused because all blocks together cannot hold it; carries asked, as printed."""
    POOL_EXHAUSTED = "pool-exhausted"
    """Running requests were ended because the pool had no room left for their next token; ``count`` of them."""
    CACHE_REFUSED = "cache-refused"
    """Error: the device refused the cache of a context of ``asked`` tokens; carries needed."""
    PREFIX_FORGOTTEN = "prefix-forgotten"
    """``count`` cached tokens of a prompt were computed again, because a window (of ``asked`` tokens) or a state had
    moved on."""
    TOO_FEW_STATES = "too-few-states"
    """Error: more sequences allowed (asked) than state slots exist (available)."""
    HYBRID_DISABLED = "hybrid-disabled"
    """Layers with a window keep every token."""
    PAGES_NOT_UNIFIED = "pages-not-unified"
    """Layers with a window keep every token, because page sizes differ."""
    PADDING_LAYERS = "padding-layers"
    """``count`` layers of each block are empty; ``ratio`` is of the layers of their kind."""
    BLOCK_WIDENED = "block-widened"
    """The block holds ``count`` tokens so that a state fits into a page."""
    STATE_PADDED = "state-padded"
    """The page of a state is ``ratio`` larger than the state."""
    BLOCKS_FORCED = "blocks-forced"
    """``needed`` blocks were profiled and ``count`` forced."""
    SHARDS_MULTIPLIED = "shards-multiplied"
    """The token figure is already multiplied by ``count`` context-parallel ranks."""
    LENGTH_FITTED = "length-fitted"
    """The longest length was cut from ``asked`` to ``count`` to fit."""
    LAYERS_SHARED = "layers-shared"
    """``count`` layers reuse the cache of another layer and hold nothing."""
    WINDOW_CUT = "window-cut"
    """A window of ``asked`` tokens was cut to ``count``, what the blocks hold."""
    SECOND_POOL = "second-pool"
    """A pool of ``count`` tokens was allocated after a larger one of ``asked``: of an encoder-decoder model."""
    OTHER = "other"
    """An engine-specific remark, in ``text``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What an out-of-memory error says about the device; bytes."""

    total: Quantity | None = None
    used_here: Quantity | None = None
    """Of this process, allocator, context and libraries."""
    allocated: Quantity | None = None
    """Of tensors."""
    cached: Quantity | None = None
    """Kept by the allocator, and in no tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One warning or error of a log, with the numbers it carries in the unit that its kind names."""

    kind: NoticeKind
    line: int
    text: str
    """The matched part of the line, at most 400 characters."""
    origin: str = ""
    is_error: bool = False
    count: int | None = None
    ratio: Quantity | None = None
    asked: int | None = None
    needed: Quantity | None = None
    available: Quantity | None = None
    longest: int | None = None
    device: DeviceMemory | None = None
