"""The object that `prove --json` prints, as far as the report reads it."""

from __future__ import annotations

from msgspec import Struct

from kvledger.ledger import Accuracy
from kvledger.report.html.saved import Ratios

__all__ = ["SavedAgreement", "SavedProve", "SavedSide"]


class SavedFailure(Struct, frozen=True, kw_only=True):
    """Why one way did not run."""

    code: str
    message: str


class SavedAgreement(Struct, frozen=True, kw_only=True):
    """How many answers are those of the reference."""

    same: int
    tie: int
    different: int
    missing: int


class SavedSide(Struct, frozen=True, kw_only=True):
    """One way to hold the cache: the ledger of its tensors, its speed, its answers."""

    way: str
    meaning: str
    failure: SavedFailure | None
    notes: list[str]
    capacity_bytes: int
    mean_ratio: Ratios | None
    saturated_ratio: Ratios | None
    mean_running: float
    saturated_running: float
    peak_running: int
    seconds: float
    tokens_per_second: float
    prefill_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    preemptions: int
    agreement: SavedAgreement | None

    @property
    def ratio(self) -> Ratios | None:
        """Shares while requests waited; all the time where none did; None where its tensors cannot be seen."""
        return self.saturated_ratio or self.mean_ratio


class SavedProve(Struct, frozen=True, kw_only=True):
    """The same prompts and the same model in the same memory, held in different ways."""

    schema: str
    schema_version: int
    kvledger_version: str
    answer: str
    model: str
    dtype: str
    threads: int
    versions: dict[str, str | None]
    trace: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    memory_bytes: int
    token_bytes: int
    max_model_len: int
    block_size: int
    accuracy: dict[str, Accuracy]
    notes: list[str]
    sides: list[SavedSide]
