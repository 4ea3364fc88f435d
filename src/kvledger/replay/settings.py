"""What a replay is told: how much memory there is, and how the scheduler is set."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvledger.errors import CapacityError, UsageError
from kvledger.pool.policy import Kind, Policy
from kvledger.replay.clock import STEPS, Clock

__all__ = ["Pool", "PoolSize", "Settings"]

_MOST = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """A pool as one policy divides it.

    ``units`` are blocks for block tables, tokens for extents; a unit has ``unit_tokens`` tokens and ``unit_bytes``
    bytes. ``unit_bytes`` is above ``unit_tokens * token_bytes`` only where a page holds no whole number of tokens.
    """

    units: int
    unit_tokens: int
    unit_bytes: int
    token_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the units make up."""
        return self.units * self.unit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """KV-cache memory, given in exactly one of bytes, tokens and (usable) blocks.

    ``tensors_per_token`` is how many tensors the KV of one token is spread over (keys and values of each layer: twice
    the layers; latent attention: once). Only ``vmm`` needs it, whose pages hold the tokens of one tensor.
    """

    bytes_per_token: int
    memory_bytes: int | None = None
    capacity_tokens: int | None = None
    num_blocks: int | None = None
    tensors_per_token: int | None = None
    vmm_page_bytes: int = 2 * 2**20

    def __post_init__(self) -> None:
        """Refuse what cannot be a pool."""
        if not 1 <= self.bytes_per_token <= 2**40:
            raise UsageError(f"{self.bytes_per_token} bytes per token is not from 1 to 1 TiB")
        given = {
            "memory": self.memory_bytes,
            "capacity-tokens": self.capacity_tokens,
            "num-blocks": self.num_blocks,
        }
        stated = {name: value for name, value in given.items() if value is not None}
        if len(stated) != 1:
            listed = ", ".join(f"--{name}" for name in stated) or "none"
            raise UsageError(
                f"the pool needs exactly one size, but {listed} was given" if not stated else f"{listed} contradict",
                hint="give one of --memory 50GiB, --capacity-tokens N, --num-blocks N",
            )
        name, value = next(iter(stated.items()))
        if not 1 <= value <= _MOST:
            raise CapacityError(f"--{name} is {value}: there is no memory to manage", hint="give a size above zero")

    def divide(self, policy: Policy) -> PoolSize:
        """Return the pool in the units of ``policy``, rounded down (design section 4).

        Raises:
            CapacityError: Not even one unit fits.
        """
        if policy.kind is Kind.VMM:
            size = self._divide_pages()
        elif policy.kind.is_paged:
            block = policy.block_size
            size = PoolSize(
                units=self.num_blocks if self.num_blocks is not None else self._tokens(policy) // block,
                unit_tokens=block,
                unit_bytes=block * self.bytes_per_token,
                token_bytes=self.bytes_per_token,
            )
        else:
            size = PoolSize(
                units=self._tokens(policy),
                unit_tokens=1,
                unit_bytes=self.bytes_per_token,
                token_bytes=self.bytes_per_token,
            )
        if size.units < 1:
            raise CapacityError(
                f"the pool of {self.total_bytes(policy)} bytes is smaller than one unit of `{policy.name}`, "
                f"which is {size.unit_tokens} tokens or {size.unit_bytes} bytes",
                hint="give more memory or a smaller --block-size",
            )
        return size

    def total_bytes(self, policy: Policy) -> int:
        """Return the bytes of the pool before any rounding."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return self._tokens(policy) * self.bytes_per_token

    def _tokens(self, policy: Policy) -> int:
        if self.capacity_tokens is not None:
            return self.capacity_tokens
        if self.num_blocks is not None:
            return self.num_blocks * policy.block_size
        return (self.memory_bytes or 0) // self.bytes_per_token

    def _divide_pages(self) -> PoolSize:
        """Divide into page groups: one page in each tensor (vAttention, ASPLOS'25, section 5)."""
        if self.tensors_per_token is None:
            raise UsageError(
                "`vmm` maps pages per layer, and the number of layers is not known",
                hint="give --model, or --layers N beside --bytes-per-token",
            )
        tensors = self.tensors_per_token
        tokens = self.vmm_page_bytes * tensors // self.bytes_per_token
        total = self.total_bytes(Policy(name="vmm", kind=Kind.VMM))
        if tokens < 1:
            raise UsageError(
                f"a page of {self.vmm_page_bytes} bytes holds no whole token: one layer's token is "
                f"{self.bytes_per_token // tensors} bytes",
                hint="give a larger --page-size",
            )
        unit_bytes = self.vmm_page_bytes * tensors
        return PoolSize(
            units=total // unit_bytes, unit_tokens=tokens, unit_bytes=unit_bytes, token_bytes=self.bytes_per_token
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the scheduler is set (vLLM's names), and what time is."""

    max_model_len: int
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    clock: Clock = field(default_factory=lambda: STEPS)
    restart_every_seconds: float = 0.0
    restart_down_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no scheduler can run with."""
        for name, low, high in (
            ("max_model_len", 2, 2**40),
            ("max_num_seqs", 1, 2**20),
            ("max_num_batched_tokens", 1, 2**40),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {value}, not from {low} to {high}")
        if self.restart_every_seconds < 0 or self.restart_down_seconds < 0:
            raise UsageError("restarts need seconds from 0 up")
