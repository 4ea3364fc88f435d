"""What a replay is told: how much memory there is, and how the scheduler is set."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvledger.errors import CapacityError, UsageError
from kvledger.pool.groups import BlockGroups
from kvledger.pool.policy import Kind, Policy
from kvledger.pool.two_pools import TwoPools
from kvledger.replay.clock import STEPS, Clock
from kvledger.units import counted

__all__ = ["Pool", "PoolSize", "Settings"]

_MOST_SECONDS = 1e12

UNIT_BYTES = 512
"""What PyTorch's caching allocator rounds to."""
_MOST = 2**60
_MOST_PAGE_BYTES = 2**30
_MOST_UNIT_TOKENS = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """A pool as one policy divides it.

    ``units`` are blocks for block tables, tokens for extents; a unit has ``unit_tokens`` tokens and ``unit_bytes``
    bytes. ``unit_bytes`` is above ``unit_tokens * token_bytes`` only where a page holds no whole number of tokens.
    For groups of layers everything is counted in bytes: ``unit_tokens`` is the bytes of a block, ``token_bytes`` 1.
    Inside segments a unit is 512 bytes, whatever a token has (``unit_tokens`` is 1 and means nothing).
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

    ``block_size`` is the tokens of one of ``num_blocks``, so that policies of other block sizes get the same memory;
    by default it is the policy's own.
    ``tensors_per_token`` is how many tensors the KV of one token is spread over (keys and values of each layer: twice
    the layers; latent attention: once). Only ``vmm`` needs it, whose pages hold the tokens of one tensor.
    """

    bytes_per_token: int
    memory_bytes: int | None = None
    capacity_tokens: int | None = None
    num_blocks: int | None = None
    block_size: int | None = None
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
        if value < 1:
            raise CapacityError(f"--{name} is {value}: there is no memory to manage", hint="give a size above zero")
        if value > _MOST:
            raise CapacityError(f"--{name} is {value}, more than 2**60", hint="check the unit")
        if self.block_size is not None and self.block_size < 1:
            raise UsageError(
                f"a block of the pool has {counted(self.block_size, 'token')}", hint="give a block size from 1 up"
            )
        if self.tensors_per_token is not None and self.tensors_per_token < 1:
            raise UsageError(f"a token is spread over {self.tensors_per_token} tensors", hint="give at least one layer")
        if not 1 <= self.vmm_page_bytes <= _MOST_PAGE_BYTES:
            raise UsageError(
                f"--page-size is {self.vmm_page_bytes} bytes, not from 1 to {_MOST_PAGE_BYTES}",
                hint="GPUs map pages of 64KiB to 2MiB",
            )

    def divide(self, policy: Policy) -> PoolSize:
        """Return the pool in the units of ``policy``, rounded down.

        Raises:
            CapacityError: Not even one unit fits, or there are too many bytes to count.
        """
        if policy.kind is Kind.VMM:
            size = self._divide_pages(policy)
        elif policy.pools_apart is not None:
            size = self._divide_in_two(policy, policy.pools_apart)
        elif policy.block_groups is not None:
            size = self._divide_groups(policy, policy.block_groups)
        elif policy.kind.is_paged:
            block = policy.block_size
            size = PoolSize(
                units=self._tokens(policy) // block,
                unit_tokens=block,
                unit_bytes=block * self.bytes_per_token,
                token_bytes=self.bytes_per_token,
            )
        elif policy.kind is Kind.GROW and policy.segments:
            size = PoolSize(
                units=self.total_bytes(policy) // UNIT_BYTES,
                unit_tokens=1,
                unit_bytes=UNIT_BYTES,
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
                f"which is {counted(size.unit_tokens, 'token')} or {size.unit_bytes} bytes",
                hint=_too_small_hint(policy, size),
            )
        if size.capacity_bytes > _MOST:
            raise CapacityError(
                f"the pool of `{policy.name}` would have {counted(size.units, 'unit')} of {size.unit_bytes} bytes, "
                f"more than 2**60 bytes together",
                hint="check the units of what was given",
            )
        return size

    def total_bytes(self, policy: Policy) -> int:
        """Return the bytes of the pool before any rounding."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        if self.num_blocks is not None and policy.block_groups is not None:
            return self.num_blocks * policy.block_groups.block_bytes
        return self._tokens(policy) * self.bytes_per_token

    def _tokens(self, policy: Policy) -> int:
        if self.capacity_tokens is not None:
            return self.capacity_tokens
        if self.num_blocks is not None:
            return self.num_blocks * (self.block_size or policy.block_size)
        return (self.memory_bytes or 0) // self.bytes_per_token

    def _divide_groups(self, policy: Policy, groups: BlockGroups) -> PoolSize:
        """Divide into blocks that any group may hold; their slots differ in bytes, so amounts are bytes."""
        block = groups.block_bytes
        return PoolSize(units=self.total_bytes(policy) // block, unit_tokens=block, unit_bytes=block, token_bytes=1)

    def _divide_in_two(self, policy: Policy, pools: TwoPools) -> PoolSize:
        """Divide into two pools, counted in bytes: a unit is what pages of both can be counted in."""
        full, window = pools.divide(self.total_bytes(policy))
        unit = pools.unit_bytes
        units = pools.bytes_of(full, window) // unit if window else 0
        return PoolSize(units=units, unit_tokens=unit, unit_bytes=unit, token_bytes=1)

    def _divide_pages(self, policy: Policy) -> PoolSize:
        """Divide into page groups: one page in each tensor (vAttention, ASPLOS'25, section 5)."""
        if self.tensors_per_token is None:
            raise UsageError(
                "`vmm` maps pages per layer, and the number of layers is not known",
                hint="give --model, or --layers N beside --bytes-per-token",
            )
        tensors = self.tensors_per_token
        tokens = self.vmm_page_bytes * tensors // self.bytes_per_token
        total = self.total_bytes(policy)
        if tokens < 1:
            raise UsageError(
                f"a page of {self.vmm_page_bytes} bytes holds no whole token: one layer's token is "
                f"{self.bytes_per_token // tensors} bytes",
                hint="give a larger --page-size",
            )
        if tokens > _MOST_UNIT_TOKENS:
            raise UsageError(
                f"a page of {self.vmm_page_bytes} bytes in each of {tensors} tensors holds {counted(tokens, 'token')}, "
                f"more than {_MOST_UNIT_TOKENS}",
                hint="give a smaller --page-size, or check the bytes per token",
            )
        unit_bytes = self.vmm_page_bytes * tensors
        return PoolSize(
            units=total // unit_bytes, unit_tokens=tokens, unit_bytes=unit_bytes, token_bytes=self.bytes_per_token
        )


def _flag(policy: Policy) -> str:
    return "--page-size" if policy.kind is Kind.VMM else "--block-size"


def _too_small_hint(policy: Policy, size: PoolSize) -> str:
    smaller = "" if size.unit_tokens == 1 else f" or a smaller {_flag(policy)}"
    return f"give more memory{smaller}; a size without a unit is in bytes, so write GiB if you mean it"


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
        for name in ("restart_every_seconds", "restart_down_seconds"):
            value = getattr(self, name)
            if not 0 <= value <= _MOST_SECONDS:
                raise UsageError(f"{name} is {value}, not from 0 to {_MOST_SECONDS:g}")
