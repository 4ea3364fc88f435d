"""The V0 core of vLLM: one pool of blocks that every layer fills for every token (up to 0.10).

``executor/executor_base.py`` and ``worker/worker.py``: ``gpu blocks = kv_bytes // block_bytes``, ``CPU blocks =
swap_space // block_bytes``, both the minimum over the ranks; ``block_bytes`` is the block times the bytes of a token in
all layers of the rank. Windows are ignored.
"""

from __future__ import annotations

from kvledger.engines.plan import (
    Claim,
    ClaimKind,
    KvMemory,
    Plan,
    Pool,
    PrintedLine,
    RankPlan,
    StartFailure,
    UnitContent,
)
from kvledger.engines.vllm.demand import POOL
from kvledger.engines.vllm.layers import build_layers
from kvledger.engines.vllm.settings import Settings
from kvledger.engines.vllm.specs import SpecKind
from kvledger.errors import ModelError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec

__all__ = ["plan_v0"]


def plan_v0(model: ModelSpec, settings: Settings, memory: KvMemory) -> Plan:
    """Return what the V0 core allocates.

    Raises:
        ModelError: The model has states or an encoder, whose caches V0 kept outside the blocks.
    """
    layers = build_layers(model, settings)
    deployment, block = settings.deployment, settings.block_tokens
    stages = [sum(spec.payload_bytes for spec in stage.specs) for stage in layers.stages]
    whole = (SpecKind.STATE, SpecKind.CROSS)
    if not all(stages) or any(spec.kind in whole for stage in layers.stages for spec in stage.specs):
        raise ModelError(
            "the V0 core kept the states or the encoder's output of this model outside its blocks; it is not planned",
            hint="give `--engine-version 0.11` or later",
        )
    given = memory.per_rank_bytes
    blocks = min(kv_bytes // size for size in stages for kv_bytes in given)
    if settings.options.num_gpu_blocks_override is not None:
        blocks = settings.options.num_gpu_blocks_override
    cpu_blocks = min(settings.options.swap_space_bytes // size for size in stages)
    tokens = blocks * block
    length = settings.max_model_len
    failure = None
    if length > tokens:
        failure = StartFailure(
            text=f"The model's max seq len ({length}) is larger than the maximum number of tokens that can be stored "
            f"in KV cache ({tokens}). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine.",
            needed_bytes=-(-length // block) * max(stages),
            available_bytes=memory.smallest_bytes,
            largest_max_model_len=tokens,
        )
    return Plan(
        deployment=deployment,
        storage=layers.storage,
        pools=(Pool(name=POOL, units=blocks, unit_name="block"),),
        claims=(Claim(name="full #1", pool=POOL, kind=ClaimKind.FULL, layers=len(model.layers), unit_tokens=block),),
        ranks=tuple(_rank(i, size, memory, settings) for i, size in enumerate(stages)),
        lines=_lines(blocks, cpu_blocks, settings),
        accuracy=memory.accuracy,
        printed_tokens=tokens,
        printed_concurrency=tokens / length,
        failure=failure,
        notes=settings.notes,
    )


def _rank(stage: int, unit_bytes: int, memory: KvMemory, settings: Settings) -> RankPlan:
    deployment = settings.deployment
    given = memory.per_rank_bytes
    return RankPlan(
        name=f"stage {stage}" if deployment.pp > 1 else "rank",
        count=deployment.tp * deployment.dp,
        kv_bytes=given[stage] if len(given) == deployment.pp else min(given),
        unit_bytes={POOL: unit_bytes},
        contents=(UnitContent(claim="full #1", payload_bytes=unit_bytes),),
    )


def _device_label(settings: Settings) -> str:
    """Return what the line calls the device: ``GPU``, in 0.7 ``CUDA``, in 0.8 to 0.10 ``cuda``."""
    device = settings.deployment.device
    if settings.version < (0, 7):
        return "GPU"
    return device.upper() if settings.version < (0, 8) else device


def _lines(blocks: int, cpu_blocks: int, settings: Settings) -> tuple[PrintedLine, ...]:
    name = _device_label(settings)
    lines = [
        PrintedLine(
            text=f"# {name} blocks: {blocks}, # CPU blocks: {cpu_blocks}",
            meaning=f"blocks of {settings.block_tokens} tokens on the device (the smallest over the ranks) and in "
            "the host memory that preempted requests are swapped to",
            accuracy=Accuracy.DERIVED,
        )
    ]
    if settings.version >= (0, 6, 4):
        concurrency = blocks * settings.block_tokens / settings.max_model_len
        lines.append(
            PrintedLine(
                text=f"Maximum concurrency for {settings.max_model_len} tokens per request: {concurrency:.2f}x",
                meaning="tokens of all blocks over the longest request; shorter requests run in larger numbers",
                accuracy=Accuracy.DERIVED,
            )
        )
    return tuple(lines)
