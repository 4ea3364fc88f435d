"""Text Generation Inference 3: blocks of what a warm-up run leaves free, taken by a request for its whole budget.

``blocks = int(free * TGI_WIGGLE_ROOM // (layers * block * kv_heads * head_dim * 2 * dtype)) + warm-up blocks``
(``models/flash_causal_lm.py``); the blocks of ``input + max_new_tokens + speculate - 1`` tokens are taken at admission
(``backends/v3/src/queue.rs``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import Part, build_ranks, group_layers, key_bytes, value_bytes
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
from kvledger.engines.release import Release, read_release
from kvledger.engines.settings import Reader, choice, integer, ratio, read_settings, reject
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, Layer, ModelSpec, Storage
from kvledger.units import GIB, MIB, counted

__all__ = ["make_plan", "model_memory"]

FIRST = Release(3, 0, 0)
LATEST = Release(3, 99, 99)

_BLOCK_TOKENS = {"flashinfer": 1, "flashdecoding": 256, "flashdecoding-ipex": 64, "paged": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    attention: str = "flashinfer"
    wiggle_room: float = 0.90
    cuda_memory_fraction: float = 1.0
    warmup_blocks: int = 0
    max_input_tokens: int | None = None
    kv_blocks: int | None = None


_READERS: dict[str, Reader] = {
    "attention": choice(*_BLOCK_TOKENS),
    "wiggle_room": ratio,
    "cuda_memory_fraction": ratio,
    "warmup_blocks": integer,
    "max_input_tokens": integer,
    "kv_blocks": integer,
}


def _token_bytes(layer: Layer, storage: Storage) -> int:
    return key_bytes(layer, storage) + value_bytes(layer, storage)


def _find_block(deployment: Deployment, settings: _Settings) -> int:
    block = _BLOCK_TOKENS[settings.attention]
    if deployment.block_tokens not in (None, block):
        raise UsageError(
            f"TGI has blocks of {counted(block, 'token')} with `{settings.attention}`, not {deployment.block_tokens}",
            hint="choose `attention`: " + ", ".join(f"{name} ({size})" for name, size in _BLOCK_TOKENS.items()),
        )
    return block


def _check_layers(model: ModelSpec) -> tuple[Layer, ...]:
    groups = group_layers(model.layers)
    layers = tuple(layer for group in groups for layer in group.layers)
    if not layers or any(not isinstance(layer.cache, AttentionCache) for layer in layers):
        raise ModelError(
            "how TGI stores latent, recurrent or cross-attention layers is not known",
            hint="plan this model for vLLM or SGLang",
        )
    if any(isinstance(layer.cache, AttentionCache) and layer.cache.indexer for layer in layers):
        raise ModelError("how TGI stores index keys is not known", hint="plan this model for SGLang or vLLM")
    sides = {
        (layer.cache.kv_heads, layer.cache.key_size, layer.cache.value_size)
        for layer in layers
        if isinstance(layer.cache, AttentionCache)
    }
    if len(sides) > 1:
        raise ModelError("TGI has one shape of keys and values for all layers, but this model has several")
    return layers


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what TGI allocates; ``memory`` is free memory after warm-up times the fraction and the wiggle room.

    Raises:
        UsageError: A setting does not exist, or the version is not known.
        ModelError: The rule for a layer is not known.
    """
    reject(deployment, pp=1, dcp=1, pcp=1, dp=1)
    check_heads(model, deployment)
    read_release(deployment.version, engine="TGI", first=FIRST, latest=LATEST)
    settings = read_settings(deployment, _Settings, _READERS)
    block = _find_block(deployment, settings)
    layers = _check_layers(model)
    storage = replace(model.storage(deployment.kv_dtype), tp=deployment.tp)
    size = block * sum(_token_bytes(layer, storage) for layer in layers)
    blocks = settings.kv_blocks or memory.smallest_bytes // size + settings.warmup_blocks
    speculate = deployment.speculative_tokens
    claim = Claim(
        name="blocks",
        pool="blocks",
        kind=ClaimKind.FULL,
        layers=len(layers),
        unit_tokens=block,
        offset_tokens=speculate - 1,
    )
    part = Part(
        pool=Pool(name="blocks", units=blocks, unit_name="block"),
        claim=claim,
        layers=layers,
        unit_bytes=lambda layer, store: block * _token_bytes(layer, store),
    )
    longest = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    prefix = settings.attention in ("flashinfer", "flashdecoding", "flashdecoding-ipex")
    return Plan(
        deployment=replace(
            deployment,
            kv_dtype=storage.kv.name,
            block_tokens=block,
            max_model_len=longest,
            prefix_caching=prefix if deployment.prefix_caching is None else deployment.prefix_caching,
        ),
        storage=storage,
        pools=(part.pool,),
        claims=(claim,),
        ranks=build_ranks((part,), stages=[range(2**31)], deployment=deployment, memory=memory, storage=storage),
        lines=_make_lines(blocks, block),
        accuracy=Accuracy.DERIVED if settings.kv_blocks or settings.warmup_blocks else Accuracy.MODELLED,
        printed_tokens=blocks * block,
        failure=_find_failure(blocks, size, memory),
        notes=_notes(settings, layers),
        length_limit_tokens=longest,
        request_limit=deployment.max_num_seqs,
    )


def _make_lines(blocks: int, block: int) -> tuple[PrintedLine, ...]:
    return (
        PrintedLine(
            text=f"KV-cache blocks: {blocks}, size: {block}",
            meaning="blocks of one rank and tokens in each",
            accuracy=Accuracy.DERIVED,
        ),
        PrintedLine(
            text=f"Setting max batch total tokens to {blocks * block}",
            meaning="the sum that the budgets (prompt + max_new_tokens) of running requests may reach; "
            "`--max-batch-total-tokens` does not change it",
            accuracy=Accuracy.DERIVED,
        ),
    )


def _find_failure(blocks: int, size: int, memory: KvMemory) -> StartFailure | None:
    if blocks:
        return None
    return StartFailure(
        text="Not enough memory to handle prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
        needed_bytes=size,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=0,
    )


def _notes(settings: _Settings, layers: tuple[Layer, ...]) -> tuple[str, ...]:
    notes = [
        "a request takes the blocks of its prompt plus max_new_tokens when it is admitted; what it never generates "
        "stays reserved until it ends"
    ]
    if not settings.warmup_blocks and not settings.kv_blocks:
        notes.append("the blocks of the warm-up batch come on top and are not known (`warmup_blocks`)")
    if any(isinstance(layer.cache, AttentionCache) and layer.cache.cap_tokens for layer in layers):
        notes.append("blocks are taken for the whole length; those behind a window that all layers have can be pruned")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:  # noqa: ARG001
    """Estimate what one rank gives to blocks: free memory after warm-up, times the wiggle room of 0.90."""
    settings = read_settings(deployment, _Settings, _READERS)
    fraction = budget.utilisation_ratio or settings.cuda_memory_fraction
    terms = (
        given_term("weights", budget.weights_bytes),
        term("warm-up", budget.activation_bytes, (GIB // 2, 2 * GIB, 6 * GIB), "prefill of the largest batch"),
        term("device context", budget.non_torch_bytes, (400 * MIB, 900 * MIB, 2 * GIB), "driver and NCCL"),
        given_term(
            "outside CUDA_MEMORY_FRACTION",
            int(budget.total_bytes * (1 - fraction)),
            why=f"1 - {fraction} of the device",
        ),
    )
    return leave_rest(
        budget.total_bytes,
        terms,
        ratio=settings.wiggle_room,
        source=f"wiggle room {settings.wiggle_room} of free memory",
    )
