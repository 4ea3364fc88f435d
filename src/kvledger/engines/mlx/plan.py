"""MLX-LM: caches that grow in steps of 256 tokens inside unified memory, by copying.

Nothing is allocated at start-up and nothing is printed about it; memory limits how long a request can grow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import LayerGroup, Part, build_ranks, group_layers, key_bytes, value_bytes
from kvledger.engines.mlx.caches import STEP_TOKENS, count_plain_tokens, quantised_format
from kvledger.engines.plan import Claim, ClaimKind, Deployment, GpuBudget, KvMemory, Plan, Pool, StartFailure
from kvledger.engines.release import Release, read_release
from kvledger.engines.settings import Reader, integer, read_settings, reject
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, LatentCache, Layer, ModelSpec, StateCache, Storage, find_kv_format
from kvledger.units import GIB, MIB, counted

__all__ = ["make_plan", "model_memory"]

FIRST = Release(0, 32, 0)
LATEST = Release(0, 32, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 5000
    prefill_step_size: int = 2048


_READERS: dict[str, Reader] = {
    "max_kv_size": integer,
    "kv_bits": integer,
    "kv_group_size": integer,
    "quantized_kv_start": integer,
    "prefill_step_size": integer,
}


def _read(deployment: Deployment) -> _Settings:
    read_release(deployment.version, engine="MLX-LM", first=FIRST, latest=LATEST)
    settings = read_settings(deployment, _Settings, _READERS)
    if settings.kv_bits not in (None, 2, 3, 4, 6, 8):
        raise UsageError(f"`kv_bits` is {settings.kv_bits}, but must be 2, 3, 4, 6 or 8")
    if settings.kv_group_size not in (32, 64, 128):
        raise UsageError(f"`kv_group_size` is {settings.kv_group_size}, but must be 32, 64 or 128")
    if settings.max_kv_size is not None and settings.max_kv_size < 5:
        raise UsageError(f"`max_kv_size` is {settings.max_kv_size}, but the first 4 tokens are always kept")
    if settings.kv_bits and settings.max_kv_size:
        raise UsageError("MLX-LM cannot quantise a rotating cache", hint="give `kv_bits` or `max_kv_size`, not both")
    return settings


def _find_storage(model: ModelSpec, deployment: Deployment, settings: _Settings) -> Storage:
    plain = find_kv_format(model.dtype.value if deployment.kv_dtype == "auto" else deployment.kv_dtype)
    if plain.name not in ("float32", "float16", "bfloat16"):
        raise UsageError(f"MLX-LM has no cache of type `{plain.name}`", hint="use `kv_bits`")
    if settings.kv_bits is None:
        return Storage(kv=plain)
    return Storage(kv=quantised_format(settings.kv_bits, settings.kv_group_size, plain.bits // 8))


def _layer_bytes(layer: Layer, storage: Storage) -> int:
    if isinstance(layer.cache, StateCache):
        return layer.cache.state_bytes(storage)
    return key_bytes(layer, storage) + value_bytes(layer, storage)


def _check_layers(model: ModelSpec) -> tuple[LayerGroup, ...]:
    groups = group_layers(model.layers)
    if any(group.kind in (ClaimKind.CROSS, ClaimKind.CHUNK) for group in groups):
        raise ModelError("how MLX-LM caches cross attention or chunked attention is not planned")
    if any(isinstance(layer.cache, AttentionCache | LatentCache) and layer.cache.indexer for layer in model.layers):
        raise ModelError("how MLX-LM caches index keys is not planned")
    if not groups:
        raise ModelError("no layer of this model keeps a cache", hint="check the model's config")
    return groups


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what requests of one length would allocate in ``memory``.

    Raises:
        UsageError: A setting does not exist, or the version is not the one that was read.
        ModelError: The rule for a layer is not known.
    """
    reject(
        deployment, tp=1, pp=1, dcp=1, pcp=1, dp=1, block_tokens=None, speculative_tokens=0, max_num_batched_tokens=None
    )
    settings = _read(deployment)
    storage = _find_storage(model, deployment, settings)
    groups = _check_layers(model)
    rows = deployment.max_num_seqs or 1
    longest = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    alternating = any(group.kind is ClaimKind.WINDOW for group in groups)
    fixed, growing = [], []
    for group in groups:
        cap = settings.max_kv_size if group.kind is ClaimKind.FULL and not alternating else group.cap_tokens
        if group.kind is ClaimKind.STATE:
            fixed.append(_state_part(group, rows))
        elif cap is not None:
            fixed.append(_rotating_part(group, cap, rows))
        else:
            growing.append(group)
    taken = sum(part.pool.units * part.rank_bytes(range(2**31), storage) for part in fixed)
    parts = [*fixed, *(_growing_part(group, memory.smallest_bytes - taken, storage) for group in growing)]
    plan = Plan(
        deployment=replace(deployment, kv_dtype=storage.kv.name, max_model_len=longest, max_num_seqs=rows),
        storage=storage,
        pools=tuple(part.pool for part in parts),
        claims=tuple(part.claim for part in parts),
        ranks=build_ranks(parts, stages=[range(2**31)], deployment=deployment, memory=memory, storage=storage),
        lines=(),
        accuracy=Accuracy.MODELLED,
        notes=_notes(settings, groups, storage),
        length_limit_tokens=longest,
        request_limit=rows,
    )
    least = taken + sum(STEP_TOKENS * _layer_bytes(layer, storage) for group in growing for layer in group.layers)
    if least <= memory.smallest_bytes:
        return plan
    failure = StartFailure(
        text="out of unified memory: MLX-LM checks nothing at start-up and fails when it allocates",
        needed_bytes=least,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=0,
    )
    return replace(plan, failure=failure)


def _state_part(group: LayerGroup, rows: int) -> Part:
    claim = Claim(
        name="state", pool="state", kind=ClaimKind.STATE, layers=len(group.layers), unit_tokens=0, state_units=1
    )
    pool = Pool(name="state", units=rows, unit_name="request")
    return Part(pool=pool, claim=claim, layers=group.layers, unit_bytes=_layer_bytes)


def _rotating_part(group: LayerGroup, cap: int, rows: int) -> Part:
    name = f"rotating {cap}"
    claim = Claim(
        name=name,
        pool=name,
        kind=ClaimKind.WINDOW,
        layers=len(group.layers),
        unit_tokens=1,
        window_tokens=cap,
        reach_tokens=cap,
    )
    pool = Pool(name=name, units=rows * cap, unit_name="token")
    return Part(pool=pool, claim=claim, layers=group.layers, unit_bytes=_layer_bytes)


def _growing_part(group: LayerGroup, left_bytes: int, storage: Storage) -> Part:
    size = count_plain_tokens(1) * sum(_layer_bytes(layer, storage) for layer in group.layers)
    claim = Claim(
        name="growing", pool="growing", kind=ClaimKind.FULL, layers=len(group.layers), unit_tokens=STEP_TOKENS
    )
    pool = Pool(name="growing", units=max(0, left_bytes) // size, unit_name="step")
    return Part(
        pool=pool,
        claim=claim,
        layers=group.layers,
        unit_bytes=lambda layer, store: STEP_TOKENS * _layer_bytes(layer, store),
    )


def _notes(settings: _Settings, groups: tuple[LayerGroup, ...], storage: Storage) -> tuple[str, ...]:
    widest = max(_layer_bytes(layer, storage) for group in groups for layer in group.layers)
    notes = [f"a layer that grows is copied: {widest} bytes a token are held twice for a moment"]
    if any(group.kind is ClaimKind.WINDOW for group in groups) or settings.max_kv_size:
        notes.append(
            f"while the prompt comes in, a rotating cache holds up to a chunk of "
            f"{counted(settings.prefill_step_size, 'token')} more than its size"
        )
    if settings.kv_bits and settings.quantized_kv_start:
        notes.append(f"the first {settings.quantized_kv_start:,} tokens are kept in full until then")
    if any(isinstance(layer.cache, AttentionCache | LatentCache) for g in groups for layer in g.layers):
        notes.append("the server keeps finished prompts for reuse; their caches take memory too")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:  # noqa: ARG001
    """Estimate what unified memory leaves beside the weights; macOS lets the GPU use about three quarters of it."""
    _read(deployment)
    ratio = budget.utilisation_ratio or 0.75
    outside = int(budget.total_bytes * (1 - ratio))
    terms = (
        given_term("weights", budget.weights_bytes),
        given_term("not for the GPU", outside, why=f"1 - {ratio} of unified memory"),
        term("activations", budget.activation_bytes, (GIB // 4, GIB, 3 * GIB), "one chunk of the prompt"),
        term("system", budget.non_torch_bytes, (0, 200 * MIB, GIB), "buffers MLX keeps for reuse"),
    )
    return leave_rest(budget.total_bytes, terms, source="unified memory minus weights")
