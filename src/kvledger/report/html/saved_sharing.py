"""The object that `demo --case sharing --json` prints."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["SavedSharing", "SavedSharingRow"]


class SavedSharingRow(Struct, frozen=True, kw_only=True):
    """One way to decode several answers, by the number of answers; ``beam_turnover`` is None for samples."""

    workload: str
    beam_turnover: float | None
    block_saving_ratio: dict[str, float]
    running_forked: dict[str, float]
    running_alone: dict[str, float]
    published_low_ratio: float
    published_high_ratio: float


class SavedSharing(Struct, frozen=True, kw_only=True):
    """What sharing blocks among the answers to one prompt saves."""

    schema: str
    schema_version: int
    kvledger_version: str
    model: str
    memory_bytes: int
    block_size: int
    requests: int
    seed: int
    rows: list[SavedSharingRow]
