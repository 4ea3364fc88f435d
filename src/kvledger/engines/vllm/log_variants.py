"""Other settings that may explain a log: deployments that differ in one setting, or in the release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvledger.engines.plan import Deployment
from kvledger.model import ModelSpec

__all__ = ["variants"]

_BLOCKS = (32, 64, 128, 256)
_RELEASES = (("0.16", "0.14 to 0.16"), ("0.19", "before 0.20"), ("0.25", "0.20 to 0.25"), ("0.32", "0.26 or later"))
"""One release of every span that counts blocks and needs in another way."""


def variants(model: ModelSpec, deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield deployments that differ in one setting, each with words for it."""
    options = dict(deployment.options)
    for dtype in ("fp8", "bfloat16"):
        if deployment.kv_dtype != dtype:
            yield f"the KV dtype is {dtype}", replace(deployment, kv_dtype=dtype)
    for batched in (2048, 8192, 16_384):
        if deployment.max_num_batched_tokens != batched:
            yield f"max_num_batched_tokens is {batched}", replace(deployment, max_num_batched_tokens=batched)
    for caching in (True, False):
        if deployment.prefix_caching is not caching:
            word = "on" if caching else "off"
            yield f"prefix caching is {word}", replace(deployment, prefix_caching=caching)
    for layers in ("1",):
        drafted = {**options, "speculative_method": "eagle", "draft_layers": layers}
        yield "a draft adds a layer", replace(deployment, speculative_tokens=1, options=drafted)
    for proposed in range(1, 6) if model.draft_layers else ():
        if deployment.speculative_tokens != proposed:
            own = {**options, "speculative_method": "mtp"}
            words = f"the model's own draft proposes {proposed} token{'s' if proposed > 1 else ''}"
            yield words, replace(deployment, speculative_tokens=proposed, options=own)
    if options.get("disable_hybrid_kv_cache_manager") != "true":
        off = {**options, "disable_hybrid_kv_cache_manager": "true"}
        yield "the hybrid KV cache manager is off", replace(deployment, options=off)
    for tp in (2, 4, 8):
        if deployment.tp != tp:
            yield f"tensor parallelism is {tp}", replace(deployment, tp=tp)
    for version, rule in _RELEASES:
        yield f"the version is {rule}", replace(deployment, version=version)
    for block in _BLOCKS:
        if deployment.block_tokens != block:
            yield f"a block has {block} tokens", replace(deployment, block_tokens=block)
