"""The object that `size --json` prints, as far as the report reads it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from kvledger.ledger import Account, Accuracy
from kvledger.report.html.saved import SavedFindings

__all__ = [
    "SavedClaim",
    "SavedEntry",
    "SavedKvMemory",
    "SavedPlan",
    "SavedRequestCost",
    "SavedSize",
    "SavedSizeEngine",
    "SavedSizeSheet",
    "SavedStructure",
    "SavedTerm",
]


class SavedGpu(Struct, frozen=True, kw_only=True):
    """The device that the memory was estimated from."""

    name: str
    memory_bytes: int


class SavedTerm(Struct, frozen=True, kw_only=True):
    """One addend of a memory estimate, with its bounds; what is taken off may be negative."""

    name: str
    value_bytes: int
    low_bytes: int
    high_bytes: int
    accuracy: Accuracy
    why: str


class SavedKvMemory(Struct, frozen=True, kw_only=True):
    """The bytes a rank may spend on KV, and how they are known."""

    per_rank_bytes: list[int]
    low_bytes: int
    high_bytes: int
    accuracy: Accuracy
    source: str
    terms: list[SavedTerm]

    @property
    def smallest_bytes(self) -> int:
        """The bytes of the rank that has least."""
        return min(self.per_rank_bytes)


class SavedModelCost(Struct, frozen=True, kw_only=True):
    """What the model itself stores, once."""

    growth_bytes_per_token: int
    fixed_bytes_per_sequence: int


class SavedUnits(Struct, frozen=True, kw_only=True):
    """A pool of equal units."""

    name: str
    units: int
    unit: str
    null_units: int


class SavedClaim(Struct, frozen=True, kw_only=True):
    """What one request takes for one group of layers; what came later is None in older files."""

    name: str
    kind: str
    pool: str
    layers: int
    unit_tokens: int
    window_tokens: int | None
    content_bytes: int | None = None
    padding_bytes: int | None = None
    request_units: int | None = None
    request_bytes: int | None = None


class SavedLine(Struct, frozen=True, kw_only=True):
    """A line the engine prints at start-up, and what it means."""

    level: str
    text: str
    meaning: str
    accuracy: Accuracy


class SavedStartFailure(Struct, frozen=True, kw_only=True):
    """Why the engine does not start, in its own words."""

    text: str


class SavedPlan(Struct, frozen=True, kw_only=True):
    """What the engine allocates."""

    accuracy: Accuracy
    pools: list[SavedUnits]
    claims: list[SavedClaim]
    lines: list[SavedLine]
    failure: SavedStartFailure | None
    notes: list[str]


class SavedFigures(Struct, frozen=True, kw_only=True):
    """What the engine would print at one end of the memory's interval."""

    printed_tokens: int | None


class SavedRequestCost(Struct, frozen=True, kw_only=True):
    """What requests of one length cost."""

    length_tokens: int
    units: int
    held_bytes: int
    needed_bytes: int
    used_ratio: float
    requests: int


class SavedEntry(Struct, frozen=True, kw_only=True):
    """A part of an account, and the reason for it."""

    name: str
    account: Account
    value_bytes: int
    why: str


class SavedSizeSheet(Struct, frozen=True, kw_only=True):
    """The balance sheet of one kind of rank, or of the whole deployment."""

    name: str
    ranks: int
    capacity_bytes: int
    accounts: dict[str, int]
    entries: list[SavedEntry]
    unallocated_bytes: int

    @property
    def ratio(self) -> dict[Account, float]:
        """The share of each account."""
        return {a: self.accounts.get(f"{a}_bytes", 0) / self.capacity_bytes for a in Account}


class SavedStructure(Struct, frozen=True, kw_only=True):
    """The sheets of a plan at one load."""

    length_tokens: int
    requests: int
    moment: Literal["admission", "decoding"]
    ranks: list[SavedSizeSheet]
    deployment: SavedSizeSheet


class SavedSizeError(Struct, frozen=True, kw_only=True):
    """Why an engine was not planned."""

    message: str


class SavedSizeEngine(Struct, frozen=True, kw_only=True):
    """One engine's answer, or why there is none."""

    engine: str
    version: str
    answer: str = ""
    settings: dict[str, Any] = {}
    memory: SavedKvMemory | None = None
    model_cost: SavedModelCost | None = None
    plan: SavedPlan | None = None
    plan_low: SavedFigures | None = None
    plan_high: SavedFigures | None = None
    requests: list[SavedRequestCost] = []
    largest_max_model_len: int | None = None
    request_limit: int | None = None
    structure: SavedStructure | None = None
    load: SavedStructure | None = None
    error: SavedSizeError | None = None

    @property
    def max_model_len(self) -> int:
        """The longest request; 0 where the engine has no such length."""
        value = self.settings.get("max_model_len")
        return value if isinstance(value, int) and not isinstance(value, bool) else 0


class SavedLogCheck(Struct, frozen=True, kw_only=True):
    """What a start-up log printed, against what follows from its bytes."""

    follows: bool
    explanation: str


class SavedSize(Struct, frozen=True, kw_only=True):
    """What a model's KV cache costs, under one engine or several."""

    schema: str
    schema_version: int
    kvledger_version: str
    model: str
    engines: list[SavedSizeEngine]
    notes: list[str]
    findings: SavedFindings = SavedFindings()
    gpu: SavedGpu | None = None
    log: SavedLogCheck | None = None
