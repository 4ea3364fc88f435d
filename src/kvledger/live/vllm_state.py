"""What the scheduler of vLLM 0.32 holds, as records: nothing is changed, and nothing of vLLM is imported."""

from __future__ import annotations

from typing import Any

from kvledger.measure.inside import GroupKind, InsideGroup, InsidePool, InsideState, RequestTable
from kvledger.measure.meter import shown_name

__all__ = ["is_ahead", "read_model", "read_pool", "read_state"]

_KINDS = {
    "FullAttentionSpec": GroupKind.FULL,
    "MLAAttentionSpec": GroupKind.FULL,
    "SlidingWindowSpec": GroupKind.WINDOW,
    "SlidingWindowMLASpec": GroupKind.WINDOW,
    "ChunkedLocalAttentionSpec": GroupKind.CHUNK,
    "MambaSpec": GroupKind.STATE,
}
"""By the name of the class in ``v1/kv_cache_interface.py``; others are not explained."""


def read_pool(scheduler: Any) -> InsidePool:
    """Return the pool of a scheduler, in bytes of one rank.

    A block of any group is as wide as the widest group (``v1/core/kv_cache_utils.py``); tensors of several groups may
    be views of one allocation, so their sizes are not added up.
    """
    config = scheduler.kv_cache_config
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    widths = [sum(spec.page_size_bytes for spec in _layers(group)) for group in config.kv_cache_groups]
    return InsidePool(
        blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
        block_bytes=max(widths),
        groups=tuple(
            _read_group(group, manager.block_size)
            for group, manager in zip(config.kv_cache_groups, managers, strict=True)
        ),
    )


def read_model(scheduler: Any) -> str:
    """Return the served name; of a path only its last part."""
    named = scheduler.vllm_config.model_config.served_model_name
    return shown_name(str(named[0] if isinstance(named, list | tuple) and named else named))[:200]


def is_ahead(scheduler: Any) -> bool:
    """Tell whether the next step is scheduled before the last one has emitted."""
    return bool(scheduler.vllm_config.scheduler_config.async_scheduling)


def _layers(group: Any) -> list[Any]:
    """Return the spec of each layer of a group."""
    spec = group.kv_cache_spec
    several = getattr(spec, "kv_cache_specs", None)
    return list(several.values()) if several else [spec] * len(group.layer_names)


def _read_group(group: Any, block_tokens: int) -> InsideGroup:
    layers = _layers(group)
    kinds = {_KINDS.get(type(spec).__name__, GroupKind.OTHER) for spec in layers}
    kind = kinds.pop() if len(kinds) == 1 else GroupKind.OTHER
    reach = {GroupKind.WINDOW: "sliding_window", GroupKind.CHUNK: "attention_chunk_size"}.get(kind)
    return InsideGroup(
        kind=kind,
        block_tokens=block_tokens,
        payload_bytes=sum(getattr(spec, "real_page_size_bytes", spec.page_size_bytes) for spec in layers),
        reach_tokens=getattr(layers[0], reach) if reach else None,
    )


def read_state(scheduler: Any) -> InsideState:
    """Return what a scheduler holds now; the cost is one look at every block of the pool and every table."""
    manager, blocks = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
    requests = scheduler.requests.values()
    running, waiting = scheduler.get_request_counts()
    in_step = {id(request) for request in scheduler.running}
    holders = [request for request in requests if request.num_computed_tokens or id(request) in in_step]
    return InsideState(
        running=running,
        waiting=waiting,
        preempted=sum(request.num_output_tokens > 0 and id(request) not in in_step for request in requests),
        prefilling=sum(not request.num_output_tokens for request in scheduler.running),
        live_tokens=sum(request.num_tokens for request in requests if request.num_output_tokens),
        free_blocks=blocks.get_num_free_blocks(),
        cached_blocks=sum(not block.ref_cnt and block.block_hash is not None for block in blocks.blocks),
        requests=tuple(
            RequestTable(
                request_id=request.request_id,
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                stored_tokens=request.num_computed_tokens,
                tables=manager.get_block_ids(request.request_id),
            )
            for request in holders
        ),
    )
