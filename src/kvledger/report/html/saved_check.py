"""The object that `check --json` prints."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["SavedCheck", "SavedLimit"]


class SavedLimit(Struct, frozen=True, kw_only=True):
    """One limit of one engine: what was found, with bounds, or why it is not known."""

    source: str
    engine: int | None
    pool: str | None
    limit: Literal["max-internal", "min-utilisation", "max-held", "max-unattributed", "max-waiting", "max-preemptions"]
    bound: float
    low: float | None
    high: float | None
    outcome: Literal["kept", "broken", "open", "unknown"]
    reason: str | None

    @property
    def is_count(self) -> bool:
        """Whether it is of requests or events, not a share."""
        return self.limit in ("max-waiting", "max-preemptions")


class SavedCheck(Struct, frozen=True, kw_only=True):
    """A server against its limits."""

    schema: str
    schema_version: int
    limits: list[SavedLimit]
    notes: list[str]
