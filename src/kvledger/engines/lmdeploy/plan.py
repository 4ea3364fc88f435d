"""LMDeploy: a share of free memory, in blocks of 64 tokens; before 0.1 one extent for each sequence.

PyTorch engine: ``blocks = int((free - states - runtime) * cache_max_entry_count) // block_bytes``, the smallest rank
decides, and there must be more than 2 (``pytorch/engine/executor/base.py``). TurboMind: ``int(free * share) //
block_bytes``, or the number given (``BlockManager.cc``).
"""

from __future__ import annotations

from dataclasses import replace

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import LayerGroup, Part, build_ranks, group_layers, key_bytes, value_bytes
from kvledger.engines.lmdeploy.settings import Engine, find_storage, read_engine_settings
from kvledger.engines.parallel import check_heads
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
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, LatentCache, Layer, ModelSpec, StateCache, Storage
from kvledger.units import GIB, MIB

__all__ = ["make_plan", "model_memory"]


def _token_bytes(layer: Layer, storage: Storage) -> int:
    return key_bytes(layer, storage) + value_bytes(layer, storage)


def _state_bytes(layer: Layer, storage: Storage) -> int:
    return layer.cache.state_bytes(storage) if isinstance(layer.cache, StateCache) else 0


def _find_block(deployment: Deployment, engine: Engine, layers: tuple[Layer, ...], longest: int) -> int:
    if engine.contiguous:
        return longest
    asked = deployment.block_tokens or 64
    wide = any(isinstance(layer.cache, AttentionCache) and layer.cache.key_size >= 512 for layer in layers)
    if engine.settings.backend == "pytorch" and wide and asked > 32:
        return 32
    return asked


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what LMDeploy allocates; ``memory`` is what blocks may take (the share is already applied).

    Raises:
        UsageError: A setting does not exist, or a default of this release is not known.
        ModelError: The rule for a layer is not known.
    """
    reject(deployment, pp=1, dcp=1, pcp=1, speculative_tokens=0)
    check_heads(model, deployment)
    engine = read_engine_settings(deployment)
    groups = _check_layers(model, engine)
    storage = find_storage(model, deployment, engine.settings)
    longest = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    if longest is None:
        raise ModelError("the session length of this model is not known", hint="give `max_model_len`")
    layers = tuple(layer for group in groups if group.kind is not ClaimKind.STATE for layer in group.layers)
    block = _find_block(deployment, engine, layers, longest)
    size = block * sum(_token_bytes(layer, storage) for layer in layers)
    count = engine.entry_count
    fixed = count >= 1 and (engine.contiguous or engine.settings.backend == "turbomind")
    blocks = int(count) if fixed else memory.smallest_bytes // size
    parts = _make_parts(groups, layers, engine, deployment, blocks=blocks, block=block)
    return Plan(
        deployment=replace(
            deployment, kv_dtype=storage.kv.name, block_tokens=block, max_model_len=longest,
            options=dict(deployment.options) | {"cache_max_entry_count": str(count)},
        ),
        storage=storage,
        pools=tuple(part.pool for part in parts),
        claims=tuple(part.claim for part in parts),
        ranks=build_ranks(parts, stages=[range(2**31)], deployment=deployment, memory=memory, storage=storage),
        lines=_make_lines(engine, blocks, size),
        accuracy=Accuracy.DERIVED,
        printed_tokens=None if engine.contiguous else blocks * block,
        failure=_find_failure(blocks, size, memory, fixed=fixed, contiguous=engine.contiguous),
        notes=_notes(engine, layers, block),
        length_limit_tokens=longest,
        request_limit=deployment.max_num_seqs,
    )  # fmt: skip


def _check_layers(model: ModelSpec, engine: Engine) -> tuple[LayerGroup, ...]:
    groups = group_layers(model.layers)
    kinds = {group.kind for group in groups}
    if ClaimKind.CROSS in kinds:
        raise ModelError("LMDeploy does not serve encoder-decoder models")
    if ClaimKind.STATE in kinds and engine.settings.backend != "pytorch":
        raise ModelError(
            "recurrent states are planned for LMDeploy's PyTorch engine only", hint="use `--set backend=pytorch`"
        )
    if any(isinstance(layer.cache, AttentionCache | LatentCache) and layer.cache.indexer for layer in model.layers):
        raise ModelError("how LMDeploy stores index keys is not known", hint="plan this model for SGLang or vLLM")
    if not kinds - {ClaimKind.STATE}:
        raise ModelError("this model has no attention layers: LMDeploy would have no blocks")
    return groups


def _make_parts(
    groups: tuple[LayerGroup, ...], layers: tuple[Layer, ...], engine: Engine, deployment: Deployment, *,
    blocks: int, block: int,
) -> tuple[Part, ...]:  # fmt: skip
    claim = Claim(
        name="blocks",
        pool="blocks",
        kind=ClaimKind.FULL,
        layers=len(layers),
        unit_tokens=block,
        reserve_tokens=block if engine.contiguous else None,
    )
    parts = [
        Part(
            pool=Pool(name="blocks", units=blocks, unit_name="sequence" if engine.contiguous else "block"),
            claim=claim,
            layers=layers,
            unit_bytes=lambda layer, store: block * _token_bytes(layer, store),
        )
    ]
    states = tuple(layer for group in groups if group.kind is ClaimKind.STATE for layer in group.layers)
    if states:
        if deployment.max_num_seqs is None:
            raise UsageError(
                "the state slots follow `max_batch_size`, the most requests at a time", hint="give `--max-num-seqs`"
            )
        slots = deployment.max_num_seqs + 2 + engine.settings.prefix_cache_state_budget
        state = Claim(
            name="states", pool="states", kind=ClaimKind.STATE, layers=len(states), unit_tokens=0, state_units=1
        )
        pool = Pool(name="states", units=slots, unit_name="slot", null_units=2)
        parts.append(Part(pool=pool, claim=state, layers=states, unit_bytes=_state_bytes))
    return tuple(parts)


def _make_lines(engine: Engine, blocks: int, size: int) -> tuple[PrintedLine, ...]:
    if engine.contiguous:
        return ()
    texts: tuple[tuple[str, str], ...]
    if engine.settings.backend == "turbomind":
        texts = (
            (f"[BlockManager] block_size = {size >> 20} MB", "bytes of a block, in whole MiB although it says MB"),
            (f"[BlockManager] max_block_count = {blocks}", "blocks of one rank"),
        )
    else:
        texts = ((f"num_gpu_blocks={blocks}", "blocks of one rank, inside `Building CacheEngine with config`"),)
    return tuple(PrintedLine(text=text, meaning=meaning, accuracy=Accuracy.DERIVED) for text, meaning in texts)


def _find_failure(blocks: int, size: int, memory: KvMemory, *, fixed: bool, contiguous: bool) -> StartFailure | None:
    least = 1 if contiguous else 3
    needed = max(blocks, least) * size
    if blocks >= least and (not fixed or needed <= memory.smallest_bytes):
        return None
    return StartFailure(
        text="No enough gpu memory for kv cache.",
        needed_bytes=needed,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=0,
    )


def _notes(engine: Engine, layers: tuple[Layer, ...], block: int) -> tuple[str, ...]:
    notes = []
    if engine.contiguous:
        notes.append(f"each sequence owns an extent of {block} tokens (session_len), whatever it needs")
    if engine.of_total and not engine.contiguous:
        notes.append("up to 0.2.1 the share is of the device's whole memory, not of what is free")
    if any(isinstance(layer.cache, LatentCache) for layer in layers):
        notes.append("the latent record is planned without values, as FlashMLA stores it")
    if any(isinstance(layer.cache, AttentionCache) and layer.cache.cap_tokens for layer in layers):
        notes.append("blocks are taken for the whole length; sliding-window models lose prefix caching")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:
    """Estimate what one rank gives to blocks: a share of free memory, minus states and the runtime reserve.

    The PyTorch engine sets ``(max_prefill_token_num + 2 * max_batch_size) * vocabulary * 2`` bytes aside.
    """
    engine = read_engine_settings(deployment)
    count = engine.entry_count
    if count >= 1:
        raise UsageError("`cache_max_entry_count` is a number of blocks, so memory does not decide it")
    terms = [
        given_term("weights", budget.weights_bytes),
        term("device context", budget.non_torch_bytes, (400 * MIB, 900 * MIB, 2 * GIB), "driver and NCCL"),
    ]
    if engine.settings.backend == "pytorch":
        batch = deployment.max_num_seqs or 128
        rows = engine.settings.max_prefill_token_num + 2 * batch
        if model.vocabulary_size is None:
            raise ModelError("the vocabulary of this model is not known, which the runtime reserve needs")
        terms.append(given_term("runtime reserve", rows * model.vocabulary_size * 2, why=f"{rows} rows of logits"))
        storage = find_storage(model, deployment, engine.settings)
        states = sum(_state_bytes(layer, storage) for layer in model.layers)
        slots = batch + 2 + engine.settings.prefix_cache_state_budget
        if states:
            terms.append(given_term("states", states * slots, why=f"{slots} slots"))
    if engine.of_total:
        left = leave_rest(budget.total_bytes, terms, source="")
        share = min(int(budget.total_bytes * count), left.smallest_bytes)
        return replace(left, per_rank_bytes=(share,), low_bytes=min(share, left.low_bytes), high_bytes=share,
                       source=f"cache_max_entry_count {count} of the whole device")  # fmt: skip
    return leave_rest(budget.total_bytes, terms, ratio=count, source=f"cache_max_entry_count {count} of free memory")
