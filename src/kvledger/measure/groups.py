"""Layers in groups: what the tokens of running requests need in each, when the model is known.

The counters tell how many tokens run, not how they are spread over requests, so a window is an interval: all tokens in
one request need least, equal requests need most. A full-attention group needs every token whatever the spread::

    full      tokens * bytes
    window w  min(tokens, w) * bytes ... min(tokens, requests * w) * bytes
    state     requests * bytes
"""

from __future__ import annotations

from dataclasses import replace

from kvledger.engines.plan import ClaimKind, Deployment, KvMemory, Plan
from kvledger.engines.registry import ENGINES, load_planner
from kvledger.errors import ModelError
from kvledger.ledger import Accuracy
from kvledger.measure.figure import Span
from kvledger.measure.pool import GroupCost, PoolShape, Pricing, Structure
from kvledger.model.spec import ModelSpec
from kvledger.units import counted

__all__ = ["count_needed_bytes", "price_by_plan"]

_PLENTY = 2**50


def price_by_plan(shape: PoolShape, model: ModelSpec, kv_dtype: str | None) -> PoolShape:
    """Price a pool whose layers are in groups, by what vLLM plans for the model on one rank.

    Raises:
        ModelError: The plan does not agree with what the server says about its blocks.
        UsageError: vLLM's rules for this model or dtype are not known.
    """
    deployment = Deployment(
        engine="vllm",
        version=ENGINES["vllm"].latest,
        kv_dtype=kv_dtype or "auto",
        block_tokens=shape.block_tokens,
        max_model_len=shape.max_model_len,
        prefix_caching=shape.prefix_caching,
    )
    plan = load_planner("vllm").make_plan(model, deployment, KvMemory.given(_PLENTY))
    groups = _read_groups(plan)
    if shape.structure is Structure.ONE_GROUP:
        raise ModelError(
            f"{model.name} has layers in groups, but the server has one block table a request: "
            "its hybrid cache manager is off, and every layer keeps every token",
            hint="give --bytes-per-token with the bytes of all layers",
        )
    return replace(
        shape,
        structure=Structure.GROUPS,
        structure_source=f"{model.name}: {counted(len(groups), 'group')} of layers, "
        + ", ".join(group.name for group in groups),
        pricing=Pricing(
            block_bytes=plan.ranks[0].unit_bytes[plan.pools[0].name],
            source=f"{model.name}: bytes of a block of any group on one rank, as vLLM plans it",
            accuracy=Accuracy.DERIVED,
            groups=groups,
        ),
    )


def count_needed_bytes(groups: tuple[GroupCost, ...], stored: Span, *, running: int, held_bytes: int) -> Span:
    """Return the bytes that ``stored`` tokens of ``running`` requests need, at most what is held."""
    low = high = 0
    for group in groups:
        fixed = running * group.request_bytes
        window = group.window_tokens
        least = stored.low if window is None else min(stored.low, window)
        most = stored.high if window is None else min(stored.high, running * window)
        low += least * group.token_bytes + fixed
        high += most * group.token_bytes + fixed
    return Span(low, high).clip(0, held_bytes)


def _read_groups(plan: Plan) -> tuple[GroupCost, ...]:
    contents = {content.claim: content for content in plan.ranks[0].contents}
    groups = []
    for claim in plan.claims:
        payload = contents[claim.name].payload_bytes
        is_state = claim.kind is ClaimKind.STATE or not claim.unit_tokens
        groups.append(
            GroupCost(
                name=claim.name,
                token_bytes=0 if is_state else payload // claim.unit_tokens,
                window_tokens=claim.window_tokens,
                request_bytes=payload * claim.state_units if is_state else 0,
            )
        )
    return tuple(groups)
