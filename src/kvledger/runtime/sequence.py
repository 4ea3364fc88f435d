"""One sequence of tokens in an engine: an answer that is being written, with its prompt."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NewType

import numpy as np

from kvledger.runtime.store import Saved

__all__ = ["RequestId", "Sequence"]

RequestId = NewType("RequestId", int)


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """The tokens of one answer, and how far they are computed.

    ``siblings`` answers of the same request wait to be forked from this one when its prompt is computed; their seats
    are kept for them.
    """

    request: RequestId
    sample: int = 0
    tokens: list[int]
    prompt_tokens: int
    most_tokens: int
    """The prompt and all tokens it may generate."""
    computed: int = 0
    slot: int = -1
    siblings: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that the prefix cache had when it was first admitted."""
    was_admitted: bool = False
    chain: list[int] = field(default_factory=list)
    """Chain ids of the full blocks, as far as they were asked for."""
    saved: Saved | None = None
    """Its blocks in host memory, when it was swapped out."""

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    def extend_chain(self, block_tokens: int, key: bytes) -> list[int]:
        """Return the chain ids of all full blocks: 64-bit keyed hashes of everything up to a block's end.

        The key is drawn for each engine, so that nobody can prepare two prompts whose blocks are taken for each other.
        """
        first = len(self.chain)
        end = len(self.tokens) // block_tokens
        words = np.array(self.tokens[first * block_tokens : end * block_tokens], "<u4").tobytes()
        for at in range(0, len(words), 4 * block_tokens):
            before = self.chain[-1] if self.chain else 0
            digest = hashlib.blake2b(before.to_bytes(8, "little", signed=True), digest_size=8, key=key)
            digest.update(words[at : at + 4 * block_tokens])
            self.chain.append(int.from_bytes(digest.digest(), "little", signed=True))
        return self.chain
