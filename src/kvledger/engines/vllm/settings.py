"""Settings: a deployment with vLLM's defaults filled in.

Defaults of vLLM 0.8 to 0.33 (``engine/arg_utils.py``, ``config/vllm.py``, ``platforms/cuda.py`` and ``cpu.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.engines.parallel import check_heads, check_stages
from kvledger.engines.plan import Deployment
from kvledger.engines.vllm.demand import StateMode
from kvledger.engines.vllm.options import Options, read_options
from kvledger.engines.vllm.rules import Rules, find_rules
from kvledger.engines.vllm.version import Version, parse_version
from kvledger.errors import UsageError
from kvledger.model import AttentionCache, LatentCache, ModelSpec, StateCache, StateKind
from kvledger.units import GIB, counted

__all__ = ["Settings", "resolve_settings"]

_KERNEL_GRAIN_TOKENS = 16
_LISTED_SMALL_BLOCKS = (1, 8)
_OWN_CACHE = ("mtp", "eagle", "eagle3", "draft_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the planner needs beside the model and the bytes; nothing is ``None`` that has a default."""

    version: Version
    rules: Rules
    v1: bool
    deployment: Deployment
    """With ``block_tokens`` before it is aligned to states, and every default filled in."""
    options: Options
    max_model_len: int
    kernel_tokens: int
    in_flight_tokens: int
    hybrid: bool
    state_mode: StateMode
    draft_cache: bool
    notes: tuple[str, ...] = ()

    @property
    def block_tokens(self) -> int:
        """The block before states are considered."""
        return self.deployment.block_tokens or 16


def resolve_settings(model: ModelSpec, deployment: Deployment) -> Settings:
    """Fill in what the version, the model and the device decide.

    Raises:
        UsageError: A setting does not exist in this version or contradicts another.
    """
    version = parse_version(deployment.version)
    rules = find_rules(version)
    options = read_options(deployment.options)
    v1 = _is_v1(version, options, rules)
    _check_parallel(model, deployment)
    notes: list[str] = []
    length = _max_model_len(model, deployment)
    batched, seqs = _batch_defaults(deployment, options, rules, model, notes=notes)
    caching = deployment.prefix_caching
    if caching is None:
        caching = v1 and _caches_prefixes(model, rules)
    block, kernel = _blocks(model, deployment, options, rules)
    state_mode = _state_mode(model, options, rules, caching=caching)
    block_note = _check_block(model, deployment, rules, v1=v1)
    if block_note is not None:
        notes.append(block_note)
    notes.extend(_kernel_notes(model, deployment, options, version, state_mode))
    resolved = replace(
        deployment,
        version=str(version),
        max_model_len=length,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
        prefix_caching=caching,
        block_tokens=block,
    )
    return Settings(
        version=version,
        rules=rules,
        v1=v1,
        deployment=resolved,
        options=options,
        max_model_len=length,
        kernel_tokens=kernel,
        in_flight_tokens=batched * _batches(model, resolved, options, rules),
        hybrid=_hybrid(model, resolved, options, rules, notes=notes),
        state_mode=state_mode,
        draft_cache=deployment.speculative_tokens > 0 and options.speculative_method in _OWN_CACHE,
        notes=tuple(notes),
    )


def _is_v1(version: Version, options: Options, rules: Rules) -> bool:
    if options.core == "v0" and version >= (0, 11):
        raise UsageError(f"vLLM {version} has no V0 core: it was removed in 0.11", hint="leave the option `core` out")
    return options.core == "v1" or (options.core is None and rules.core_v1)


def _caches_prefixes(model: ModelSpec, rules: Rules) -> bool:
    """Tell whether prefix caching is on by default: for attention, from 0.28 with states beside it, not for states."""
    if not any(isinstance(layer.cache, StateCache) for layer in model.layers):
        return True
    attention = any(isinstance(layer.cache, AttentionCache | LatentCache) for layer in model.layers)
    return attention and rules.hybrid_prefix_caching


def _check_parallel(model: ModelSpec, deployment: Deployment) -> None:
    """Refuse what ``ModelConfig.verify_with_parallel_config`` and the pipeline refuse (0.10 to 0.33)."""
    check_heads(model, deployment)
    check_stages(model, deployment)
    if deployment.tp % deployment.dcp:
        raise UsageError(
            f"`dcp` {deployment.dcp} does not divide `tp` {deployment.tp}: decode context parallelism splits the "
            "tensor-parallel ranks",
            hint="choose a divisor of `tp`",
        )
    if deployment.dcp > 1 and deployment.pcp == 1:
        _check_copies(model, deployment)


def _check_copies(model: ModelSpec, deployment: Deployment) -> None:
    """Refuse decode context parallelism over more ranks than copies of a KV head; MLA has a copy on every rank."""
    heads = {layer.cache.kv_heads for layer in model.layers if isinstance(layer.cache, AttentionCache)}
    if len(heads) != 1 or any(isinstance(layer.cache, LatentCache) for layer in model.layers):
        return
    (kv_heads,), tp, dcp = heads, deployment.tp, deployment.dcp
    copies = tp // kv_heads if kv_heads else 0
    if kv_heads and (tp <= kv_heads or dcp > copies):
        raise UsageError(
            f"`dcp` {dcp} needs as many copies of each of the {kv_heads} KV heads, but `tp` {tp} makes "
            f"{counted(max(copies, 1), 'copy', 'copies')}: the ranks that share a head's tokens each hold that head",
            hint=f"choose a `tp` of at least {kv_heads * dcp}, or leave `dcp` out",
        )
    queries = (model.query_heads or 0) // kv_heads if kv_heads else 0
    if queries % dcp:
        raise UsageError(
            f"`dcp` {dcp} does not divide the {counted(queries, 'query head')} of each KV head of `{model.name}`",
            hint="choose a divisor of them",
        )


def _max_model_len(model: ModelSpec, deployment: Deployment) -> int:
    if deployment.max_model_len is not None:
        return deployment.max_model_len
    if model.max_model_len is None:
        raise UsageError(
            f"the longest request of `{model.name}` is not known: its config names none",
            hint="give `--max-model-len`",
        )
    return model.max_model_len.tokens


def _batch_defaults(
    deployment: Deployment, options: Options, rules: Rules, model: ModelSpec, *, notes: list[str]
) -> tuple[int, int]:
    """Return max_num_batched_tokens and max_num_seqs (API server, or the offline class)."""
    server = options.usage == "server"
    world = deployment.tp * deployment.pp
    memory = options.device_memory_bytes
    if deployment.device == "cpu":
        batched, seqs = (2048 if server else 4096) * world, (128 if server else 256) * world
    elif rules.large_gpu_defaults and memory is not None and memory >= 160 * GIB:
        batched, seqs = 16384, 1024
    elif (memory is None or memory >= 70 * GIB) and not _keeps_small_defaults(options, rules):
        batched, seqs = (8192 if server else 16384), 1024
    else:
        batched, seqs = (2048 if server else 8192), 256
    if deployment.max_num_batched_tokens is not None:
        batched = deployment.max_num_batched_tokens
    elif memory is None and not options.device_name and deployment.device != "cpu" and _has_windows(model):
        notes.append(
            f"max_num_batched_tokens is taken as {batched}, the default of GPUs with 70 GiB or more; smaller ones and "
            "the A100 have 2048, and windows then cost fewer blocks"
        )
    if deployment.max_num_seqs is not None:
        seqs = deployment.max_num_seqs
    return batched, min(seqs, batched)


def _keeps_small_defaults(options: Options, rules: Rules) -> bool:
    """Tell whether the device's name keeps it from the defaults of its memory (``engine/arg_utils.py``)."""
    return any(name in options.device_name.lower() for name in rules.small_defaults_of)


def _has_windows(model: ModelSpec) -> bool:
    caches = (layer.cache for layer in model.layers)
    return any(isinstance(cache, AttentionCache) and cache.cap_tokens is not None for cache in caches)


def _check_block(model: ModelSpec, deployment: Deployment, rules: Rules, *, v1: bool) -> str | None:
    """Refuse a block that no kernel of V1 on CUDA takes, or say which one must (``platforms/cuda.py``).

    FlashAttention, FlashInfer and Triton want a multiple of 16 (``get_kv_cache_shape``) in every release.
    """
    block, grain = deployment.block_tokens, _KERNEL_GRAIN_TOKENS
    attention = any(isinstance(layer.cache, AttentionCache) for layer in model.layers)
    latent = any(isinstance(layer.cache, LatentCache) for layer in model.layers)
    if block is None or block % grain == 0 or not v1 or deployment.device != "cuda" or not (attention or latent):
        return None
    taken = rules.flex_takes_any_block if attention else rules.triton_latent_takes_any_block
    if not taken or (rules.lists_blocks and block not in _LISTED_SMALL_BLOCKS):
        near = max(1, round(block / grain)) * grain
        raise UsageError(
            f"vLLM {deployment.version} cannot use blocks of {counted(block, 'token')}: on CUDA they are a multiple "
            f"of {grain}",
            hint=f"use `--block-size {near}`",
        )
    kernel = "FlexAttention" if attention else "Triton's kernel for latent caches"
    blocks = f"blocks of {counted(block, 'token')}"
    return f"{blocks} are no multiple of {grain}: of this version's kernels only {kernel} takes them"


def _blocks(model: ModelSpec, deployment: Deployment, options: Options, rules: Rules) -> tuple[int, int]:
    """Return the block before alignment and the smallest block of the kernel."""
    latent = [layer.cache for layer in model.layers if isinstance(layer.cache, LatentCache)]
    if deployment.device == "cpu":
        kernel, block = (32, rules.cpu_block_tokens) if rules.cpu_block_tokens > 16 else (16, 16)
        if latent:
            kernel, block = 16, 16
    elif deployment.device == "xpu" or latent:
        kernel, block = 64, 64
    else:
        kernel, block = 16, 16
    kernel = options.kernel_block_tokens or kernel
    return deployment.block_tokens or max(block, kernel), kernel


def _kernel_notes(
    model: ModelSpec, deployment: Deployment, options: Options, version: Version, mode: StateMode
) -> list[str]:
    """Say where the kernels of the device decide, and what was taken."""
    if deployment.device != "cuda":
        return []
    notes = []
    kinds = {layer.cache.kind for layer in model.layers if isinstance(layer.cache, StateCache)}
    latent = any(isinstance(layer.cache, LatentCache) for layer in model.layers)
    if latent and deployment.block_tokens is None:
        notes.append("latent caches are taken in blocks of 64 tokens; CUTLASS MLA takes 128, ROCm less: --block-size")
    exported = options.prefill_checkpoint_blocks is None and options.state_alignment_tokens is None
    if version >= (0, 33) and StateKind.GDN in kinds and mode is StateMode.ALIGN and exported:
        notes.append(
            "with the FlashInfer prefill kernel of 0.33 a request keeps one state more, and blocks are multiples of "
            "64: --set prefill_checkpoint_blocks=1 --set state_alignment_tokens=64"
        )
    return notes


def _batches(model: ModelSpec, deployment: Deployment, options: Options, rules: Rules) -> int:
    """Return how many batches may be in flight (``VllmConfig.max_concurrent_batches``, 0.26 and later).

    The CPU platform never schedules asynchronously.
    """
    if not rules.counts_batches_in_flight:
        return 1
    own = deployment.speculative_tokens == 0 or options.speculative_method != "ngram"
    asynchronous = own if options.async_scheduling is None else options.async_scheduling
    if not asynchronous or deployment.device == "cpu":
        return deployment.pp
    moe = model.parameters is not None and model.parameters.active < model.parameters.count
    states = any(isinstance(layer.cache, StateCache) for layer in model.layers)
    runner_v2 = rules.v2_runner or (rules.v2_runner_dense and not moe and not states)
    if options.model_runner is not None:
        runner_v2 = options.model_runner == "v2"
    if runner_v2:
        return deployment.pp + 1
    return 2 if deployment.pp == 1 else deployment.pp


def _hybrid(model: ModelSpec, deployment: Deployment, options: Options, rules: Rules, *, notes: list[str]) -> bool:
    """Tell whether the hybrid KV cache manager is on (``config/vllm.py``)."""
    if options.disable_hybrid_kv_cache_manager is not None:
        return not options.disable_hybrid_kv_cache_manager
    chunked = any(isinstance(c.cache, AttentionCache) and c.cache.chunk_tokens is not None for c in model.layers)
    drafted = deployment.speculative_tokens > 0 and options.speculative_method in ("eagle", "eagle3", "mtp")
    allowed = rules.chunked_local_hybrid if options.allow_chunked_local is None else options.allow_chunked_local
    reasons = []
    if options.kv_events and rules.events_disable_hybrid:
        reasons.append("KV events are on (up to 0.19 they switch it off)")
    if options.kv_connector and (rules.connectors_disable_hybrid or not options.kv_connector_supports_hybrid):
        reasons.append("a KV connector is configured that does not support groups")
    if chunked and (drafted or not allowed):
        reasons.append("the model has chunked local attention" + (" and a draft" if drafted else ""))
    if reasons and _has_windows(model):
        notes.append("the hybrid KV cache manager is off, because " + " and ".join(reasons))
    return not reasons


def _state_mode(model: ModelSpec, options: Options, rules: Rules, *, caching: bool) -> StateMode:
    """Return how many states a request keeps (``MambaModelConfig``)."""
    kinds = {layer.cache.kind for layer in model.layers if isinstance(layer.cache, StateCache)}
    if not kinds:
        return StateMode.NONE
    if rules.state_blocks_by_length:
        return StateMode.ALL
    if not rules.state_modes:
        return StateMode.ONE
    if not caching:
        return StateMode.NONE
    mode = options.mamba_cache_mode
    if mode == "all" and not rules.all_mode:
        raise UsageError("the state cache mode `all` was removed in vLLM 0.32", hint="use `align`")
    if mode in ("align", "all"):
        return StateMode(mode)
    prefers_all = rules.prefers_all_mode and kinds <= {StateKind.MAMBA1, StateKind.MAMBA2}
    return StateMode.ALL if prefers_all else StateMode.ALIGN
