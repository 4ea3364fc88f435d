"""Groups of layers over one pool: which tokens each keeps, and what a block of it holds.

A model whose layers do not all keep every token has several block tables, one a group. All draw blocks from one pool,
so a block of any group costs ``block_bytes``, however little its own layers store in it (vLLM's hybrid manager).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from kvledger.errors import UsageError
from kvledger.units import counted

__all__ = ["BlockGroups", "GroupKind", "LayerGroup"]

_MOST_GROUPS = 256
_MOST_TOKENS = 2**40


class GroupKind(StrEnum):
    """Which tokens the layers of a group keep."""

    FULL = "full"
    """Every token."""
    WINDOW = "window"
    """Those a sliding window still reaches; blocks behind it are given back."""
    CHUNK = "chunk"
    """Those of the chunk that the next token is in."""
    STATE = "state"
    """None, but one state of constant size (a second one while it moves to the next block)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share one block table."""

    kind: GroupKind
    block_tokens: int
    """Tokens of one block; of a state, the tokens after which it moves to a new block."""
    payload_bytes: int
    """Bytes of a full block that hold data: keys and values of its tokens, or one state."""
    span_tokens: int = 0
    """The window or the chunk."""

    def __post_init__(self) -> None:
        """Refuse what no block table can have."""
        spans = self.kind in (GroupKind.WINDOW, GroupKind.CHUNK)
        low = 2 if self.kind is GroupKind.WINDOW else 1
        if spans and not low <= self.span_tokens <= _MOST_TOKENS:
            raise UsageError(f"a {self.kind} of {counted(self.span_tokens, 'token')} is not from {low} to 2**40")
        if not 1 <= self.block_tokens <= _MOST_TOKENS:
            raise UsageError(f"a block of {counted(self.block_tokens, 'token')} is not from 1 to 2**40")
        if self.payload_bytes < 0:
            raise UsageError(f"a block of {self.payload_bytes} bytes cannot be")
        if self.kind is not GroupKind.STATE and self.payload_bytes % self.block_tokens:
            raise UsageError(
                f"{self.payload_bytes} bytes are no whole number for each of {counted(self.block_tokens, 'token')}"
            )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers of the group; 0 for states."""
        return 0 if self.kind is GroupKind.STATE else self.payload_bytes // self.block_tokens

    def most_blocks(self, tokens: int, *, in_flight_tokens: int, max_model_len: int) -> int:
        """Return the blocks that admission counts for a request of ``tokens``.

        vLLM 0.26 to 0.32, ``max_admission_blocks_per_request`` (``v1/kv_cache_interface.py``): a window counts
        ``ceil(min(w - 1 + T, L) / b) + 1`` blocks at most, a chunk ``ceil(min(c + T, L) / b)``, where T is what may be
        computed in one step and L the longest sequence.
        """
        blocks = -(-tokens // self.block_tokens)
        match self.kind:
            case GroupKind.WINDOW:
                reach = min(self.span_tokens - 1 + in_flight_tokens, max_model_len)
                return min(blocks, -(-reach // self.block_tokens) + 1)
            case GroupKind.CHUNK:
                return min(blocks, -(-min(self.span_tokens + in_flight_tokens, max_model_len) // self.block_tokens))
            case GroupKind.STATE:
                return min(blocks, 2)
            case _:
                return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroups:
    """The groups of a model, in the engine's order, and the bytes of a block of any of them."""

    groups: tuple[LayerGroup, ...]
    block_bytes: int

    def __post_init__(self) -> None:
        """Refuse groups that no pool serves."""
        if not 1 <= len(self.groups) <= _MOST_GROUPS:
            raise UsageError(f"{counted(len(self.groups), 'group')} of layers are not from 1 to {_MOST_GROUPS}")
        widest = max(group.payload_bytes for group in self.groups)
        if self.block_bytes < max(1, widest):
            raise UsageError(f"a block of {self.block_bytes} bytes does not hold the {widest} bytes of a group")

    def uncached(self) -> BlockGroups:
        """Return the groups as they are kept without a prefix cache: a state then stays in its one block."""
        return replace(
            self,
            groups=tuple(
                replace(group, block_tokens=_MOST_TOKENS) if group.kind is GroupKind.STATE else group
                for group in self.groups
            ),
        )

    def check_prefix_caching(self) -> None:
        """Refuse groups whose prefix cache is not known here.

        Raises:
            UsageError: A chunk or a state stands beside blocks of another size.
        """
        special = [group for group in self.groups if group.kind in (GroupKind.CHUNK, GroupKind.STATE)]
        sizes = sorted({group.block_tokens for group in self.groups})
        if special and len(sizes) > 1:
            raise UsageError(
                f"a prefix cache over a {special[0].kind} needs blocks of one size in all groups, but they have "
                f"{', '.join(map(str, sizes))} tokens",
                hint="use --prefix-caching off",
            )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token where every group keeps it."""
        return sum(group.token_bytes for group in self.groups)

    @property
    def alignment_tokens(self) -> int:
        """The tokens at whose multiples a cached prefix can end: the least common multiple of the blocks."""
        return math.lcm(*(group.block_tokens for group in self.groups))

    @property
    def grain_tokens(self) -> int:
        """The tokens whose content must be told apart: the greatest common divisor of the blocks."""
        return math.gcd(*(group.block_tokens for group in self.groups))

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state instead of tokens."""
        return any(group.kind is GroupKind.STATE for group in self.groups)

    def most_tokens(self, blocks: int, *, in_flight_tokens: int, max_model_len: int) -> int:
        """Return the longest request that ``blocks`` are sure to serve, even alone in the pool.

        A longer one may be refused for ever; vLLM does not start on a pool that cannot serve ``max_model_len``.
        """
        low, high = 0, max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            needed = sum(
                group.most_blocks(middle, in_flight_tokens=in_flight_tokens, max_model_len=max_model_len)
                for group in self.groups
            )
            low, high = (middle, high) if needed <= blocks else (low, middle - 1)
        return low
