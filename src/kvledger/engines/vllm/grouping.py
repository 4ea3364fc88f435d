"""Groups: which layers share a block table, and how wide a block of the pool is.

vLLM 0.8 to 0.33, ``get_kv_cache_groups`` (``v1/core/kv_cache_utils.py``, from 0.33 ``kv_cache_planning.py``). Every
group draws block ids from one pool, so a block of any group is as wide as the widest group::

    Gemma-3, 52 sliding and 10 full layers, 6 + 1 groups of 10:

    sliding 1  | 0 6 12 .. |      block of any group = 10 pages
    ...
    sliding 6  | 5 11 #### |      # = padding layers
    full       | 5 11 17 ..|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvledger.engines.vllm.rules import Grouping, Rules
from kvledger.engines.vllm.specs import LayerSpec, SpecKind, is_one_group, is_uniform_type, merge_specs
from kvledger.errors import ModelError

__all__ = ["Group", "Groups", "form_groups"]

_WINDOWED = (SpecKind.WINDOW, SpecKind.CHUNK)
_WHOLE = (SpecKind.FULL, SpecKind.LATENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share one block table; ``layers`` are positions in the list of specs that was grouped."""

    layers: tuple[int, ...]
    specs: tuple[LayerSpec, ...]

    @property
    def spec(self) -> LayerSpec:
        """The spec that stands for the group (its layers may differ in width)."""
        return merge_specs(self.specs) or self.specs[0]

    @property
    def page_bytes(self) -> int:
        """Bytes of the pages of all its layers."""
        return sum(spec.page_bytes for spec in self.specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of a model, and what the engine warns about while it forms them."""

    groups: tuple[Group, ...]
    padding: tuple[tuple[int, int], ...] = ()
    """(padding layers, layers of that kind), for each warning."""
    promoted: bool = False
    """Windowed layers are sized as full attention because the hybrid manager is off."""
    fallback: bool = False
    """The same, because pages could not be unified beside latent layers."""


def form_groups(specs: Sequence[LayerSpec], rules: Rules, *, hybrid: bool) -> Groups:
    """Form the groups of layers.

    Args:
        specs: One for each layer, in the order of the model.
        rules: The release.
        hybrid: Whether the hybrid KV cache manager is on.

    Raises:
        ModelError: This release refuses the combination of layers.
    """
    if not specs:
        raise ModelError("no layer keeps a KV cache: vLLM allocates a single block and no memory for this model")
    promoted = False
    if not hybrid or rules.grouping is Grouping.NONE:
        specs, promoted = _promote(specs, rules)
    if is_one_group(specs) or (rules.uniform_types and is_uniform_type(specs)):
        return Groups(groups=(_group(specs, range(len(specs))),), promoted=promoted)
    if rules.grouping is Grouping.NONE:
        raise _refused(specs, "several kinds of layers")
    unified = _unify_pages(specs, rules)
    if unified is None:
        fallback, _ = _promote(specs, rules)
        return Groups(groups=(_group(fallback, range(len(specs))),), fallback=True)
    return replace(_split(unified, rules), promoted=promoted)


def _group(specs: Sequence[LayerSpec], layers: Sequence[int] | range) -> Group:
    return Group(layers=tuple(layers), specs=tuple(specs[i] for i in layers))


def _refused(specs: Sequence[LayerSpec], why: str) -> ModelError:
    pages = sorted({spec.page_bytes for spec in specs})
    kinds = ", ".join(sorted({spec.kind.value for spec in specs}))
    return ModelError(
        f"this release of vLLM cannot size a model with {why}: layers of kind {kinds} with pages of "
        f"{', '.join(map(str, pages))} bytes",
        hint="try a later version, or another block size",
    )


def _promote(specs: Sequence[LayerSpec], rules: Rules) -> tuple[Sequence[LayerSpec], bool]:
    if is_one_group(specs) or (rules.uniform_types and is_uniform_type(specs)):
        return specs, False
    whole = [spec for spec in specs if spec.kind in _WHOLE]
    if not whole or not any(spec.kind in _WINDOWED for spec in specs):
        raise _refused(specs, "several kinds of layers while the hybrid manager is off")
    blocks = {spec.block_tokens for spec in whole}
    block = blocks.pop() if rules.merges_buckets and len(blocks) == 1 else None
    promoted = [spec.as_full(block) if spec.kind in _WINDOWED else spec for spec in specs]
    sizes = max(len({s.window_tokens for s in promoted} - {None}), len({s.chunk_tokens for s in promoted} - {None}))
    if sizes > 1 and rules.grouping is not Grouping.NONE and all(s.kind is SpecKind.FULL for s in promoted):
        raise _refused(promoted, "windows of several sizes while the hybrid manager is off")
    if not (is_one_group(promoted) or (rules.uniform_types and is_uniform_type(promoted))):
        raise _refused(promoted, "layers that stay different while the hybrid manager is off")
    return promoted, True


def _unify_pages(specs: Sequence[LayerSpec], rules: Rules) -> Sequence[LayerSpec] | None:
    """Bring all pages to the largest one; None asks for the fallback beside latent layers."""
    largest = max(spec.page_bytes for spec in specs)
    if all(spec.page_bytes == largest for spec in specs):
        return specs
    if not rules.unifies_pages:
        raise _refused(specs, "pages of several sizes")
    unified = []
    for spec in specs:
        ratio, rest = divmod(largest, spec.page_bytes)
        if spec.page_bytes == largest:
            unified.append(spec)
        elif spec.kind is SpecKind.STATE:
            if not rules.pads_state_pages:
                raise _refused(specs, "a state page smaller than the others")
            unified.append(spec.with_page(largest))
        elif rest == 0:
            unified.append(spec.with_block(spec.block_tokens * ratio))
        elif rules.pads_attention_pages and spec.kind is not SpecKind.LATENT:
            unified.append(spec.with_page(largest))
        elif rules.promotes_beside_latent and _can_fall_back(specs):
            return None
        else:
            raise _refused(specs, "pages that do not divide the largest one")
    return unified


def _can_fall_back(specs: Sequence[LayerSpec]) -> bool:
    kinds = {spec.kind for spec in specs}
    return kinds >= {SpecKind.LATENT, SpecKind.WINDOW} and SpecKind.CHUNK not in kinds


def _buckets(specs: Sequence[LayerSpec], rules: Rules) -> list[list[int]]:
    by_spec: dict[LayerSpec, list[int]] = {}
    for position, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(position)
    if not rules.merges_buckets:
        return list(by_spec.values())
    buckets: list[tuple[list[LayerSpec], list[int]]] = []
    for spec, positions in by_spec.items():
        for kinds, members in buckets:
            if merge_specs([*kinds, spec]) is not None:
                kinds.append(spec)
                members.extend(positions)
                break
        else:
            buckets.append(([spec], list(positions)))
    return [members for _, members in buckets]


def _split(specs: Sequence[LayerSpec], rules: Rules) -> Groups:
    buckets = _buckets(specs, rules)
    width = min(len(bucket) for bucket in buckets)
    widest = max(len(bucket) for bucket in buckets)
    if widest < width * rules.wide_group_ratio:
        width = widest
    groups: list[Group] = []
    padding: list[tuple[int, int]] = []
    for bucket in buckets:
        count = -(-len(bucket) // width)
        if len(bucket) % width:
            padding.append((width - len(bucket) % width, len(bucket)))
        for i in range(count):
            strided = rules.grouping is Grouping.STRIDED
            members = bucket[i::count] if strided else bucket[i * width : (i + 1) * width]
            groups.append(_group(specs, members))
    return Groups(groups=tuple(groups), padding=tuple(padding))
