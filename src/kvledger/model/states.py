"""States of constant size: what Mamba, linear attention and short convolutions keep for a sequence.

Shapes are those of vLLM 0.32 ``model_executor/layers/mamba/mamba_utils.py`` (and Hugging Face Transformers 5.24 for
one rank); the bytes of a layer are the sum over its tensors of ``prod(shape) * dtype_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import assert_never

from kvledger.errors import ModelError
from kvledger.model.formats import Dtype
from kvledger.model.storage import Storage
from kvledger.units import counted

__all__ = [
    "Axis",
    "Part",
    "Shard",
    "StateCache",
    "StateDtypes",
    "StateKind",
    "StateTensor",
    "TensorRole",
    "gated_delta_net",
    "given",
    "kimi_delta_attention",
    "lightning",
    "mamba1",
    "mamba2",
    "short_conv",
]


class StateKind(StrEnum):
    """The recurrences that are known."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    GDN = "gdn"
    """Gated DeltaNet (Qwen3-Next, Qwen3.5)."""
    KDA = "kda"
    """Kimi delta attention."""
    LIGHTNING = "lightning"
    """Lightning and other simple linear attention (MiniMax-01, Ling 2.5)."""
    SHORT_CONV = "short_conv"
    """Short convolution (LFM2)."""
    GIVEN = "given"
    """Stated by hand, as bytes."""


class Shard(StrEnum):
    """What tensor parallelism does to a part of an axis."""

    WHOLE = "whole"
    """Every rank keeps all of it."""
    SPLIT = "split"
    """Each rank keeps an equal share."""
    GROUPS = "groups"
    """Split while there is one for each rank, then replicated."""


class TensorRole(StrEnum):
    """What a state tensor is, which decides its dtype and what speculation does to it."""

    CONV = "conv"
    """The last inputs of a causal convolution; speculative tokens lengthen its first axis."""
    STATE = "state"
    """The recurrent state."""
    OPAQUE = "opaque"
    """Bytes stated by hand, whose dtype no setting changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``count`` things of ``size`` elements side by side on an axis."""

    count: int
    size: int = 1
    shard: Shard = Shard.WHOLE

    def elements(self, tp: int) -> int:
        """Return the elements one of ``tp`` ranks keeps.

        Raises:
            ModelError: The count cannot be divided among the ranks.
        """
        match self.shard:
            case Shard.WHOLE:
                return self.count * self.size
            case Shard.GROUPS if self.count < tp:
                return self.size
            case _ if self.count % tp:
                raise ModelError(
                    f"{self.count:,} heads or channels of a state cannot be divided among "
                    f"{counted(tp, 'tensor-parallel rank')}",
                    hint="choose a tensor parallelism that divides them",
                    count=self.count,
                    tp=tp,
                )
            case _:
                return self.count // tp * self.size


Axis = tuple[Part, ...]
"""One axis of a tensor: its length is the sum of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a state."""

    role: TensorRole
    axes: tuple[Axis, ...]
    """For ``conv`` (positions, channels), for ``state`` (heads, rows, columns) or (channels, columns)."""
    dtype: Dtype
    """The model's own choice; :class:`~kvledger.model.storage.Storage` may replace it."""
    declared: bool = False
    """Whether the config (or its class) names this dtype; else it is the model's."""

    def shape(self, tp: int = 1, speculative_tokens: int = 0) -> tuple[int, ...]:
        """Return the shape on one rank; each speculative token adds a position to a convolution."""
        shape = [sum(part.elements(tp) for part in axis) for axis in self.axes]
        if self.role is TensorRole.CONV:
            shape[0] += speculative_tokens
        return tuple(shape)

    def stored_dtype(self, storage: Storage) -> Dtype:
        """Return the dtype under a deployment's storage."""
        match self.role:
            case TensorRole.CONV:
                return storage.conv or self.dtype
            case TensorRole.STATE:
                return storage.state or self.dtype
            case TensorRole.OPAQUE:
                return self.dtype
            case _ as never:  # pragma: no cover
                assert_never(never)

    def tensor_bytes(self, storage: Storage, speculative_tokens: int = 0) -> int:
        """Return the bytes on one rank."""
        return prod(self.shape(storage.tp, speculative_tokens)) * self.stored_dtype(storage).bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCache:
    """A state whose size does not depend on the length of the sequence."""

    kind: StateKind
    tensors: tuple[StateTensor, ...]

    def state_bytes(self, storage: Storage, speculative_tokens: int = 0) -> int:
        """Return the bytes of one sequence's state on one rank."""
        return sum(tensor.tensor_bytes(storage, speculative_tokens) for tensor in self.tensors)

    def growth(self, storage: Storage) -> Fraction:  # noqa: ARG002
        """Return 0: a state does not grow."""
        return Fraction(0)

    def bytes_at(self, length_tokens: int, storage: Storage) -> int:  # noqa: ARG002
        """Return the bytes of the state, whatever the length."""
        return self.state_bytes(storage)

    def fixed_bytes(self, storage: Storage) -> int:
        """Return the bytes of the state."""
        return self.state_bytes(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDtypes:
    """The element types of a state, as the model declares them."""

    conv: Dtype
    state: Dtype
    declared: bool = False


def _conv(kernel: int, channels: Axis, dtypes: StateDtypes) -> StateTensor:
    return StateTensor(role=TensorRole.CONV, axes=((Part(count=kernel - 1),), channels), dtype=dtypes.conv)


def _state(axes: tuple[Axis, ...], dtypes: StateDtypes) -> StateTensor:
    return StateTensor(role=TensorRole.STATE, axes=axes, dtype=dtypes.state, declared=dtypes.declared)


def _heads(count: int, size: int = 1) -> Part:
    return Part(count=count, size=size, shard=Shard.SPLIT)


def mamba1(*, channels: int, state_size: int, kernel: int, dtypes: StateDtypes) -> StateCache:
    """Return the state of Mamba-1: conv ``(k-1, I)`` and ssm ``(I, N)``, with I = expand * hidden size."""
    inner = (_heads(channels),)
    return StateCache(
        kind=StateKind.MAMBA1,
        tensors=(_conv(kernel, inner, dtypes), _state((inner, (Part(count=state_size),)), dtypes)),
    )


def mamba2(*, heads: int, head_size: int, state_size: int, groups: int, kernel: int, dtypes: StateDtypes) -> StateCache:
    """Return the state of Mamba-2: conv ``(k-1, H*P + 2*G*N)`` and ssm ``(H, P, N)``."""
    channels = (_heads(heads, head_size), Part(count=groups, size=2 * state_size, shard=Shard.GROUPS))
    ssm = ((_heads(heads),), (Part(count=head_size),), (Part(count=state_size),))
    return StateCache(kind=StateKind.MAMBA2, tensors=(_conv(kernel, channels, dtypes), _state(ssm, dtypes)))


def gated_delta_net(
    *, key_heads: int, value_heads: int, key_size: int, value_size: int, kernel: int, dtypes: StateDtypes
) -> StateCache:
    """Return the state of Gated DeltaNet: conv ``(k-1, 2*Hk*dk + Hv*dv)`` and state ``(Hv, dv, dk)``."""
    channels = (_heads(key_heads, 2 * key_size), _heads(value_heads, value_size))
    state = ((_heads(value_heads),), (Part(count=value_size),), (Part(count=key_size),))
    return StateCache(kind=StateKind.GDN, tensors=(_conv(kernel, channels, dtypes), _state(state, dtypes)))


def kimi_delta_attention(*, heads: int, head_size: int, kernel: int, dtypes: StateDtypes) -> StateCache:
    """Return the state of Kimi delta attention: conv ``(k-1, 3*H*d)`` and state ``(H, d, d)``."""
    state = ((_heads(heads),), (Part(count=head_size),), (Part(count=head_size),))
    conv = _conv(kernel, (_heads(heads, 3 * head_size),), dtypes)
    return StateCache(kind=StateKind.KDA, tensors=(conv, _state(state, dtypes)))


def lightning(*, heads: int, key_size: int, value_size: int, dtypes: StateDtypes) -> StateCache:
    """Return the state of simple linear attention: ``(H, dk, dv)``, no convolution."""
    axes = ((_heads(heads),), (Part(count=key_size),), (Part(count=value_size),))
    return StateCache(kind=StateKind.LIGHTNING, tensors=(_state(axes, dtypes),))


def given(size_bytes: int) -> StateCache:
    """Return a state of so many bytes, the same on every rank and under every dtype."""
    tensor = StateTensor(role=TensorRole.OPAQUE, axes=((Part(count=size_bytes),),), dtype=Dtype.INT8, declared=True)
    return StateCache(kind=StateKind.GIVEN, tensors=(tensor,))


def short_conv(*, channels: int, kernel: int, dtypes: StateDtypes) -> StateCache:
    """Return the state of a short convolution: ``(k-1, channels)``."""
    return StateCache(kind=StateKind.SHORT_CONV, tensors=(_conv(kernel, (_heads(channels),), dtypes),))
