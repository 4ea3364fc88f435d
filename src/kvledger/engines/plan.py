"""What an engine will allocate for a model: the records every engine's planner fills in.

A planner is a module with two functions (see :class:`Planner`). It turns a model, a :class:`Deployment` and a
:class:`KvMemory` into a :class:`Plan`: pools of equal units, what one request claims from each of them, and what one
rank stores in a unit. Those three are enough to count requests, to find the longest request and to draw up the
balance sheet of :mod:`kvledger.engines.structure`, whatever the engine::

    engine            pool                      unit                    claims of a request
    vLLM              one pool                  block of a group        one claim per group of layers
    SGLang            full, swa, mamba          page or state slot      one claim per pool
    llama.cpp         cells (one per stream)    cell                    one claim with ``reserve_tokens``
    TensorRT-LLM      one pool per window       block                   one claim per window
    Transformers      one pool                  token                   one claim
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from kvledger.engines.deployment import LONGEST_TOKENS, Deployment
from kvledger.errors import CapacityError, UsageError
from kvledger.ledger import Accuracy

if TYPE_CHECKING:
    from kvledger.model import ModelSpec, Storage

__all__ = [
    "Claim",
    "ClaimKind",
    "Deployment",
    "GpuBudget",
    "KvMemory",
    "MemoryTerm",
    "Plan",
    "Planner",
    "Pool",
    "PrintedLine",
    "RankPlan",
    "StartFailure",
    "UnitContent",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One addend of a memory estimate; ``low_bytes`` and ``high_bytes`` enclose it."""

    name: str
    value_bytes: int
    low_bytes: int
    high_bytes: int
    accuracy: Accuracy
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMemory:
    """Bytes one rank may spend on KV, and how they are known.

    ``per_rank_bytes`` has one entry for every rank whose own figure is known, else a single entry for all of them.
    ``low_bytes`` and ``high_bytes`` enclose the smallest rank (a printed ``16.50 GiB`` is an interval of 0.01 GiB).
    """

    per_rank_bytes: tuple[int, ...]
    accuracy: Accuracy
    source: str
    low_bytes: int
    high_bytes: int
    terms: tuple[MemoryTerm, ...] = ()

    @classmethod
    def given(cls, *per_rank_bytes: int, source: str = "given") -> KvMemory:
        """Take bytes that are known exactly: one figure for all ranks, or one for each."""
        if not per_rank_bytes or min(per_rank_bytes) < 0:
            raise UsageError("KV memory must be one or more sizes of at least 0 bytes")
        low = min(per_rank_bytes)
        return cls(
            per_rank_bytes=per_rank_bytes, accuracy=Accuracy.DERIVED, source=source, low_bytes=low, high_bytes=low
        )

    @property
    def smallest_bytes(self) -> int:
        """Bytes of the rank that has least."""
        return min(self.per_rank_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBudget:
    """What is known about one rank's device when the KV bytes are not; ``None`` is estimated and says so."""

    total_bytes: int
    weights_bytes: int
    utilisation_ratio: float | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    cuda_graph_bytes: int | None = None


class ClaimKind(StrEnum):
    """What the units of a claim hold."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"
    CROSS = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one request takes from one pool.

    Units for a request of ``n`` tokens: ``ceil(charged / unit_tokens) + extra_units + fixed_units``, where ``charged``
    is ``reserve_tokens`` when set, else ``min(n + offset_tokens, reach_tokens)``. Of those, ``min(n, window_tokens)``
    are needed.
    """

    name: str
    pool: str
    kind: ClaimKind
    layers: int
    unit_tokens: int
    """Tokens in a unit, counted over all ranks that split one sequence; 0 for state, which does not grow."""
    window_tokens: int | None = None
    """Tokens that can still be read; ``None``: all."""
    reach_tokens: int | None = None
    """Tokens that are charged at most (window plus tokens in flight); ``None``: all."""
    reserve_tokens: int | None = None
    """Tokens that are charged whatever the length (a fixed strip, an encoder's output)."""
    offset_tokens: int = 0
    """Tokens charged on top of the length; -1 where the last token is never stored."""
    extra_units: int = 0
    """Units on top of the tokens, for a window that starts inside a unit."""
    state_units: int = 0
    """Units that hold the current state."""
    checkpoint_units: int = 0
    """Units that hold a second state, kept so that a prefix can be reused."""
    speculative_units: int = 0
    """Units for the states of tokens that are only proposed."""

    @property
    def fixed_units(self) -> int:
        """Units a request takes at any length."""
        return self.state_units + self.checkpoint_units + self.speculative_units

    def count_charged_tokens(self, length_tokens: int) -> int:
        """Return the tokens the engine takes units for."""
        if not self.unit_tokens:
            return 0
        if self.reserve_tokens is not None:
            return self.reserve_tokens
        charged = max(min(1, length_tokens), length_tokens + self.offset_tokens)
        return charged if self.reach_tokens is None else min(charged, self.reach_tokens)

    def count_needed_tokens(self, length_tokens: int) -> int:
        """Return the tokens whose keys and values can still be read."""
        charged = self.count_charged_tokens(length_tokens)
        needed = min(length_tokens, charged) if self.kind is not ClaimKind.CROSS else charged
        return needed if self.window_tokens is None else min(needed, self.window_tokens)

    def find_first_readable(self, length_tokens: int) -> int:
        """Return the position of the first token that the last one of ``length_tokens`` can still read."""
        if self.window_tokens is None or self.reserve_tokens is not None:
            return 0
        if self.kind is ClaimKind.CHUNK:
            return max(0, length_tokens - 1) // self.window_tokens * self.window_tokens
        return max(0, length_tokens - self.window_tokens)

    def count_held_units(self, length_tokens: int) -> int:
        """Return the units a request holds while it decodes its last token: those the window still reaches.

        Without a window this is :meth:`count_units`; with one it is less, because fewer tokens are in flight, and never
        more: a window without ``extra_units`` is a ring, which does not begin inside a unit.
        """
        if not self.unit_tokens or self.window_tokens is None or self.reserve_tokens is not None:
            return self.count_units(length_tokens)
        first = self.find_first_readable(length_tokens)
        held = max(0, length_tokens - 1) // self.unit_tokens - first // self.unit_tokens + 1
        return min(held, self.count_units(length_tokens))

    def count_units(self, length_tokens: int) -> int:
        """Return the units one request of ``length_tokens`` takes."""
        if not self.unit_tokens:
            return self.fixed_units
        return -(-self.count_charged_tokens(length_tokens) // self.unit_tokens) + self.extra_units + self.fixed_units


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Units of one size that requests compete for; the same number on every rank."""

    name: str
    units: int
    unit_name: str
    """What the engine calls a unit: block, page, cell, slot."""
    null_units: int = 0
    """Units that no request can get (vLLM's null block, SGLang's dummy page)."""

    @property
    def usable_units(self) -> int:
        """Units that requests can get."""
        return max(0, self.units - self.null_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitContent:
    """What a unit of one claim stores on one rank.

    Invariant: ``payload_bytes + page_padding_bytes + layer_padding_bytes`` is the rank's unit size in that pool.
    """

    claim: str
    payload_bytes: int
    """Bytes of a full unit that hold keys, values or state."""
    page_padding_bytes: int = 0
    """Bytes added so that all layers have pages of one size."""
    layer_padding_bytes: int = 0
    """Bytes of layers that do not exist: the group is narrower than the pool's unit."""
    distinct_bytes: int | None = None
    """Of the payloads of the unit on all ranks of one replica's stage, the bytes that are no copies; ``None``: all.

    8 tensor-parallel ranks that each keep the same latent have 8 payloads and 1 payload of distinct bytes.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What one kind of rank allocates; ``count`` ranks are equal (tensor parallel, data parallel)."""

    name: str
    count: int
    kv_bytes: int
    """Bytes the rank was given."""
    unit_bytes: Mapping[str, int]
    """Bytes of one unit, by pool."""
    contents: tuple[UnitContent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedLine:
    """A line the engine prints at start-up, and what it really means."""

    text: str
    meaning: str
    accuracy: Accuracy
    level: str = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """Why the engine will not start, in its own words and with its own numbers."""

    text: str
    needed_bytes: int
    available_bytes: int
    largest_max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one engine allocates: pools, claims, ranks, and what it prints about them.

    ``deployment`` is resolved: no ``None`` is left where the engine has a default. ``printed_tokens`` and
    ``printed_concurrency`` are the engine's own figures, ``None`` when it prints none.
    """

    deployment: Deployment
    storage: Storage
    """How this engine, in this version and with these settings, stores keys, values and states."""
    pools: tuple[Pool, ...]
    claims: tuple[Claim, ...]
    ranks: tuple[RankPlan, ...]
    lines: tuple[PrintedLine, ...]
    accuracy: Accuracy
    printed_tokens: int | None = None
    printed_concurrency: float | None = None
    failure: StartFailure | None = None
    notes: tuple[str, ...] = ()
    length_limit_tokens: int | None = None
    """The longest request that is accepted whatever memory is free (a slot's fixed strip); ``None``: no limit."""
    request_limit: int | None = None
    """Requests that can run at once whatever memory is free (slots, batch rows); ``None``: no limit."""

    def pool(self, name: str) -> Pool:
        """Return one pool by name."""
        return next(p for p in self.pools if p.name == name)

    def count_units(self, length_tokens: int) -> dict[str, int]:
        """Return the units one request of ``length_tokens`` takes from each pool."""
        units = {pool.name: 0 for pool in self.pools}
        for claim in self.claims:
            units[claim.pool] += claim.count_units(length_tokens)
        return units

    def count_requests(self, length_tokens: int) -> int:
        """Return how many requests of ``length_tokens`` the memory holds at once (without shared prefixes)."""
        if self.length_limit_tokens is not None and length_tokens > self.length_limit_tokens:
            return 0
        need = self.count_units(length_tokens)
        counts = [pool.usable_units // need[pool.name] for pool in self.pools if need[pool.name]]
        if self.request_limit is not None:
            counts.append(self.request_limit)
        if not counts:
            raise CapacityError("a request takes nothing from any pool: memory does not limit this model")
        return min(counts)

    def find_longest_tokens(self, *, requests: int = 1) -> int:
        """Return the longest length of which ``requests`` fit at once; 0 when not even one token does.

        A length that no claim limits (every layer has a window) is reported as ``2**40``.
        """
        if not self._fits(1, requests):
            return 0
        low, high = 1, LONGEST_TOKENS
        if self._fits(high, requests):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle, requests) else (low, middle)
        return low

    def _fits(self, length_tokens: int, requests: int) -> bool:
        if self.length_limit_tokens is not None and length_tokens > self.length_limit_tokens:
            return False
        if self.request_limit is not None and requests > self.request_limit:
            return False
        need = self.count_units(length_tokens)
        return all(need[pool.name] * requests <= pool.usable_units for pool in self.pools)

    def count_request_bytes(self, length_tokens: int) -> int:
        """Return the bytes one request of ``length_tokens`` takes on all ranks of one replica."""
        need = self.count_units(length_tokens)
        replica = sum(rank.count * sum(need[p] * size for p, size in rank.unit_bytes.items()) for rank in self.ranks)
        return replica // self.deployment.dp


class Planner(Protocol):
    """The two functions a planner module offers; both are pure."""

    def make_plan(self, model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
        """Return what the engine allocates.

        Raises:
            UsageError: A setting does not exist in this engine or version.
            ModelError: The engine's rule for this model is not known.
        """
        ...

    def model_memory(self, model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:
        """Estimate the KV bytes of one rank from its device, with every term and an interval."""
        ...
