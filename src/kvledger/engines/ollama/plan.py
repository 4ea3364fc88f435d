"""Ollama: a context chosen by memory, times the parallel requests, in a llama.cpp server with split strips.

``llm/llama_server.go`` (2026-08-21) starts ``llama-server -c num_ctx x parallel -np parallel``, so each of the parallel
requests owns a strip of ``num_ctx`` cells, allocated when the model is loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvledger.engines import llamacpp
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory, Plan, PrintedLine
from kvledger.engines.settings import Reader, boolean, choice, integer, read_settings, reject, size
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec
from kvledger.units import GIB

__all__ = ["find_context", "make_plan", "model_memory"]

BUILD = "b11434"
"""The llama.cpp whose rules are taken; Ollama does not say which one it carries."""

_CONTEXTS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))
_VERSION = re.compile(r"\s*(?:v?\d{1,3}(?:\.\d{1,5}){1,3}(?:[-+.]\w{0,20})?|20\d\d-\d\d(?:-\d\d)?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    num_ctx: int | None = None
    num_parallel: int | None = None
    kv_cache_type: str = "f16"
    flash_attention: bool = True
    total_vram: int | None = None
    num_batch: int = 512


_READERS: dict[str, Reader] = {
    "num_ctx": integer,
    "num_parallel": integer,
    "kv_cache_type": choice("f16", "q8_0", "q4_0"),
    "flash_attention": boolean,
    "total_vram": size,
    "num_batch": integer,
}


def find_context(total_vram_bytes: int) -> int:
    """Return the default context of a machine: 262,144 from 47 GiB on, 32,768 from 23 GiB on, else 4,096 tokens.

    >>> find_context(24 * 2**30)
    32768
    """
    return next(tokens for from_bytes, tokens in _CONTEXTS if total_vram_bytes >= from_bytes)


def _read(deployment: Deployment) -> _Settings:
    if _VERSION.fullmatch(deployment.version) is None:
        raise UsageError(
            f"`{deployment.version[:40]}` is not a version of Ollama", hint="write it as `0.12.3` or `2026-08`"
        )
    settings = read_settings(deployment, _Settings, _READERS)
    if settings.num_ctx is not None and deployment.max_model_len is not None:
        raise UsageError("`num_ctx` and `max_model_len` are both given", hint="give one of them")
    if settings.num_parallel is not None and deployment.max_num_seqs is not None:
        raise UsageError("`num_parallel` and `max_num_seqs` are both given", hint="give one of them")
    return settings


def _choose(model: ModelSpec, deployment: Deployment, settings: _Settings) -> tuple[int, list[PrintedLine]]:
    """Return the context of one request, and the line Ollama prints when memory decides."""
    if model.max_model_len is None:
        raise ModelError("the training context of this model is not known", hint="give the model's full config")
    train = model.max_model_len.tokens
    given = settings.num_ctx or deployment.max_model_len
    if given:
        return min(given, train), []
    if settings.total_vram is None:
        raise UsageError(
            "without `num_ctx`, Ollama chooses the context by the memory of all GPUs, which is not given",
            hint="add `--set num_ctx=32768` or `--set total_vram=24GiB`",
        )
    chosen = find_context(settings.total_vram)
    line = PrintedLine(
        text=f'msg="vram-based default context" total_vram="{settings.total_vram / GIB:.1f} GiB" '
        f"default_num_ctx={chosen}",
        meaning="the context of each parallel request, reserved in full when the model is loaded",
        accuracy=Accuracy.DERIVED,
    )
    return min(chosen, train), [line]


def make_plan(model: ModelSpec, deployment: Deployment, memory: KvMemory) -> Plan:
    """Return what the llama.cpp server that Ollama starts allocates.

    Raises:
        UsageError: A setting does not exist, or neither the context nor the memory that decides it is given.
        ModelError: The rule for a layer is not known.
    """
    reject(deployment, tp=1, pp=1, dcp=1, pcp=1, dp=1, block_tokens=None, prefix_caching=None, speculative_tokens=0)
    settings = _read(deployment)
    context, chosen = _choose(model, deployment, settings)
    parallel = settings.num_parallel or deployment.max_num_seqs or 1
    options = {
        "ctx_size": str(context * parallel),
        "parallel": str(parallel),
        "batch_size": str(settings.num_batch),
        "ubatch_size": str(settings.num_batch),
        "flash_attn": "on" if settings.flash_attention else "off",
        "log_verbosity": "4",
    }
    kv_type = deployment.kv_dtype if deployment.kv_dtype != "auto" else settings.kv_cache_type
    server = replace(
        deployment,
        engine="llama.cpp",
        version=BUILD,
        kv_dtype=kv_type,
        max_model_len=None,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        options=options,
    )
    plan = llamacpp.make_plan(model, server, memory)
    resolved = dict(deployment.options) | {"num_ctx": str(context), "num_parallel": str(parallel)}
    return replace(
        plan,
        deployment=replace(plan.deployment, engine=deployment.engine, version=deployment.version, options=resolved),
        lines=(*chosen, *(replace(line, level="INFO") for line in plan.lines)),
        accuracy=Accuracy.MODELLED,
        notes=(*plan.notes, *_notes(context, parallel)),
    )


def _notes(context: int, parallel: int) -> tuple[str, ...]:
    return (
        f"llama.cpp {BUILD} is taken for the server inside; Ollama does not print which build it carries",
        f"{parallel} strip(s) of {context:,} tokens are reserved when the model is loaded, whatever the requests need",
        "some architectures are forced to one parallel request; Ollama logs it when it does",
    )


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:
    """Estimate what the devices leave for the caches, as llama.cpp does."""
    return llamacpp.model_memory(model, replace(deployment, engine="llama.cpp", version=BUILD), budget)
