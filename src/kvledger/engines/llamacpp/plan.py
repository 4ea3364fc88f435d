"""llama.cpp's server: every cell is allocated at start-up, from flags and not from free memory.

Cells of a strip, strips and window cells follow from flags alone (:mod:`.context`), bytes of a cell from the model and
the cache types (:mod:`.caches`). Memory decides only whether the server starts. Checked to the digit against
llama-server b11434 with 36 sets of flags on six models, and against b9093 with eight (``tests/data/llamacpp-*``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import Part, build_ranks
from kvledger.engines.llamacpp.caches import CacheTypes, find_types, make_parts
from kvledger.engines.llamacpp.context import Context, find_context, pad
from kvledger.engines.llamacpp.lines import make_lines
from kvledger.engines.llamacpp.settings import Build, Flags, read_build, read_flags
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory, Plan, StartFailure
from kvledger.engines.settings import reject
from kvledger.errors import UsageError
from kvledger.ledger import Accuracy
from kvledger.model import LatentCache, ModelSpec
from kvledger.units import GIB, MIB, agree, counted

__all__ = ["make_plan", "model_memory"]

_DEVICES = {"cuda": "CUDA0", "cpu": "CPU", "metal": "MTL0", "vulkan": "Vulkan0", "rocm": "ROCm0"}


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what llama-server allocates; ``memory`` only decides whether it starts.

    Raises:
        UsageError: A flag does not exist, or flags contradict each other.
        ModelError: The rule for a layer is not known.
    """
    reject(deployment, tp=1, pp=1, dcp=1, pcp=1, dp=1, block_tokens=None, prefix_caching=None, speculative_tokens=0)
    build = read_build(deployment.version)
    flags = read_flags(deployment)
    types = find_types(deployment, flags)
    context = find_context(model, deployment, flags, build)
    parts = make_parts(model, context, flags, types)
    _check_types(model, flags, types)
    device = _DEVICES.get(deployment.device, deployment.device)
    stages = [range(2**31)]
    return Plan(
        deployment=_resolve(deployment, context, types),
        storage=types.storage,
        pools=tuple(part.pool for part in parts),
        claims=tuple(part.claim for part in parts),
        ranks=build_ranks(parts, stages=stages, deployment=deployment, memory=memory, storage=types.storage),
        lines=make_lines(parts, model=model, context=context, flags=flags, types=types, build=build, device=device),
        accuracy=Accuracy.DERIVED if build.verified else Accuracy.MODELLED,
        failure=_find_failure(model, parts, memory, context=context, flags=flags, types=types),
        notes=_notes(context, flags, build, parts),
        length_limit_tokens=context.n_ctx_slot,
        request_limit=context.slots,
    )


def _check_types(model: ModelSpec, flags: Flags, types: CacheTypes) -> None:
    latent = flags.mla_tensors and any(isinstance(layer.cache, LatentCache) for layer in model.layers)
    if latent and types.key_name != types.value_name:
        raise UsageError(
            f"llama.cpp: model does not support different K ({types.key_name}) and V ({types.value_name}) cache types",
            hint="give `kv_dtype`, or the same type for both",
        )


def _resolve(deployment: Deployment, context: Context, types: CacheTypes) -> Deployment:
    options = dict(deployment.options)
    options |= {
        "ctx_size": str(context.n_ctx),
        "parallel": str(context.slots),
        "kv_unified": "on" if context.unified else "off",
        "ubatch_size": str(context.ubatch_tokens),
        "cache_type_k": types.key_name,
        "cache_type_v": types.value_name,
    }
    return replace(
        deployment,
        kv_dtype=types.key.name,
        block_tokens=1,
        max_model_len=context.n_ctx_slot,
        max_num_seqs=context.slots,
        max_num_batched_tokens=context.batch_tokens,
        prefix_caching=True,
        options=options,
    )


def _count_bytes(parts: Sequence[Part], types: CacheTypes) -> int:
    return sum(part.pool.units * part.rank_bytes(range(2**31), types.storage) for part in parts)


def _find_failure(
    model: ModelSpec, parts: Sequence[Part], memory: KvMemory, *, context: Context, flags: Flags, types: CacheTypes
) -> StartFailure | None:
    needed = _count_bytes(parts, types)
    if needed <= memory.smallest_bytes:
        return None

    def fits(strips: int) -> bool:
        cells = strips * 256
        smaller = replace(context, n_ctx_seq=cells, n_ctx=cells * context.streams)
        return _count_bytes(make_parts(model, smaller, flags, types), types) <= memory.smallest_bytes

    low, high = 0, pad(context.n_ctx_seq) // 256
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return StartFailure(
        text="failed to allocate buffer for kv cache",
        needed_bytes=needed,
        available_bytes=memory.smallest_bytes,
        largest_max_model_len=min(low * 256, context.n_ctx_train),
    )


def _notes(context: Context, flags: Flags, build: Build, parts: Sequence[Part]) -> tuple[str, ...]:
    notes = []
    if build.quiet and flags.log_verbosity < 4:
        notes.append("none of the `-lv 4` lines appear at the default verbosity 3; start the server with `-lv 4`")
    if not build.verified:
        notes.append(
            f"b{build.number} is older than the sources read: before about b6900 contexts were padded by other rules "
            "and the lines had other names, so cells may differ by up to 255 a strip"
        )
    if context.from_model:
        notes.append(
            f"no context was given, so the training context of {context.n_ctx_train} is taken; `--fit` (on by "
            "default) lowers it, to 4096 at the least, when the device has too little memory"
        )
    lost = context.n_ctx_seq - context.n_ctx_slot
    if lost > 0 and not context.unified:
        notes.append(
            f"{counted(lost, 'cell')} of each of {counted(context.slots, 'strip')} {agree(lost, 'lies', 'lie')} "
            "beyond what a slot may use"
        )
    if context.unified and context.slots > 1:
        notes.append(
            f"{counted(context.slots, 'slot')} share {counted(context.n_ctx, 'cell')}: the context is not per request"
        )
    if any(part.claim.name == "full" and part.claim.window_tokens for part in parts):
        notes.append("every layer has the same window; llama.cpp then stores the whole context")
    return tuple(notes)


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:  # noqa: ARG001
    """Estimate what one device leaves for the caches: its memory minus weights, compute buffers and the context.

    llama.cpp reserves no share: the rest is what the caches may take before allocation fails.
    """
    if budget.utilisation_ratio is not None:
        raise UsageError("llama.cpp has no memory fraction", hint="leave `utilisation_ratio` out")
    terms = (
        given_term("weights", budget.weights_bytes),
        term(
            "compute buffers",
            budget.activation_bytes,
            (100 * MIB, 500 * MIB, 2 * GIB),
            "the graph of one ubatch; `memory breakdown` prints it at exit",
        ),
        term("device context", budget.non_torch_bytes, (200 * MIB, 500 * MIB, GIB), "driver and libraries"),
    )
    return leave_rest(
        budget.total_bytes, terms, source="device memory minus weights, compute buffers and the device's context"
    )
