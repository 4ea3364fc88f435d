"""From the options of ``size`` to its report: models, logs and devices are loaded here, planning is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvledger.cli.looking import look_at_plans
from kvledger.cli.sizing_log import GivenLog, read_given_log
from kvledger.cli.unused import find_given, unused_by_size
from kvledger.engines.log_pools import check_pools
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.registry import ENGINES, find_engine, load_planner
from kvledger.engines.size import Fit, SizeOutcome, SizeQuestion, answer_size
from kvledger.engines.vllm.log_blocks import derive_start_up
from kvledger.engines.vllm.logcheck import LogCheck, check_start_up, deployment_of, memory_of
from kvledger.errors import Error, UsageError
from kvledger.model import ModelSpec
from kvledger.model.by_hand import read_layers
from kvledger.model.gpus import find_gpu
from kvledger.report.size import EngineAnswer, SizeReport
from kvledger.sources.models import load_model
from kvledger.units import format_bytes, parse_bytes

__all__ = ["ask_size"]

_USUAL_BLOCK_TOKENS = 16
_LEAST_WEIGHTS_BYTES = 2**20
_HALF_A_PRINTED_GIB = 2**30 // 200


def ask_size(options: Mapping[str, Any]) -> SizeReport:
    """Load what the options name, plan it, and return what there is to show.

    Raises:
        Error: Something cannot be read, planned or combined.
    """
    if (options["weights"] or options["gpu_memory_utilization"]) and not options["gpu"]:
        raise UsageError("`--weights` and `--gpu-memory-utilization` need `--gpu`", hint="add `--gpu H100-80GB`")
    log = read_given_log(options)
    model = _model(options, log)
    asked = options["engine"] or (log.engine if log is not None else "vllm")
    engines = list(ENGINES) if asked == "all" else [find_engine(asked).name]
    if len(engines) > 1 and (options["settings"] or options["engine_version"]):
        raise UsageError(
            "`--set` and `--engine-version` belong to one engine, not to all", hint="name one with `--engine`"
        )
    gpu = find_gpu(options["gpu"]) if options["gpu"] else None
    if len(engines) == 1:
        outcome, check = _plan(engines[0], model, options, log)
        answers: tuple[EngineAnswer, ...] = (
            EngineAnswer(engine=engines[0], version=outcome.plan.deployment.version, outcome=outcome),
        )
        return SizeReport(
            model=model.name,
            answers=answers,
            log=check,
            notes=_notes(options, model, log),
            findings=look_at_plans(answers),
            gpu=gpu,
        )
    if options["kv_memory"]:
        _given_sizes(model, options)  # a size nobody can read is no engine's fault
    answers = tuple(_try(name, model, options) for name in engines)
    return SizeReport(
        model=model.name,
        answers=answers,
        notes=_notes(options, model),
        findings=look_at_plans(answers),
        gpu=gpu,
    )


def _model(options: Mapping[str, Any], log: GivenLog | None) -> ModelSpec:
    if (options["model"] is None) == (options["layers"] is None):
        raise UsageError(
            "give MODEL or `--layers`, one of them",
            hint="for example `kvledger size llama-3.1-8b`; `--list models` shows what is known by name",
        )
    if options["layers"] is None:
        return load_model(options["model"])
    longest = _length(options)[0] or (log.longest_tokens if log is not None else None)
    return read_layers(options["layers"], max_model_len=longest)


def _length(options: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Return --max-model-len as a number, and whether the engine should fit it."""
    text = options["max_model_len"]
    if text is None:
        return None, False
    if text.strip().lower() in ("auto", "-1"):
        return None, True
    digits = text.replace(",", "").replace("_", "").strip()
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits[:16]) <= 2**40:
        raise UsageError(f"`--max-model-len {text[:40]}` is no number of tokens", hint="write `32768` or `auto`")
    return int(digits[:16]), False


def _try(name: str, model: ModelSpec, options: Mapping[str, Any]) -> EngineAnswer:
    try:
        outcome, _ = _plan(name, model, options, None)
    except Error as error:
        return EngineAnswer(engine=name, version=ENGINES[name].latest, outcome=None, error=error)
    return EngineAnswer(engine=name, version=outcome.plan.deployment.version, outcome=outcome)


def _plan(
    name: str, model: ModelSpec, options: Mapping[str, Any], given: GivenLog | None
) -> tuple[SizeOutcome, LogCheck | None]:
    planner = load_planner(name)
    deployment = _on_gpu(_deployment(name, options, given), options["gpu"])
    check = None
    log = given.start_up if given is not None else None
    if log is not None:
        deployment = deployment_of(log, deployment)
    memory = None if given is not None and given.names_memory else _memory(name, model, deployment, options)
    if given is not None and given.facts is not None:
        deployment, check, memory = check_pools(model, deployment, given.facts)
    if log is not None and memory is None and not log.available:
        check, memory = derive_start_up(model, deployment, log)
    elif log is not None and (memory is None or options["kv_memory"]):
        log = log if memory is None else replace(log, available=(_rounded(memory, options["kv_memory"]),))
        check = check_start_up(model, deployment, log)
        memory = memory_of(log, check) if memory is None else memory
    fit = Fit(options["fit"]) if options["fit"] else None
    if memory is None and fit is None:
        fit = Fit.MEMORY
    question = SizeQuestion(
        model=model,
        deployment=deployment,
        memory=memory,
        length_tokens=options["length"],
        concurrency=options["concurrency"],
        fit=fit,
    )
    return answer_size(planner, question), check


def _rounded(memory: KvMemory, text: str) -> tuple[int, int]:
    """Return what a size given beside a log stands for: one in GiB was copied with two decimals."""
    half = 0 if text.strip().removesuffix("B").isdigit() else _HALF_A_PRINTED_GIB
    return max(0, memory.low_bytes - half), memory.high_bytes + half


def _on_gpu(deployment: Deployment, name: str | None) -> Deployment:
    """Tell vLLM's planner which device it is: its memory and its name decide defaults."""
    if name is None or deployment.engine != "vllm":
        return deployment
    gpu = find_gpu(name)
    known = {"device_memory_bytes": str(gpu.memory_bytes), "device_name": gpu.name}
    return replace(deployment, options={**known, **deployment.options})


def _deployment(name: str, options: Mapping[str, Any], log: GivenLog | None) -> Deployment:
    length, auto = _length(options)
    settings = dict(_setting(text) for text in options["settings"])
    if auto and name != "vllm":
        raise UsageError("only vLLM takes `--max-model-len auto`", hint="use `--fit max-model-len`")
    if auto:
        settings["auto_max_model_len"] = "true"
    version = options["engine_version"] or (log.version if log is not None else None) or ENGINES[name].latest
    caching = options["prefix_caching"]
    return Deployment(
        engine=name,
        version=version,
        device=options["device"],
        tp=options["tp"],
        pp=options["pp"],
        dcp=options["dcp"],
        pcp=options["pcp"],
        dp=options["dp"],
        kv_dtype=options["kv_dtype"],
        block_tokens=options["block_size"],
        max_model_len=length,
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        prefix_caching=None if caching is None else caching == "on",
        speculative_tokens=options["speculative_tokens"],
        options=settings,
    )


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"`--set {text[:60]}` is not NAME=VALUE", hint="for example `--set draft_layers=1`")
    return name.strip(), value


def _memory(name: str, model: ModelSpec, deployment: Deployment, options: Mapping[str, Any]) -> KvMemory | None:
    if options["kv_memory"] and options["gpu"]:
        raise UsageError("`--kv-memory` and `--gpu` both name the memory", hint="give one of them")
    if options["kv_memory"]:
        return KvMemory.given(*_given_sizes(model, options))
    if not options["gpu"]:
        return None
    gpu = find_gpu(options["gpu"])
    budget = GpuBudget(
        total_bytes=gpu.memory_bytes,
        weights_bytes=_weights(model, deployment, options),
        utilisation_ratio=options["gpu_memory_utilization"],
    )
    return load_planner(name).model_memory(model, deployment, budget)


def _sensible(text: str, option: str, least_bytes: int) -> int:
    """Read a size; refuse a bare number that is too small to mean bytes."""
    value = parse_bytes(text)
    number = text.strip()
    if number.isdigit() and value < least_bytes:
        raise UsageError(
            f"`{option} {number}` is {format_bytes(value)}, less than the {format_bytes(least_bytes)} below which a "
            "number alone is not taken as bytes: the unit may be missing",
            hint=f"write `{option} {number}GiB`, or `{option} {number}B` if bytes are meant",
        )
    return value


def _given_sizes(model: ModelSpec, options: Mapping[str, Any]) -> tuple[int, ...]:
    """Read --kv-memory; a bare number below what 16 tokens, the usual block, take on one rank is no size."""
    storage = model.storage(options["kv_dtype"])
    least = model.sequence_bytes(_USUAL_BLOCK_TOKENS, storage) // (options["tp"] * options["pp"])
    return tuple(_sensible(part, "--kv-memory", least) for part in options["kv_memory"].split(",")[:4096])


def _weights(model: ModelSpec, deployment: Deployment, options: Mapping[str, Any]) -> int:
    if options["weights"]:
        return _sensible(options["weights"], "--weights", _LEAST_WEIGHTS_BYTES)
    if model.parameters is None:
        raise UsageError(f"the weights of `{model.name}` are not known", hint="give `--weights 15GiB`, for one rank")
    bits = 8.0 * model.dtype.bytes
    if model.quantisation is not None and model.quantisation.weight_bits is not None:
        bits = model.quantisation.weight_bits
    return round(model.parameters.count * bits / 8 / (deployment.tp * deployment.pp))


def _notes(options: Mapping[str, Any], model: ModelSpec, given: GivenLog | None = None) -> tuple[str, ...]:
    notes = list(model.notes)
    log = given.start_up if given is not None else None
    if log is not None and log.version is None and not options["engine_version"]:
        rules = (
            f"{log.newest_version} were taken, the newest that words its lines so"
            if log.newest_version
            else f"{ENGINES['vllm'].latest} were taken"
        )
        notes.append(f"the log names no version: the rules of {rules}; `--engine-version` names it")
    if not any(options[name] for name in ("kv_memory", "gpu", "log", "fit")):
        notes.append("no memory was given, so the least that holds one request was taken; give `--kv-memory`")
    if options["gpu"] and not options["weights"]:
        notes.append("the weights were estimated from the parameters; give `--weights` for a closer estimate")
    fit = options["fit"] or (None if any(options[name] for name in ("kv_memory", "gpu", "log")) else Fit.MEMORY)
    return (*notes, *unused_by_size(find_given(), fit=fit))
