"""How the server of a recording was set: what a replay of its requests takes where nothing else is given."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a recording tells of its server; None where it does not, or where its engines differ."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    block_tokens: int | None = None
    usable_blocks: int | None = None
    """Blocks that requests can get, of all engines together."""
    step_seconds: float | None = None
    """Mean time between two tokens of a request, which is how long a step lasts for it."""

    @property
    def usable_tokens(self) -> int | None:
        """Return the token slots of the pool."""
        if self.usable_blocks is None or self.block_tokens is None:
            return None
        return self.usable_blocks * self.block_tokens
