"""How many ranks a deployment can have: what has to divide what before an engine starts at all."""

from __future__ import annotations

from kvledger.engines.plan import Deployment
from kvledger.errors import UsageError
from kvledger.model import AttentionCache, ModelSpec
from kvledger.units import counted

__all__ = ["check_heads", "check_stages"]


def check_heads(model: ModelSpec, deployment: Deployment) -> None:
    """Refuse a tensor parallelism that cannot split the heads.

    A rank computes whole query heads, and keeps whole KV heads or a copy of one: vLLM
    (``ModelConfig.verify_with_parallel_config``, ``QKVParallelLinear``), SGLang, TensorRT-LLM, TGI and LMDeploy
    assume it. Where data-parallel attention may take ranks from tensor parallelism (``dp`` above 1, but not in vLLM,
    whose replicas have ``tp`` ranks each), nothing is refused.

    Raises:
        UsageError: It cannot, where the heads are known.
    """
    heads, tp = model.query_heads, deployment.tp
    if deployment.dp > 1 and deployment.engine != "vllm":
        return
    if heads is not None and heads % tp:
        raise UsageError(
            f"`tp` {tp:,} does not divide the {heads:,} query heads of `{model.name}`: a tensor-parallel rank takes "
            "whole heads",
            hint="choose one of " + ", ".join(str(n) for n in range(1, min(heads, 1024) + 1) if heads % n == 0),
        )
    for kept in {layer.cache.kv_heads for layer in model.layers if isinstance(layer.cache, AttentionCache)}:
        if kept % tp and (not kept or tp % kept):
            raise UsageError(
                f"{kept:,} KV heads cannot be divided among {counted(tp, 'tensor-parallel rank')}, nor copied evenly",
                hint="choose a tensor parallelism that divides the heads or is a multiple of them",
            )


def check_stages(model: ModelSpec, deployment: Deployment) -> None:
    """Refuse more pipeline stages than layers.

    Raises:
        UsageError: A stage would have none.
    """
    blocks, pp = model.block_count, deployment.pp
    if pp > blocks:
        raise UsageError(
            f"`pp` {pp:,} is more than the {blocks:,} layers of `{model.name}`: every pipeline stage needs one",
            hint=f"choose {blocks:,} at most",
        )
