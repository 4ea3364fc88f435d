"""Groups of layers for models that do not keep every token in every layer: from options to block tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvledger.errors import UsageError
from kvledger.pool.groups import GroupKind
from kvledger.pool.policy import Kind, Policy
from kvledger.pool.two_pools import TwoPools
from kvledger.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvledger.cli.cost import Cost
    from kvledger.pool.groups import BlockGroups

__all__ = ["group_layers", "grouped", "notes_on_every_layer", "notes_on_groups"]

DEFAULT_WINDOW_RATIO = 0.8
"""SGLang's ``--swa-full-tokens-ratio``."""
_ANY_BLOCK = 16
ENGINE, VERSION = "vllm", "0.32.0"
"""Whose groups are replayed; hits and blocks are equal to this release step by step."""


def group_layers(cost: Cost, *, block_size: int, kv_dtype: str | None, ranks: int = 1) -> BlockGroups | None:
    """Return the groups of a model in blocks of ``block_size``; None when all its layers keep every token.

    Raises:
        ModelError: The engine refuses the model, or a kind of layer has no block table in the replay.
    """
    if cost.model is None or not cost.is_hybrid:
        return None
    from kvledger.engines.plan import Deployment
    from kvledger.engines.vllm.block_groups import group_blocks

    deployment = Deployment(
        engine=ENGINE,
        version=VERSION,
        tp=ranks,
        kv_dtype=kv_dtype or "auto",
        block_tokens=block_size,
        max_model_len=cost.max_model_len or 2**30,
        prefix_caching=True,
    )
    return group_blocks(cost.model, deployment)


def grouped(
    policy: Policy, cost: Cost, *, kv_dtype: str | None, ranks: int = 1, window_ratio: float | None = None
) -> Policy:
    """Return ``paged`` with a block table for each group of the model; other policies, and radix trees, as they are.

    Where it has two pools sized apart, ``window_ratio`` is that of their tokens (default: as it was, else SGLang's).
    """
    if policy.has_two_pools:
        return replace(policy, two_pools=_two_pools(policy, cost, kv_dtype, ranks, window_ratio))
    if policy.kind is not Kind.PAGED or not cost.is_hybrid or policy.is_radix:
        return policy
    groups = group_layers(cost, block_size=policy.block_size, kv_dtype=kv_dtype, ranks=ranks)
    return replace(policy, groups=groups)


def _two_pools(policy: Policy, cost: Cost, kv_dtype: str | None, ranks: int, ratio: float | None) -> TwoPools:
    """Return the two pools of a model with full attention beside windows of one length.

    Raises:
        UsageError: The model is none, or not known.
    """
    formed = group_layers(cost, block_size=_ANY_BLOCK, kv_dtype=kv_dtype, ranks=ranks)
    groups = formed.groups if formed else ()
    full = [group for group in groups if group.kind is GroupKind.FULL]
    windows = [group for group in groups if group.kind is GroupKind.WINDOW]
    if not full or len(full) + len(windows) < len(groups) or len({group.span_tokens for group in windows}) != 1:
        whose = f"`{cost.model.name}` has none" if cost.model else "no model was given"
        raise UsageError(
            f"`{policy.name}` is for full attention beside sliding windows of one length, and {whose}",
            hint="give --model with such a model, or name another policy",
        )
    if ratio is None:
        ratio = policy.two_pools.ratio if policy.two_pools else DEFAULT_WINDOW_RATIO
    return TwoPools(
        full_token_bytes=sum(group.token_bytes for group in full),
        window_token_bytes=sum(group.token_bytes for group in windows),
        window_tokens=windows[0].span_tokens,
        ratio=ratio,
        page_tokens=policy.block_size,
    )


def notes_on_groups(policies: Sequence[Policy], cost: Cost) -> Iterator[str]:
    """Say how a model whose layers keep different tokens is replayed."""
    if not cost.is_hybrid:
        return
    for policy in policies:
        if policy.pools_apart is not None:
            yield f"`{policy.name}` has {_apart(policy.pools_apart)}"
        if policy.block_groups is not None:
            yield f"`{policy.name}` keeps {_listed(policy.block_groups)}, as vLLM {VERSION} groups the layers"
            if policy.block_groups.has_states and policy.prefix_caching:
                yield "states that a kernel saves inside a step (Mamba-2 on some GPUs: one block more) are not replayed"
    others = [f"`{policy.name}`" for policy in policies if not (policy.block_groups or policy.pools_apart)]
    if others:
        yield (
            f"{', '.join(others)} {'treats' if len(others) == 1 else 'treat'} the model as if every attention layer "
            f"kept every token ({cost.bytes_per_token:,} bytes), and no states"
        )


def notes_on_every_layer(cost: Cost) -> Iterator[str]:
    """Say that a hybrid model is taken as if it were none, where only one kind of block is looked at."""
    if cost.is_hybrid:
        yield (
            f"the model is treated as if every attention layer kept every token ({cost.bytes_per_token:,} bytes), and "
            "no states; `kvledger replay --policy paged` keeps its groups of layers"
        )


def _apart(pools: TwoPools) -> str:
    return (
        f"a pool of {pools.full_token_bytes:,} bytes a token for the layers that keep every token, and one of "
        f"{pools.ratio:g} times as many tokens, {pools.window_token_bytes:,} bytes each, for those with a window of "
        f"{pools.window_tokens:,}, as SGLang sizes them"
    )


def _listed(groups: BlockGroups) -> str:
    counts: dict[str, int] = {}
    for group in groups.groups:
        span = f" of {group.span_tokens:,}" if group.span_tokens else ""
        what = f"{group.kind}{span}, {counted(group.block_tokens, 'token')} a block"
        counts[what] = counts.get(what, 0) + 1
    listed = "; ".join(f"{count} x {what}" for what, count in counts.items())
    return f"{len(groups.groups)} block tables over one pool of {groups.block_bytes:,}-byte blocks ({listed})"
