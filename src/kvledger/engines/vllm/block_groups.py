"""Block groups: the groups of a model as the pool of blocks sees them, for the replay."""

from __future__ import annotations

from kvledger.engines.plan import Deployment
from kvledger.engines.vllm.grouping import Group, form_groups
from kvledger.engines.vllm.layers import build_layers
from kvledger.engines.vllm.settings import resolve_settings
from kvledger.engines.vllm.specs import SpecKind
from kvledger.errors import ModelError
from kvledger.model import ModelSpec
from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup

__all__ = ["group_blocks"]

_KINDS = {
    SpecKind.FULL: GroupKind.FULL,
    SpecKind.LATENT: GroupKind.FULL,
    SpecKind.WINDOW: GroupKind.WINDOW,
    SpecKind.CHUNK: GroupKind.CHUNK,
    SpecKind.STATE: GroupKind.STATE,
}


def group_blocks(model: ModelSpec, deployment: Deployment) -> BlockGroups:
    """Return the groups of a model on one rank, in the order in which vLLM forms them.

    States are taken as with a prefix cache, where they move from block to block; without one see
    :meth:`~kvledger.pool.groups.BlockGroups.uncached`.

    Raises:
        UsageError: A setting does not exist in this version.
        ModelError: This version refuses the model, or a kind of layer has no block table in the replay.
    """
    settings = resolve_settings(model, deployment)
    layers = build_layers(model, settings)
    specs = [spec for stage in layers.stages for spec in stage.specs]
    formed = form_groups(specs, settings.rules, hybrid=settings.hybrid)
    return BlockGroups(
        groups=tuple(_layer_group(group, layers.block_tokens) for group in formed.groups),
        block_bytes=max(group.page_bytes for group in formed.groups),
    )


def _layer_group(group: Group, block_tokens: int) -> LayerGroup:
    spec = group.spec
    kind = _KINDS.get(spec.kind)
    if kind is None:
        raise ModelError(
            f"layers of kind `{spec.kind}` are not replayed: their blocks depend on the encoder's input",
            hint="`kvledger size` knows what they cost",
        )
    spans = {GroupKind.WINDOW: spec.window_tokens, GroupKind.CHUNK: spec.chunk_tokens}
    return LayerGroup(
        kind=kind,
        block_tokens=block_tokens if kind is GroupKind.STATE else spec.block_tokens,
        payload_bytes=sum(member.payload_bytes for member in group.specs),
        span_tokens=spans.get(kind) or 0,
    )
