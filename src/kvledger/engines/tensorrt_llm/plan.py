"""TensorRT-LLM: a fraction of free memory, in blocks, one pool for each window length.

``tokens = floor(free * fraction / bytes per token)``; ``blocks = ceil(tokens / tokens_per_block)``, so the pool can be
up to one block larger than the fraction. With several windows the memory is shared by
``bytes per token * window * layers`` of each (``calculateWindowSizeToShare``, single precision).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import (
    ExtraLayer,
    LayerGroup,
    Part,
    build_ranks,
    group_layers,
    key_bytes,
    split_stages,
    value_bytes,
)
from kvledger.engines.parallel import check_heads, check_stages
from kvledger.engines.plan import (
    Claim,
    ClaimKind,
    Deployment,
    GpuBudget,
    KvMemory,
    Plan,
    Pool,
    PrintedLine,
    StartFailure,
)
from kvledger.engines.settings import reject
from kvledger.engines.tensorrt_llm.settings import Rules, Settings, find_rules, read_runtime_settings
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, LatentCache, Layer, ModelSpec, Storage
from kvledger.units import GIB, MIB, counted

__all__ = ["make_plan", "model_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The layers of one window length and their blocks."""

    tokens: int
    layers: tuple[Layer, ...]
    capped: bool
    blocks: int = 0


def _token_bytes(layer: Layer, storage: Storage) -> int:
    return key_bytes(layer, storage) + value_bytes(layer, storage)


def _find_windows(groups: Sequence[LayerGroup], rules: Rules, settings: Settings, longest_tokens: int) -> list[_Window]:
    split = settings.variable_windows and rules.window_pools
    found: dict[int, list[Layer]] = {}
    for group in groups:
        capped = group.kind in (ClaimKind.WINDOW, ClaimKind.CHUNK) and split
        tokens = min(group.cap_tokens or longest_tokens, longest_tokens) if capped else longest_tokens
        found.setdefault(tokens, []).extend(group.layers)
    return [
        _Window(tokens=tokens, layers=tuple(layers), capped=tokens < longest_tokens)
        for tokens, layers in sorted(found.items())
    ]


def _share(windows: Sequence[_Window], storage: Storage) -> list[np.float32]:
    """Return each window's share of memory, in single precision like the engine."""
    if len(windows) == 1:
        return [np.float32(1.0)]
    sizes = [sum(_token_bytes(layer, storage) for layer in window.layers) for window in windows]
    weights = [np.float32(size) / np.float32(sum(sizes)) for size in sizes]
    parts = [
        np.float32(weight * np.float32(window.tokens * len(window.layers)))
        for weight, window in zip(weights, windows, strict=True)
    ]
    whole = np.float32(sum(float(part) for part in parts))
    return [np.float32(part / whole) for part in parts]


def _count_blocks(
    windows: Sequence[_Window], *, budgets: Sequence[int], stages: Sequence[range], settings: Settings,
    storage: Storage, block: int,
) -> list[_Window]:  # fmt: skip
    """Return the windows with the blocks of the smallest rank."""
    counted = []
    shares = _share(windows, storage)
    for window, share in zip(windows, shares, strict=True):
        tokens = []
        for stage, budget in zip(stages, budgets, strict=True):
            size = sum(_token_bytes(layer, storage) for layer in window.layers if layer.index in stage)
            if size:
                allotted = budget if len(windows) == 1 else float(np.float32(budget) * share)
                tokens.append(int(allotted / size) if len(windows) > 1 else budget // size)
        most = min(tokens)
        if settings.max_tokens is not None:
            most = min(most, settings.max_tokens)
        counted.append(replace(window, blocks=-(-most // block)))
    return counted


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what TensorRT-LLM allocates; ``memory`` is free memory times ``free_gpu_memory_fraction``.

    Raises:
        UsageError: A setting does not exist, or a default of this release is not known.
        ModelError: The rule for a layer is not known.
    """
    reject(deployment, dcp=1, pcp=1, speculative_tokens=0)
    check_heads(model, deployment)
    check_stages(model, deployment)
    rules = find_rules(deployment.version)
    settings = read_runtime_settings(deployment)
    block = deployment.block_tokens or rules.default_block_tokens
    if block is None:
        raise UsageError(
            f"the tokens of a block in TensorRT-LLM {rules.release} depend on how the engine was built (64 or 128)",
            hint="give `block_tokens` (tokens_per_block)",
        )
    groups = _check_layers(model)
    longest = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    if longest is None:
        raise ModelError("the context length of this model is not known", hint="give `max_model_len`")
    storage = replace(model.storage(deployment.kv_dtype), tp=deployment.tp)
    stages = split_stages(model, deployment.pp, ExtraLayer.EVEN_ONLY)
    windows = _find_windows(groups, rules, settings, longest)
    ranks = build_ranks(
        _make_parts(windows, block, settings), stages=stages, deployment=deployment, memory=memory, storage=storage
    )
    windows = _count_blocks(
        windows, budgets=[rank.kv_bytes for rank in ranks], stages=stages, settings=settings, storage=storage,
        block=block,
    )  # fmt: skip
    largest = min((window.blocks * block for window in windows if not window.capped), default=longest)
    parts = _make_parts(windows, block, settings)
    return Plan(
        deployment=_resolve(deployment, storage, block, min(longest, largest), settings),
        storage=storage,
        pools=tuple(part.pool for part in parts),
        claims=tuple(part.claim for part in parts),
        ranks=ranks,
        lines=_make_lines(windows, rules, settings, memory, block=block, longest=longest, storage=storage),
        accuracy=Accuracy.DERIVED if rules.window_pools or rules.release >= (0, 9) else Accuracy.MODELLED,
        printed_tokens=sum(window.blocks for window in windows) * block,
        failure=_find_failure(windows, memory, storage, block),
        notes=_notes(windows, rules, settings, groups, longest, largest),
        length_limit_tokens=min(longest, largest),
        request_limit=deployment.max_num_seqs,
    )


def _check_layers(model: ModelSpec) -> tuple[LayerGroup, ...]:
    groups = group_layers(model.layers)
    kinds = {group.kind for group in groups}
    if ClaimKind.STATE in kinds:
        raise ModelError("how TensorRT-LLM sizes recurrent states is not known", hint="plan this model for vLLM")
    if ClaimKind.CROSS in kinds:
        raise ModelError(
            "TensorRT-LLM splits memory between self and cross attention by `cross_kv_cache_fraction`, which is not "
            "planned",
            hint="plan this model for vLLM",
        )
    if any(isinstance(layer.cache, AttentionCache | LatentCache) and layer.cache.indexer for layer in model.layers):
        raise ModelError("how TensorRT-LLM stores index keys is not known", hint="plan this model for SGLang or vLLM")
    if not groups:
        raise ModelError("no layer of this model keeps a cache", hint="check the model's config")
    return groups


def _make_parts(windows: Sequence[_Window], block: int, settings: Settings) -> tuple[Part, ...]:
    parts = []
    bubble = -settings.sink_tokens % block if settings.sink_tokens else 0
    for window in windows:
        name = f"window {window.tokens}" if len(windows) > 1 else "primary"
        capped = window.tokens if window.capped else None
        claim = Claim(
            name=name,
            pool=name,
            kind=ClaimKind.WINDOW if window.capped else ClaimKind.FULL,
            layers=len(window.layers),
            unit_tokens=block,
            window_tokens=capped,
            reach_tokens=capped,
            offset_tokens=bubble,
        )
        pool = Pool(name=name, units=window.blocks, unit_name="block")
        parts.append(
            Part(
                pool=pool,
                claim=claim,
                layers=window.layers,
                unit_bytes=lambda layer, storage: block * _token_bytes(layer, storage),
            )
        )
    return tuple(parts)


def _resolve(deployment: Deployment, storage: Storage, block: int, longest: int, settings: Settings) -> Deployment:
    options = dict(deployment.options) | {
        "free_gpu_memory_fraction": str(settings.free_gpu_memory_fraction),
        "capacity_scheduler_policy": settings.capacity_scheduler_policy,
    }
    return replace(
        deployment, kv_dtype=storage.kv.name, block_tokens=block, max_model_len=max(1, longest), options=options
    )


def _make_lines(
    windows: Sequence[_Window], rules: Rules, settings: Settings, memory: KvMemory, *,
    block: int, longest: int, storage: Storage,
) -> tuple[PrintedLine, ...]:  # fmt: skip
    prefix = "[TensorRT-LLM][INFO] "
    total = sum(window.blocks for window in windows) * block
    size = sum(
        window.blocks * block * sum(_token_bytes(layer, storage) for layer in window.layers) for window in windows
    )
    lines: list[tuple[str, str, Accuracy]] = []
    if rules.old_lines:
        lines.append((f"Allocate {size} bytes for k/v cache.", "the pool of one rank, exact", Accuracy.DERIVED))
        lines.append((f"Using {total} tokens in paged KV cache.", "blocks x tokens per block", Accuracy.DERIVED))
        return tuple(PrintedLine(text=text, meaning=meaning, accuracy=how) for text, meaning, how in lines)
    available = memory.smallest_bytes / settings.free_gpu_memory_fraction / GIB
    lines.append(
        (
            f"Memory usage when calculating max tokens in paged kv cache: available: {available:.2f} GiB",
            f"free after weights; {settings.free_gpu_memory_fraction} of it is the pool (the line begins with the "
            "total, which is not known here)",
            Accuracy.MODELLED,
        )
    )
    for window in windows:
        where = f" for windowSize {window.tokens}" if rules.window_pools else ""
        lines.append(
            (f"Number of blocks in KV cache primary pool{where}: {window.blocks}", "rounded up", Accuracy.DERIVED)
        )
    for window in windows:
        per_sequence = -(-(min(window.tokens, longest) + settings.sink_tokens) // block)
        text = (
            f"Max KV cache blocks per sequence: {per_sequence} [window size={window.tokens}], tokens per "
            f"block={block}, primary blocks={window.blocks}, secondary blocks=0"
            if rules.window_pools
            else f"Max KV cache pages per sequence: {per_sequence}"
        )
        lines.append((text, "blocks one request may take at its longest", Accuracy.DERIVED))
    lines.append((f"Number of tokens per block: {block}.", "grain of allocation", Accuracy.DERIVED))
    lines.append(
        (
            f"[MemUsageChange] Allocated {size / GIB:.2f} GiB for max tokens in paged KV cache ({total}).",
            "tokens are blocks x tokens per block, of all windows together; not all of them are yours to use at once",
            Accuracy.DERIVED,
        )
    )
    return tuple(PrintedLine(text=prefix + text, meaning=meaning, accuracy=how) for text, meaning, how in lines)


def _find_failure(windows: Sequence[_Window], memory: KvMemory, storage: Storage, block: int) -> StartFailure | None:
    if all(window.blocks for window in windows):
        return None
    needed = sum(sum(_token_bytes(layer, storage) for layer in window.layers) * block for window in windows)
    return StartFailure(
        text="the KV cache has no blocks: not enough free memory for one token of each window",
        needed_bytes=needed,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=0,
    )


def _notes(
    windows: Sequence[_Window],
    rules: Rules,
    settings: Settings,
    groups: Sequence[LayerGroup],
    longest: int,
    largest: int,
) -> tuple[str, ...]:
    notes = []
    if settings.capacity_scheduler_policy == "guaranteed_no_evict":
        notes.append(
            "GUARANTEED_NO_EVICT admits a request only when its prompt plus max_tokens fits beside what every running "
            "request may still ask for; usedNumBlocks does not show that reservation"
        )
    if largest < longest:
        notes.append(
            f"Attention window size {longest} exceeds upper bound {largest} for available blocks: the longest request "
            f"is {counted(largest, 'token')}"
        )
    if any(group.cap_tokens for group in groups) and len(windows) == 1:
        notes.append("sliding-window layers are stored in full: max_attention_window is not given by layer")
    if rules.old_lines:
        notes.append("rounding of 0.6 to 0.8 was not read; the rule of 0.9 is taken")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:  # noqa: ARG001
    """Estimate the pool of one rank: the fraction of what weights, activations and the context leave free."""
    settings = read_runtime_settings(deployment)
    fraction = budget.utilisation_ratio or settings.free_gpu_memory_fraction
    terms = (
        given_term("weights", budget.weights_bytes),
        term(
            "activations and buffers", budget.activation_bytes, (GIB // 2, 2 * GIB, 6 * GIB), "profiled by the engine"
        ),
        term("device context", budget.non_torch_bytes, (400 * MIB, 900 * MIB, 2 * GIB), "driver and NCCL"),
    )
    return leave_rest(
        budget.total_bytes, terms, ratio=fraction, source=f"free_gpu_memory_fraction {fraction} of free memory"
    )
