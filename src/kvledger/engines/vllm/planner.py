"""The planner of vLLM: a model, a deployment and KV bytes to what the engine allocates and prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvledger.engines.plan import (
    Deployment,
    KvMemory,
    Plan,
    Pool,
    PrintedLine,
    RankPlan,
    StartFailure,
    UnitContent,
)
from kvledger.engines.vllm.demand import POOL, Demand
from kvledger.engines.vllm.grouping import Group
from kvledger.engines.vllm.layers import BuiltLayers, build_layers
from kvledger.engines.vllm.lines import (
    alignment_lines,
    error_text,
    fit_line,
    group_lines,
    memory_line,
    override_line,
    size_lines,
)
from kvledger.engines.vllm.settings import Settings, resolve_settings
from kvledger.engines.vllm.sizing import Limits, Sizing, Worker, size_pool
from kvledger.engines.vllm.v0 import plan_v0
from kvledger.errors import UsageError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec
from kvledger.units import counted

__all__ = ["make_plan"]


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what vLLM allocates for a model.

    Args:
        model: The model.
        deployment: Settings; ``version`` decides the rules, ``options`` are those of
            :class:`~kvledger.engines.vllm.options.Options`.
        memory: Bytes a rank may spend: one figure, one a pipeline stage, or one a worker (stage by stage).

    Raises:
        UsageError: A setting does not exist in this version.
        ModelError: This version refuses the model, or its rule is not known.
    """
    settings = resolve_settings(model, deployment)
    if not settings.v1:
        return plan_v0(model, settings, memory)
    layers = build_layers(model, settings)
    workers = _workers(memory, settings)
    sizing = size_pool(layers.stages, workers, settings.rules, _demand(settings), limits=_limits(settings))
    failure = None
    if sizing.shortage is not None:
        failure = StartFailure(
            text=error_text(sizing.shortage, settings.rules, max_model_len=sizing.max_model_len),
            needed_bytes=sizing.shortage.needed_bytes,
            available_bytes=sizing.shortage.available_bytes,
            largest_max_model_len=sizing.shortage.largest_length,
        )
    return Plan(
        deployment=_resolved(settings, layers, sizing),
        storage=layers.storage,
        pools=(Pool(name=POOL, units=sizing.blocks, unit_name="block", null_units=1),),
        claims=sizing.claims,
        ranks=_ranks(sizing, workers, settings),
        lines=_lines(layers, sizing, workers, settings, memory.accuracy),
        accuracy=memory.accuracy,
        printed_tokens=sizing.printed_tokens,
        printed_concurrency=sizing.concurrency,
        failure=failure,
        notes=settings.notes,
        request_limit=settings.deployment.max_num_seqs,
    )


def _demand(settings: Settings) -> Demand:
    deployment = settings.deployment
    return Demand(
        in_flight_tokens=settings.in_flight_tokens,
        token_shards=deployment.dcp * (deployment.pcp if settings.rules.shards_over_pcp else 1),
        state_mode=settings.state_mode,
        all_mode_speculative=settings.rules.all_mode_speculative,
    )


def _limits(settings: Settings) -> Limits:
    deployment = settings.deployment
    if settings.options.auto_max_model_len and not settings.rules.auto_fit:
        raise UsageError(
            f"vLLM {settings.version} cannot fit the length itself: `--max-model-len auto` came with 0.14",
            hint="use `--fit max-model-len`",
        )
    return Limits(
        max_model_len=settings.max_model_len,
        auto_fit=settings.options.auto_max_model_len,
        blocks_override=settings.options.num_gpu_blocks_override,
        hybrid=settings.hybrid,
        shards=deployment.dcp * deployment.pcp,
    )


def _workers(memory: KvMemory, settings: Settings) -> list[Worker]:
    given = memory.per_rank_bytes
    stages, tp = settings.deployment.pp, settings.deployment.tp
    if len(given) == 1:
        given = given * stages
    if len(given) == stages:
        return [Worker(stage=i, kv_bytes=value) for i, value in enumerate(given)]
    if len(given) == stages * tp:
        return [Worker(stage=i // tp, kv_bytes=value) for i, value in enumerate(given)]
    raise UsageError(
        f"{counted(len(given), 'memory figure')} do not match {counted(stages, 'stage')} of {counted(tp, 'rank')}",
        hint="give one figure, one a stage, or one a rank",
    )


def _ranks(sizing: Sizing, workers: Sequence[Worker], settings: Settings) -> tuple[RankPlan, ...]:
    deployment = settings.deployment
    per_stage = len(workers) // deployment.pp
    copies = deployment.tp // per_stage * deployment.pcp * deployment.dp
    ranks: dict[tuple[int, int], int] = {}
    for worker in workers:
        key = (worker.stage, worker.kv_bytes)
        ranks[key] = ranks.get(key, 0) + copies
    return tuple(
        RankPlan(
            name=f"stage {stage}" if deployment.pp > 1 else "rank",
            count=count,
            kv_bytes=kv_bytes,
            unit_bytes={POOL: sizing.unit_bytes[stage]},
            contents=tuple(
                _content(group, claim.name, unit_bytes=sizing.unit_bytes[stage], shards=_shards(group, settings))
                for group, claim in zip(sizing.stages[stage], sizing.claims, strict=True)
            ),
        )
        for (stage, kv_bytes), count in ranks.items()
    )


def _shards(group: Group, settings: Settings) -> int:
    deployment = settings.deployment
    ranks = deployment.dcp * (deployment.pcp if settings.rules.shards_over_pcp else 1)
    return ranks if group.specs and group.specs[0].shared_by_dcp else 1


def _content(group: Group, name: str, *, unit_bytes: int, shards: int) -> UnitContent:
    payload = sum(spec.payload_bytes for spec in group.specs)
    return UnitContent(
        claim=name,
        payload_bytes=payload,
        page_padding_bytes=group.page_bytes - payload,
        layer_padding_bytes=unit_bytes - group.page_bytes,
        distinct_bytes=sum(spec.distinct_bytes for spec in group.specs) * shards,
    )


def _resolved(settings: Settings, layers: BuiltLayers, sizing: Sizing) -> Deployment:
    return replace(settings.deployment, block_tokens=layers.block_tokens, max_model_len=sizing.max_model_len)


def _lines(
    layers: BuiltLayers, sizing: Sizing, workers: Sequence[Worker], settings: Settings, known: Accuracy
) -> tuple[PrintedLine, ...]:
    rules, deployment = settings.rules, settings.deployment
    lines: list[PrintedLine] = []
    if layers.alignment is not None:
        lines.extend(alignment_lines(layers.alignment))
    if settings.version >= (0, 9) and deployment.device != "cpu":
        lines.extend(memory_line(kv_bytes, rules, known) for kv_bytes in dict.fromkeys(w.kv_bytes for w in workers))
    lines.extend(group_lines(sizing, rules))
    override = settings.options.num_gpu_blocks_override
    if override is not None:
        lines.extend(override_line(blocks, override) for blocks in dict.fromkeys(sizing.profiled_blocks))
    if sizing.shortage is not None:
        return tuple(lines)
    if settings.options.auto_max_model_len:
        limiting = min(workers, key=lambda w: w.kv_bytes // sizing.unit_bytes[w.stage])
        null = sizing.unit_bytes[limiting.stage] if rules.check_keeps_null_block else 0
        lines.append(
            fit_line(
                sizing,
                rules,
                asked=settings.max_model_len,
                checked_bytes=limiting.kv_bytes - null,
                device=deployment.device,
            )
        )
    sizes = size_lines(sizing, rules, device=deployment.device, shards=(deployment.dcp, deployment.pcp))
    lines.extend(replace(line, accuracy=known) if known is Accuracy.MODELLED else line for line in sizes)
    return tuple(lines)
