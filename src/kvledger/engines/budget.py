"""Memory that is left for KV when only the device and the weights are known: addends with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.engines.plan import KvMemory, MemoryTerm
from kvledger.ledger import Accuracy

__all__ = ["Guess", "given_term", "leave_rest", "term"]

Guess = tuple[int, int, int]
"""Low, middle and high estimate in bytes."""


def given_term(name: str, value_bytes: int, why: str = "given") -> MemoryTerm:
    """Return an addend that is known."""
    return MemoryTerm(
        name=name,
        value_bytes=value_bytes,
        low_bytes=value_bytes,
        high_bytes=value_bytes,
        accuracy=Accuracy.DERIVED,
        why=why,
    )


def term(name: str, given: int | None, guess: Guess, why: str) -> MemoryTerm:
    """Return an addend: as given, else the guess with its interval."""
    if given is not None:
        return given_term(name, given)
    low, middle, high = guess
    return MemoryTerm(
        name=name, value_bytes=middle, low_bytes=low, high_bytes=high, accuracy=Accuracy.MODELLED, why=why
    )


def leave_rest(total_bytes: int, terms: Sequence[MemoryTerm], *, ratio: float = 1.0, source: str) -> KvMemory:
    """Return ``ratio`` of what the addends leave of the total, never below 0."""

    def rest(addends: Sequence[int]) -> int:
        return max(0, int((total_bytes - sum(addends)) * ratio))

    return KvMemory(
        per_rank_bytes=(rest([t.value_bytes for t in terms]),),
        accuracy=Accuracy.MODELLED,
        source=source,
        low_bytes=rest([t.high_bytes for t in terms]),
        high_bytes=rest([t.low_bytes for t in terms]),
        terms=tuple(terms),
    )
