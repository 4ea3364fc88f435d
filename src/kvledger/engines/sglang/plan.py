"""SGLang: a budget of free memory, divided by the bytes of a token, in pages.

``budget = free after load - free before load * (1 - mem_fraction_static)``; ``tokens = budget // cell // page * page``;
then the minimum over ranks. Full-attention, sliding-window and state layers have pools of their own. One page more
than the tokens is allocated: page 0 takes the writes of padding.
"""

from __future__ import annotations

from dataclasses import replace

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import Part, SharedLayers, build_ranks, group_layers, split_stages
from kvledger.engines.parallel import check_heads, check_stages
from kvledger.engines.plan import Claim, ClaimKind, Deployment, GpuBudget, KvMemory, Plan, Pool, StartFailure
from kvledger.engines.settings import reject
from kvledger.engines.sglang.cells import Cells
from kvledger.engines.sglang.fraction import find_chunk_tokens, find_fraction
from kvledger.engines.sglang.lines import make_lines
from kvledger.engines.sglang.rules import Rules, StateRule, WindowRule, find_rules
from kvledger.engines.sglang.settings import Settings, find_page_tokens, read_server_settings
from kvledger.engines.sglang.sizing import Layers, PoolSizes, Sizing, Workload
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, LatentCache, Layer, ModelSpec, Role, StateCache
from kvledger.units import GIB, MIB

__all__ = ["make_plan", "model_memory"]


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what SGLang allocates; ``memory`` is the budget that states and tokens share.

    Raises:
        UsageError: A setting does not exist, or the version is not known.
        ModelError: The release does not serve this kind of model, or its rule is not known.
    """
    reject(deployment, dcp=1, pcp=1)
    check_heads(model, deployment)
    check_stages(model, deployment)
    rules = find_rules(deployment.version)
    settings = read_server_settings(deployment)
    layers = _sort_layers(model, deployment, rules, settings)
    page, page_note = find_page_tokens(deployment, settings, sparse=_is_sparse(model))
    if page > 1 and rules.read < (0, 4, 6):
        raise UsageError(f"SGLang {rules.asked} has pages of one token only")
    workload = _find_workload(model, deployment, rules, settings, layers, page)
    sizing = Sizing(
        rules=rules,
        settings=settings,
        cells=Cells(rules=rules, raw_record=settings.attention_backend == "trtllm_mla"),
        storage=replace(model.storage(deployment.kv_dtype), tp=deployment.tp),
        workload=workload,
        dtype_name=_name_dtype(model, deployment),
    )
    stages = split_stages(model, deployment.pp, rules.extra_layer, settings.layer_partition)
    per_stage = [layers.within(stage, last=stage is stages[-1]) for stage in stages]
    parts = _make_parts(layers, sizing, PoolSizes(full_tokens=0, window_tokens=0, state_slots=0))
    ranks = build_ranks(parts, stages=stages, deployment=deployment, memory=memory, storage=sizing.storage)
    sizes = sizing.count(per_stage, [rank.kv_bytes for rank in ranks])
    parts = _make_parts(layers, sizing, sizes)
    requests = _count_running(sizing, sizes, layers)
    notes = _notes(model, rules, layers, sizing, page_note)
    return Plan(
        deployment=_resolve(deployment, sizing, requests, settings),
        storage=sizing.cells.find_storage(model, sizing.storage),
        pools=tuple(part.pool for part in parts),
        claims=tuple(part.claim for part in parts),
        ranks=ranks,
        lines=make_lines(sizing, per_stage[0], sizes),
        accuracy=Accuracy.MODELLED if rules.between else Accuracy.DERIVED,
        printed_tokens=sizes.printed_tokens,
        failure=_find_failure(sizing, layers, sizes, memory),
        notes=notes,
        request_limit=requests,
    )


def _name_dtype(model: ModelSpec, deployment: Deployment) -> str:
    kv = model.storage(deployment.kv_dtype).kv
    if kv.name == "fp8":
        return "torch.float8_e5m2" if "e5m2" in deployment.kv_dtype.lower() else "torch.float8_e4m3fn"
    return f"torch.{kv.name}"


def _is_sparse(model: ModelSpec) -> bool:
    return any(isinstance(layer.cache, LatentCache) and layer.cache.indexer is not None for layer in model.layers)


def _has_two_pools(model: ModelSpec, rules: Rules, settings: Settings) -> bool:
    if settings.disable_hybrid_swa_memory:
        return False
    if rules.windows is WindowRule.FULL:
        return False
    if settings.hybrid_swa is not None:
        return settings.hybrid_swa
    if rules.windows is WindowRule.LAYERS:
        return not any("Llama4" in name for name in model.architectures)
    return any(name in rules.listed for name in model.architectures)


def _sort_layers(model: ModelSpec, deployment: Deployment, rules: Rules, settings: Settings) -> Layers:
    groups = group_layers(model.layers, shared=SharedLayers.ALLOCATE)
    if any(group.kind is ClaimKind.CROSS for group in groups):
        raise ModelError("how SGLang sizes encoder-decoder models is not known", hint="plan this model for vLLM")
    if _is_sparse(model) and not rules.sparse_attention:
        raise ModelError(f"SGLang {rules.asked} does not serve models with a sparse-attention indexer")
    capped = [group for group in groups if group.kind in (ClaimKind.WINDOW, ClaimKind.CHUNK)]
    states = tuple(layer for group in groups if group.kind is ClaimKind.STATE for layer in group.layers)
    if states and rules.states is StateRule.NONE:
        raise ModelError(f"SGLang {rules.asked} does not serve models with recurrent states")
    two_pools = bool(capped) and _has_two_pools(model, rules, settings)
    if two_pools and len(capped) > 1:
        raise ModelError("SGLang has one sliding-window pool, but the layers have windows of several lengths")
    full = [layer for group in groups if group.kind is ClaimKind.FULL for layer in group.layers]
    window = [layer for group in capped for layer in group.layers]
    if not two_pools:
        full, window = sorted(full + window, key=lambda layer: layer.index), []
    if not full and not window:
        raise ModelError("this model has no attention layers: SGLang's token pool would be empty")
    return Layers(
        full=tuple(full),
        window=tuple(window),
        state=states,
        draft=_find_draft(model, deployment, settings),
        window_tokens=(capped[0].cap_tokens or 0) if two_pools else 0,
    )


def _find_draft(model: ModelSpec, deployment: Deployment, settings: Settings) -> tuple[Layer, ...]:
    if not deployment.speculative_tokens:
        return ()
    if settings.draft_layers is None:
        return model.draft_layers
    first = next(layer for layer in model.layers if isinstance(layer.cache, AttentionCache | LatentCache))
    start = model.block_count
    return tuple(
        Layer(index=start + i, cache=first.cache, role=Role.DRAFT) for i in range(min(settings.draft_layers, 1024))
    )


def _find_workload(
    model: ModelSpec, deployment: Deployment, rules: Rules, settings: Settings, layers: Layers, page: int
) -> Workload:
    context = deployment.max_model_len or (model.max_model_len.tokens if model.max_model_len else None)
    if context is None:
        raise ModelError("the context length of this model is not known", hint="give `max_model_len`")
    radix = not settings.disable_radix_cache and deployment.prefix_caching is not False
    kinds = {layer.cache.kind for layer in layers.state if isinstance(layer.cache, StateCache)}
    radix = radix and (not kinds or rules.keeps_states_for_reuse(kinds))
    chunk = settings.chunked_prefill_size or deployment.max_num_batched_tokens or 8192
    return Workload(
        page_tokens=page,
        context_tokens=context,
        chunk_tokens=chunk,
        max_requests=deployment.max_num_seqs,
        radix=radix,
    )


def _make_parts(layers: Layers, sizing: Sizing, sizes: PoolSizes) -> tuple[Part, ...]:
    page = sizing.workload.page_tokens

    def token_part(name: str, kind: ClaimKind, of: tuple[Layer, ...], tokens: int, window: int | None) -> Part:
        claim = Claim(
            name=name,
            pool=name,
            kind=kind,
            layers=len(of),
            unit_tokens=page,
            window_tokens=window,
            reach_tokens=window,
            extra_units=1 if window else 0,
        )
        pool = Pool(name=name, units=tokens // page + 1, unit_name="page" if page > 1 else "token", null_units=1)
        return Part(
            pool=pool, claim=claim, layers=of, unit_bytes=lambda layer, store: page * sizing.cells.stored(layer, store)
        )

    parts = []
    if layers.full:
        parts.append(token_part("full", ClaimKind.FULL, layers.full, sizes.full_tokens, None))
    if layers.window:
        parts.append(token_part("swa", ClaimKind.WINDOW, layers.window, sizes.window_tokens, layers.window_tokens))
    if layers.draft:
        parts.append(token_part("draft", ClaimKind.FULL, layers.draft, sizes.printed_tokens, None))
    if layers.state:
        claim = Claim(
            name="mamba", pool="mamba", kind=ClaimKind.STATE, layers=len(layers.state), unit_tokens=0, state_units=1
        )
        pool = Pool(name="mamba", units=sizes.state_slots + 1, unit_name="slot", null_units=1)
        parts.append(Part(pool=pool, claim=claim, layers=layers.state, unit_bytes=sizing.cells.state))
    return tuple(parts)


def _count_running(sizing: Sizing, sizes: PoolSizes, layers: Layers) -> int:
    """``max_running_requests``: as given, else by the pool; states allow one request for about three slots."""
    work = sizing.workload
    by_pool = int(sizes.printed_tokens / work.context_tokens * 512)
    requests = work.max_requests or min(max(by_pool, 2048), 4096)
    if layers.state:
        extra = 2 if sizing.settings.mamba_extra_buffer else 0
        requests = min(requests, sizes.state_slots // (3 + extra if work.radix else 1))
    return max(0, requests)


def _resolve(deployment: Deployment, sizing: Sizing, requests: int, settings: Settings) -> Deployment:
    work = sizing.workload
    options = dict(deployment.options) | {"swa_full_tokens_ratio": str(settings.swa_full_tokens_ratio)}
    return replace(
        deployment,
        kv_dtype=sizing.storage.kv.name,
        block_tokens=work.page_tokens,
        max_model_len=work.context_tokens,
        max_num_seqs=requests or None,
        max_num_batched_tokens=work.chunk_tokens,
        prefix_caching=work.radix,
        options=options,
    )


def _find_failure(sizing: Sizing, layers: Layers, sizes: PoolSizes, memory: KvMemory) -> StartFailure | None:
    page = sizing.workload.page_tokens
    if sizes.printed_tokens > 0:
        shortest = layers.window_tokens + page
        if layers.window and sizing.rules.window_checked and shortest >= sizes.window_tokens:
            text = (
                f"SWA pool ({sizes.window_tokens:,} tokens) cannot hold even one request: the prefill admission floor "
                f"is sliding_window_size ({layers.window_tokens}) + page_size ({page}). Increase "
                "--swa-full-tokens-ratio or the total KV budget."
            )
            return StartFailure(
                text=text, needed_bytes=0, available_bytes=memory.smallest_bytes, largest_max_model_len=0
            )
        return None
    cell = sum(sizing.cells.charged(layer, sizing.storage) for layer in (*layers.full, *layers.window))
    return StartFailure(
        text="Not enough memory. Please try to increase --mem-fraction-static.",
        needed_bytes=cell * page,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=0,
    )


def _notes(model: ModelSpec, rules: Rules, layers: Layers, sizing: Sizing, page_note: str | None) -> tuple[str, ...]:
    notes = [page_note] if page_note else []
    if rules.between:
        notes.append(f"SGLang {rules.asked} was not read; the rules of {rules.read} are taken")
    stored = sum(sizing.cells.stored(layer, sizing.storage) for layer in layers.full)
    charged = sum(sizing.cells.charged(layer, sizing.storage) for layer in layers.full)
    if stored != charged:
        notes.append(
            f"the budget is divided by {charged} bytes a token but {stored} are allocated: the pool is "
            f"{stored / charged:.2f} times the budget"
        )
    if layers.draft and not rules.draft_charged:
        notes.append("the draft's pool has as many tokens and is allocated on top of the budget")
    if any(isinstance(layer.cache, AttentionCache) and layer.cache.cap_tokens for layer in layers.full):
        notes.append("this release stores the sliding-window layers of this architecture in full")
    if len(layers.full) + len(layers.window) > sum(
        1 for layer in model.caching_layers() if isinstance(layer.cache, AttentionCache | LatentCache)
    ):
        notes.append("SGLang allocates layers that share the cache of an earlier one")
    if layers.window:
        notes.append("while a prompt is prefilled, its chunk is held in the window pool on top of the window")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:
    """Estimate the budget of one rank from its device.

    ``free before load * fraction - weights``: free memory after load minus the share kept for activations.
    """
    rules = find_rules(deployment.version)
    settings = read_server_settings(deployment)
    latent = any(isinstance(layer.cache, LatentCache) for layer in model.layers)
    if budget.utilisation_ratio is not None:
        fraction, source = budget.utilisation_ratio, "given"
    else:
        fraction, source = find_fraction(
            budget.total_bytes, rules=rules, settings=settings, deployment=deployment, latent=latent
        )
    context = term(
        "device context", budget.non_torch_bytes, (400 * MIB, 900 * MIB, 2 * GIB), "driver, NCCL and other processes"
    )
    bounds = (context.low_bytes, context.value_bytes, context.high_bytes)
    kept = [int((budget.total_bytes - value) * (1 - fraction)) for value in bounds]
    activations = term(
        "kept for activations and CUDA graphs",
        None,
        (min(kept), kept[1], max(kept)),
        f"1 - mem_fraction_static {fraction} ({source}) of free memory",
    )
    terms = (given_term("weights", budget.weights_bytes), context, activations)
    chunk = find_chunk_tokens(budget.total_bytes // MIB, rules, settings, deployment)
    return leave_rest(
        budget.total_bytes,
        terms,
        source=f"mem_fraction_static {fraction} ({source}), chunked_prefill_size {chunk}",
    )
