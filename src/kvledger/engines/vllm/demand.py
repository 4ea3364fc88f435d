"""Demand: how many blocks one request takes from a group.

vLLM, ``max_memory_usage_bytes`` of the specs in ``v1/kv_cache_interface.py``, read in all releases that
:mod:`kvledger.engines.vllm.rules` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import assert_never

from kvledger.engines.plan import Claim, ClaimKind
from kvledger.engines.vllm.grouping import Group
from kvledger.engines.vllm.specs import LayerSpec, SpecKind

__all__ = ["Demand", "StateMode", "layer_claim", "make_claims"]


class StateMode(StrEnum):
    """How many states a request keeps."""

    ONE = "one"
    """One (up to 0.10)."""
    NONE = "none"
    """One and one for each proposed token."""
    ALIGN = "align"
    """A second one, so that a prefix can be reused; and those for proposed and exported states."""
    ALL = "all"
    """One for every block of tokens (0.11.1 to 0.31)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What decides the blocks of a request beside its length."""

    in_flight_tokens: int
    """T: tokens that may be scheduled and not yet settled."""
    token_shards: int = 1
    """Context-parallel ranks that split the tokens of full attention."""
    state_mode: StateMode = StateMode.NONE
    all_mode_speculative: bool = True
    """Mode all adds speculative blocks."""


def layer_claim(spec: LayerSpec, demand: Demand, *, name: str, layers: int) -> Claim:
    """Return what one request takes for a group of layers of this spec.

    Full and latent: ``ceil(n / (block * shards))``. Window: ``ceil(min(w - 1 + retained + T, n) / block) + 1``,
    because the window can begin inside a block. Chunk: ``ceil(min(c + T, n) / block)``. State: by mode.
    """
    block = spec.block_tokens
    claim = partial(Claim, name=name, pool=POOL, layers=layers)
    match spec.kind:
        case SpecKind.FULL | SpecKind.LATENT:
            shards = demand.token_shards if spec.shared_by_dcp else 1
            return claim(kind=ClaimKind.FULL, unit_tokens=block * shards)
        case SpecKind.WINDOW:
            window = spec.window_tokens or 1
            reach = window - 1 + spec.retained_tokens + demand.in_flight_tokens
            return claim(
                kind=ClaimKind.WINDOW, unit_tokens=block, window_tokens=window, reach_tokens=reach, extra_units=1
            )
        case SpecKind.CHUNK:
            chunk = spec.chunk_tokens or 1
            reach = chunk + demand.in_flight_tokens
            return claim(kind=ClaimKind.CHUNK, unit_tokens=block, window_tokens=chunk, reach_tokens=reach)
        case SpecKind.CROSS:
            return claim(kind=ClaimKind.CROSS, unit_tokens=block, reserve_tokens=spec.reserve_tokens or 0)
        case SpecKind.STATE:
            return _state_claim(spec, demand, name=name, layers=layers)
        case _ as never:
            assert_never(never)


POOL = "blocks"
"""The name of vLLM's only pool."""


def _state_claim(spec: LayerSpec, demand: Demand, *, name: str, layers: int) -> Claim:
    mode = demand.state_mode
    keeps_all = mode is StateMode.ALL
    speculative = 0 if mode is StateMode.ONE else spec.speculative_blocks
    if keeps_all and not demand.all_mode_speculative:
        speculative = 0
    return Claim(
        name=name,
        pool=POOL,
        kind=ClaimKind.STATE,
        layers=layers,
        unit_tokens=spec.block_tokens if keeps_all else 0,
        state_units=0 if keeps_all else 1,
        checkpoint_units=1 + spec.checkpoint_blocks if mode is StateMode.ALIGN else 0,
        speculative_units=speculative,
    )


def make_claims(groups: tuple[Group, ...], demand: Demand) -> tuple[Claim, ...]:
    """Return the claim of each group; of a group whose layers differ in width, that of the layer with most blocks."""
    names: dict[str, int] = {}
    claims = []
    for group in groups:
        label = _label(group.spec)
        names[label] = names.get(label, 0) + 1
        claims.append(layer_claim(group.spec, demand, name=f"{label} #{names[label]}", layers=len(group.layers)))
    return tuple(claims)


def _label(spec: LayerSpec) -> str:
    match spec.kind:
        case SpecKind.WINDOW:
            return f"window {spec.window_tokens}"
        case SpecKind.CHUNK:
            return f"chunk {spec.chunk_tokens}"
        case _:
            return spec.kind.value
