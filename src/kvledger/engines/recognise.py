"""Which engine a text comes from, what kind of text it is, and the version where it says it; by content alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from kvledger.engines.facts import Engine

__all__ = ["Recognition", "TextKind", "recognise"]

_HEAD = 1 << 19
"""Characters that are looked at."""
_MAX_COUNT = 50
_MOST_EVIDENCE = 5


class TextKind(StrEnum):
    """What a text is."""

    METRICS = "metrics"
    """Prometheus text of an engine."""
    LOG = "log"
    SLOTS = "slots"
    """llama.cpp ``/slots``."""
    PROPS = "props"
    """llama.cpp ``/props``."""
    ITERATIONS = "iterations"
    """TensorRT-LLM iteration statistics."""
    LOADS = "loads"
    """SGLang ``/v1/loads``."""
    RUNNING = "running"
    """Ollama ``/api/ps``."""
    PROMETHEUS_ANSWER = "prometheus-answer"
    """JSON of the Prometheus HTTP API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """What a text was recognised as."""

    kind: TextKind
    engine: Engine | None
    """None when the kind is known but not whose it is (a Prometheus answer)."""
    version: str | None = None
    evidence: tuple[str, ...] = ()
    """The phrases that decided, at most five."""


_METRICS = re.compile(
    r"^(?:# (?:HELP|TYPE) )?(?:(?P<vllm>(?:ray_)?vllm[:_])|(?P<sglang>sglang[:_])|(?P<llamacpp>llamacpp[:_])"
    r"|(?P<tgi>tgi_)|(?P<tensorrt>trtllm[_:]|tensorrt_llm:|nv_trt_llm_)|(?P<lmdeploy>lmdeploy[:_])"
    r"|(?P<transformers>kvledger_transformers_))[a-z]",
    re.MULTILINE,
)
_METRIC_ENGINES = {
    "vllm": Engine.VLLM,
    "sglang": Engine.SGLANG,
    "llamacpp": Engine.LLAMACPP,
    "tgi": Engine.TGI,
    "tensorrt": Engine.TENSORRT_LLM,
    "lmdeploy": Engine.LMDEPLOY,
    "transformers": Engine.TRANSFORMERS,
}
# The more specific phrases of each engine; a phrase that two engines share is not among them.
_LOGS: dict[Engine, re.Pattern[str]] = {
    Engine.VLLM: re.compile(
        r"[A-Z]{2,8}(?: \+ host)? KV cache size: [\d,]+ tokens|Maximum concurrency for [\d,]+ tokens per request"
        r"|# \w{2,8} blocks: \d+|Available KV cache memory: |Avg prompt throughput: .{0,200}?Running: |LLM engine \(v"
        r"|vLLM (?:API|engine|instance)|Using max model len \d"
        r"|num_gpu_blocks_override|attention block size to \d+|Padding mamba page size"
        r"|KV cache is needed|maximum number of tokens that can be stored in KV cache|padding layers, may waste"
        r"|Model loading took [\d.]+ Gi?B|Loading model weights took [\d.]+ GB|reserved for KV Cache is [\d.]+GiB"
        r"|kv cache memory in use is|Free memory on device \(|\(EngineCore(?:_DP\d+)? pid=|Hybrid KV cache manager"
        r"|is preempted by (?:PreemptionMode|\w{0,20}recompute|\w{0,20}swap)|total_num_cumulative_preemption"
        r"|exceeds the capacity of block_manager|available memory for the cache blocks|vllm[./]"
    ),
    Engine.SGLANG: re.compile(
        r"KV Cache is allocated\.|(?:Prefill|Decode) batch[.,] |Load weight end\.|Memory pool end\."
        r"|max_total_num_tokens=|SWAKVPool|Mamba Cache is allocated|server_args=|KV Cache limits by --mem-fraction"
        r"|Using KV cache dtype: |\bsglang\b|Post-capture KV sizing|--mem-fraction-static|mem_fraction_static"
        r"|#retracted_reqs: "
    ),
    Engine.LLAMACPP: re.compile(
        r"llama_kv_cache|llama_memory_recurrent|llama_context: |llama_new_context_with_model|llama_model_loader"
        r"|(?:KV|kv) self size|llama_server: |\bslot\s+\w+: id|update_slots"
        r"|Context size has been exceeded|n_ctx_slot = \d"
    ),
    Engine.OLLAMA: re.compile(
        r"\bollama\b|OLLAMA_[A-Z_]+|level=[A-Z]+ source=\w+\.go:\d+|msg=\"(?:kv cache|model weights)\" device="
    ),
    Engine.TGI: re.compile(
        r"text_generation_(?:launcher|router|client|server)|KV-cache blocks: \d+, size: |Setting max batch total tokens"
        r"|Not enough memory to handle .{0,40}tokens|--max-batch-(?:prefill|total)-tokens"
    ),
    Engine.TENSORRT_LLM: re.compile(
        r"\[TensorRT-LLM\]|\[TRT-LLM\]|paged KV cache|TRTGptModel|k/v cache|TensorRT[ -]LLM version|TensorRT-managed"
    ),
    Engine.LMDEPLOY: re.compile(r"\blmdeploy\b|\[TM\]\[|\[BlockManager\]|CacheEngine with config|Avg thr \(in/out\)"),
    Engine.TRANSFORMERS: re.compile(
        r"Paged cache initialized: self\.|PagedAttentionCache|Memory available for cache allocation"
    ),
}
_TORCH = re.compile(r"Tried to allocate [\d.]{1,12} [KMG]iB[.;( ]{1,3}(?:GPU \d|total capacity)")
_VERSIONS: dict[Engine, re.Pattern[str]] = {
    Engine.VLLM: re.compile(
        r"(?:vLLM API server version |█  version |LLM engine \(v|\bvLLM version )(\d{1,4}\.\d{1,4}[\w.+-]{0,60})"
    ),
    Engine.SGLANG: re.compile(r"\bsglang(?:==| version[: ]{1,3}| v)(\d{1,4}\.\d{1,4}[\w.+-]{0,40})"),
    Engine.LLAMACPP: re.compile(r"\bbuild(?:_info)?[:= ]{1,3}(b?[1-9]\d{2,7})[ (-]"),
    Engine.OLLAMA: re.compile(r"Listening on [^\n]{1,80} \(version (\d[\w.+-]{1,40})\)"),
    Engine.TENSORRT_LLM: re.compile(r"TensorRT[ -]LLM version: (\d[\w.+-]{1,40})"),
    Engine.LMDEPLOY: re.compile(r"\blmdeploy(?:==| version[: ]{1,3})(\d[\w.+-]{1,40})"),
}


def recognise(text: str) -> Recognition | None:
    """Return what the beginning of a text is, or None when no engine is known by it.

    >>> recognise("# TYPE vllm:num_requests_running gauge").engine
    <Engine.VLLM: 'vllm'>
    """
    head = text[:_HEAD].replace("\u00a0", " ").lstrip("\ufeff \t\r\n")
    if head[:1] in "[{" and head:
        found = _recognise_json(head, whole=len(text) <= _HEAD)
        if found is not None:
            return found
    found = _recognise_metrics(head)
    if found is not None and len(found.evidence) == _MOST_EVIDENCE:  # no log has more; a scrape is recognised often
        return found
    log = _recognise_log(head)
    if found is None or (log is not None and len(log.evidence) > len(found.evidence)):
        return log
    return found


def _recognise_metrics(head: str) -> Recognition | None:
    counts: dict[str, list[str]] = {}
    for match in _METRICS.finditer(head):
        counts.setdefault(match.lastgroup or "", []).append(match[0])
        if len(counts[match.lastgroup or ""]) >= _MAX_COUNT:
            break
    if not counts:
        return None
    name, evidence = max(counts.items(), key=lambda item: len(item[1]))
    return Recognition(
        kind=TextKind.METRICS, engine=_METRIC_ENGINES[name], evidence=tuple(dict.fromkeys(evidence))[:_MOST_EVIDENCE]
    )


def _recognise_log(head: str) -> Recognition | None:
    found: dict[Engine, tuple[int, list[str]]] = {}
    for engine, pattern in _LOGS.items():
        phrases: list[str] = []
        for hit in pattern.finditer(head):
            phrases.append(hit[0][:80])
            if len(phrases) >= _MAX_COUNT:
                break
        if phrases:
            found[engine] = (len(phrases), list(dict.fromkeys(phrases)))
    if not found:
        return _recognise_torch(head)
    if Engine.OLLAMA in found and Engine.LLAMACPP in found:  # it carries llama.cpp inside
        del found[Engine.LLAMACPP]
    engine = max(found, key=lambda key: (min(len(found[key][1]), 5), found[key][0]))
    version = _VERSIONS.get(engine)
    match = version.search(head) if version is not None else None
    return Recognition(
        kind=TextKind.LOG,
        engine=engine,
        version=match[1] if match else None,
        evidence=tuple(found[engine][1][:_MOST_EVIDENCE]),
    )


def _recognise_torch(head: str) -> Recognition | None:
    """Take an error of PyTorch's allocator alone, which no engine signs, as the log of the library nearest to it."""
    hit = _TORCH.search(head)
    if hit is None:
        return None
    return Recognition(kind=TextKind.LOG, engine=Engine.TRANSFORMERS, evidence=(hit[0][:80],))


def _recognise_json(head: str, *, whole: bool) -> Recognition | None:
    """Look at JSON answers; a text longer than the head is told by its first names."""
    try:
        value = json.loads(head) if whole else None
    except (ValueError, RecursionError):
        value = None
    first = value[0] if isinstance(value, list) and value else value
    names = set(first) if isinstance(first, dict) else set(re.findall(r'"(\w{2,40})":', head[:4000]))
    if "kvCacheStats" in names or {"iterLatencyMS", "numActiveRequests"} <= names:
        return Recognition(kind=TextKind.ITERATIONS, engine=Engine.TENSORRT_LLM, evidence=("kvCacheStats",))
    if {"id", "n_ctx", "is_processing"} <= names or {"id", "n_ctx", "state", "id_task"} <= names:
        return Recognition(kind=TextKind.SLOTS, engine=Engine.LLAMACPP, evidence=("n_ctx", "is_processing"))
    if {"default_generation_settings", "total_slots"} <= names:
        build = first.get("build_info") if isinstance(first, dict) else None
        version = build.partition("-")[0][:40] if isinstance(build, str) else None
        return Recognition(kind=TextKind.PROPS, engine=Engine.LLAMACPP, version=version, evidence=("total_slots",))
    if isinstance(value, dict):
        found = _recognise_lists(value)
        if found is not None:
            return found
    if {"status", "data"} <= names or "resultType" in names:
        return Recognition(kind=TextKind.PROMETHEUS_ANSWER, engine=None, evidence=("resultType",))
    return None


def _recognise_lists(value: dict[str, object]) -> Recognition | None:
    """Look at objects that are known by what their list holds."""
    loads, models = value.get("loads"), value.get("models")
    if isinstance(loads, list) and loads and isinstance(loads[0], dict) and "num_used_tokens" in loads[0]:
        version = value.get("version")
        told = version[:40] if isinstance(version, str) else None
        return Recognition(kind=TextKind.LOADS, engine=Engine.SGLANG, version=told, evidence=("num_used_tokens",))
    if not isinstance(models, list) or set(value) != {"models"}:
        return None
    if models and not (isinstance(models[0], dict) and {"size_vram", "digest"} & set(models[0])):
        return None
    return Recognition(kind=TextKind.RUNNING, engine=Engine.OLLAMA, evidence=("models",))
