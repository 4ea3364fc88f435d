"""Transformers: tensors of ``generate`` (dynamic, static, quantised), and the paged cache of continuous batching.

``DynamicCache`` reallocates every layer at each token and holds exactly the length; ``StaticCache`` allocates
``batch x max_cache_len`` at once; windowed layers hold a window. None of them asks how much memory there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import LayerGroup, Part, build_ranks, group_layers, key_bytes, value_bytes
from kvledger.engines.parallel import check_heads
from kvledger.engines.plan import Claim, ClaimKind, Deployment, GpuBudget, KvMemory, Plan, Pool, StartFailure
from kvledger.engines.settings import reject
from kvledger.engines.transformers.continuous import plan_continuous
from kvledger.engines.transformers.settings import Settings, read_cache_settings
from kvledger.engines.transformers.tensors import count_static
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import (
    AttentionCache,
    CrossAttentionCache,
    KvFormat,
    LatentCache,
    Layer,
    ModelSpec,
    StateCache,
    Storage,
    find_kv_format,
)
from kvledger.units import GIB, MIB

__all__ = ["make_plan", "model_memory"]


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what Transformers allocates for a batch of ``max_num_seqs`` rows, or for continuous batching.

    Raises:
        UsageError: A setting does not exist, or the version is not the one that was read.
        ModelError: The rule for a layer is not known.
    """
    reject(deployment, pp=1, dcp=1, pcp=1, dp=1, speculative_tokens=0)
    check_heads(model, deployment)
    settings = read_cache_settings(deployment)
    storage = _find_storage(model, deployment, settings)
    if settings.cache == "continuous":
        return plan_continuous(model, deployment, memory, settings, storage)
    reject(deployment, block_tokens=None)
    return _plan_rows(model, deployment, memory, settings, storage)


def _find_storage(model: ModelSpec, deployment: Deployment, settings: Settings) -> Storage:
    name = model.dtype.value if deployment.kv_dtype == "auto" else deployment.kv_dtype
    storage = Storage(kv=find_kv_format(name), tp=deployment.tp)
    if storage.kv.name not in ("float32", "float16", "bfloat16"):
        raise UsageError(
            f"Transformers keeps the cache in the dtype of the activations, not in `{name}`",
            hint="use `--set cache=fp8` or `--set cache=quantised`",
        )
    if settings.cache == "fp8":
        return replace(storage, kv=find_kv_format("fp8"))
    if settings.cache == "quantised":
        bits = settings.nbits
        scales = 2 * (storage.kv.bits // 8)
        kv = KvFormat(
            name=f"int{bits}",
            bits=bits,
            group_elements=settings.q_group_size,
            group_bytes=scales,
            source="Transformers QuantizedLayer: a scale and a shift for each group",
        )
        return replace(storage, kv=kv)
    return storage


def _layer_bytes(layer: Layer, storage: Storage) -> int:
    """Bytes of one token; MLA layers cache full heads here, where the model's code expands them."""
    cache = layer.cache
    if isinstance(cache, LatentCache):
        if cache.expanded is None:
            return storage.kv.latent_bytes(cache.latent_size, cache.rope_size)
        expanded = replace(layer, cache=cache.expanded)
        return key_bytes(expanded, storage) + value_bytes(expanded, storage)
    if isinstance(cache, StateCache):
        return cache.state_bytes(storage)
    return key_bytes(layer, storage) + value_bytes(layer, storage)


def _plan_rows(
    model: ModelSpec, deployment: Deployment, memory: KvMemory, settings: Settings, storage: Storage
) -> Plan:
    rows = deployment.max_num_seqs or 1
    longest = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    if longest is None:
        raise ModelError("the length of the cache is not known", hint="give `max_model_len`")
    groups = group_layers(model.layers)
    if any(isinstance(layer.cache, AttentionCache | LatentCache) and layer.cache.indexer for layer in model.layers):
        raise ModelError("how Transformers keeps index keys is not known", hint="plan this model for SGLang or vLLM")
    if not groups:
        raise ModelError("no layer of this model keeps a cache", hint="check the model's config")
    if settings.cache in ("quantised", "fp8") and any(group.kind is not ClaimKind.FULL for group in groups):
        raise ModelError(
            "`QuantizedCache` of Transformers 5.24 serves models with full attention in every layer only",
            hint="use `--set cache=dynamic`",
        )
    parts = [_fixed_part(group, rows, longest, settings) for group in groups if _is_fixed(group, settings)]
    if settings.cache == "quantised":
        parts.append(_residual_part(groups, rows, storage, settings, model))
    taken = sum(part.pool.units * part.rank_bytes(range(2**31), storage) for part in parts)
    growing = [group for group in groups if not _is_fixed(group, settings)]
    for group in growing:
        size = sum(_layer_bytes(layer, storage) for layer in group.layers)
        tokens = max(0, memory.smallest_bytes - taken) // size
        parts.append(_part("full", ClaimKind.FULL, group.layers, min(tokens, rows * longest), "token", unit=1))
    needed = taken + sum(rows * longest * _layer_bytes(layer, storage) for group in growing for layer in group.layers)
    plan = Plan(
        deployment=replace(deployment, kv_dtype=storage.kv.name, max_model_len=longest, max_num_seqs=rows),
        storage=storage,
        pools=tuple(part.pool for part in parts),
        claims=tuple(part.claim for part in parts),
        ranks=build_ranks(parts, stages=[range(2**31)], deployment=deployment, memory=memory, storage=storage),
        lines=(),
        accuracy=Accuracy.DERIVED if settings.cache == "static" else Accuracy.MODELLED,
        notes=_notes(settings, groups, storage),
        length_limit_tokens=longest,
        request_limit=rows,
    )
    if needed <= memory.smallest_bytes:
        return plan
    return replace(plan, failure=_find_failure(groups, rows, memory, settings, storage, needed))


def _is_fixed(group: LayerGroup, settings: Settings) -> bool:
    return settings.cache == "static" or group.kind is not ClaimKind.FULL


def _part(
    name: str, kind: ClaimKind, layers: tuple[Layer, ...], units: int, unit_name: str, *, unit: int,
    reserve: int | None = None, window: int | None = None,
) -> Part:  # fmt: skip
    claim = Claim(
        name=name,
        pool=name,
        kind=kind,
        layers=len(layers),
        unit_tokens=unit,
        reserve_tokens=reserve,
        window_tokens=window,
        state_units=0 if unit else 1,
    )
    pool = Pool(name=name, units=units, unit_name=unit_name)
    return Part(pool=pool, claim=claim, layers=layers, unit_bytes=_layer_bytes)


def _fixed_part(group: LayerGroup, rows: int, longest: int, settings: Settings) -> Part:
    match group.kind:
        case ClaimKind.STATE:
            return _part("state", ClaimKind.STATE, group.layers, rows, "row", unit=0)
        case ClaimKind.CROSS:
            tokens = group.cap_tokens or 0
            return _part("cross", ClaimKind.CROSS, group.layers, rows * tokens, "token", unit=1, reserve=tokens)
        case ClaimKind.FULL:
            return _part("full", ClaimKind.FULL, group.layers, rows * longest, "token", unit=1, reserve=longest)
        case _:
            held = count_static(longest, window_tokens=group.cap_tokens)
            part = _part(f"window {group.cap_tokens}", group.kind, group.layers, rows * held, "token", unit=1,
                         reserve=held if settings.cache == "static" else None, window=group.cap_tokens)  # fmt: skip
            if settings.cache == "static":
                return part
            return replace(part, claim=replace(part.claim, reach_tokens=held))


def _residual_part(
    groups: Sequence[LayerGroup], rows: int, storage: Storage, settings: Settings, model: ModelSpec
) -> Part:
    """Tokens in full precision that wait for their turn to be quantised."""
    plain = replace(storage, kv=find_kv_format(model.dtype.value))
    layers = tuple(layer for group in groups if group.kind is ClaimKind.FULL for layer in group.layers)

    def residual(layer: Layer, other: Storage) -> int:
        return _layer_bytes(layer, replace(plain, tp=other.tp))

    tokens = settings.residual_length - 1
    part = _part("residual", ClaimKind.FULL, layers, rows * tokens, "token", unit=1, reserve=tokens)
    return replace(part, unit_bytes=residual)


def _find_failure(
    groups: Sequence[LayerGroup], rows: int, memory: KvMemory, settings: Settings, storage: Storage, needed: int
) -> StartFailure:
    def fits(length: int) -> bool:
        total = 0
        for group in groups:
            size = sum(_layer_bytes(layer, storage) for layer in group.layers)
            cap = group.cap_tokens if group.kind in (ClaimKind.WINDOW, ClaimKind.CHUNK) else None
            total += rows * (size if group.kind is ClaimKind.STATE else count_static(length, window_tokens=cap) * size)
        return total <= memory.smallest_bytes

    low, high = 0, 2**40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    when = "when the cache is made" if settings.cache == "static" else "when the batch has grown that long"
    return StartFailure(
        text=f"torch.OutOfMemoryError: CUDA out of memory ({when})",
        needed_bytes=needed,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=low,
    )


def _notes(settings: Settings, groups: Sequence[LayerGroup], storage: Storage) -> tuple[str, ...]:
    notes = []
    widest = max(_layer_bytes(layer, storage) for group in groups for layer in group.layers)
    windowed = any(group.kind in (ClaimKind.WINDOW, ClaimKind.CHUNK) for group in groups)
    if settings.cache == "static":
        notes.append("every row is allocated to its full length when the first token arrives")
    else:
        notes.append(
            f"each step copies a layer into a new tensor: {widest} bytes a token and row are held twice for a moment"
        )
        if windowed:
            notes.append("after the prompt, windowed layers keep the memory of the whole prompt until the next step")
    if settings.cache == "quantised":
        notes.append("scales and shifts are modelled; the backend (quanto, hqq) decides their layout")
    if any(isinstance(layer.cache, LatentCache | CrossAttentionCache) for g in groups for layer in g.layers):
        notes.append("latent layers are held as the heads the model's code expands, where those are known")
    if any(
        isinstance(layer.cache, AttentionCache) and layer.cache.window_tokens == 1 for g in groups for layer in g.layers
    ):
        notes.append("a window of one token is kept whole by Transformers 5.24 (its slice starts at 0)")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:  # noqa: ARG001
    """Estimate what is left for the cache.

    Continuous batching takes ``max_memory_percent`` of it (0.9; 0.8 with logits processors; 0.6 on CPU and MPS).
    """
    settings = read_cache_settings(deployment)
    terms = [
        given_term("weights", budget.weights_bytes),
        term("device context", budget.non_torch_bytes, (400 * MIB, 700 * MIB, 2 * GIB), "driver and other processes"),
    ]
    if settings.cache != "continuous":
        terms.append(term("activations", budget.activation_bytes, (GIB // 4, GIB, 4 * GIB), "one forward pass"))
        return leave_rest(budget.total_bytes, terms, source="what weights and activations leave")
    ratio = budget.utilisation_ratio or settings.max_memory_percent or _default_percent(deployment, settings)
    return leave_rest(budget.total_bytes, terms, ratio=ratio, source=f"max_memory_percent {ratio} of free memory")


def _default_percent(deployment: Deployment, settings: Settings) -> float:
    if deployment.device in ("cpu", "mps"):
        return 0.6
    return 0.8 if settings.logits_processors else 0.9
