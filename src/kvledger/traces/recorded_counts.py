"""Counters of ended requests of SGLang, LMDeploy and TGI, under the names that a recording is read by.

SGLang counts requests and their tokens also where it keeps no histograms of them (``num_requests_total``), LMDeploy
has vLLM's names. TGI observes the length of a prompt when the request comes and that of the output when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.engines.facts import Engine, EngineSnapshot, HistogramReading
from kvledger.engines.quantity import Quantity
from kvledger.engines.vllm.metrics import VllmEngine

__all__ = ["read_counts"]

_NAMES: Mapping[Engine, Mapping[str, str]] = {
    Engine.SGLANG: {
        "sglang:prompt_tokens_histogram": "request_prompt_tokens",
        "sglang:generation_tokens_histogram": "request_generation_tokens",
        "sglang:e2e_request_latency_seconds": "e2e_request_latency_seconds",
    },
    Engine.LMDEPLOY: {
        "lmdeploy:request_prompt_tokens": "request_prompt_tokens",
        "lmdeploy:request_generation_tokens": "request_generation_tokens",
        "lmdeploy:request_params_max_tokens": "request_params_max_tokens",
        "lmdeploy:e2e_request_latency_seconds": "e2e_request_latency_seconds",
    },
    Engine.TGI: {
        "tgi_request_input_length": "request_prompt_tokens",
        "tgi_request_generated_tokens": "request_generation_tokens",
        "tgi_request_max_new_tokens": "request_params_max_tokens",
        "tgi_request_duration": "e2e_request_latency_seconds",
    },
}


def read_counts(snapshot: EngineSnapshot) -> VllmEngine | None:
    """Return what a snapshot counts of ended requests, None where its engine counts none."""
    names = _NAMES.get(snapshot.engine)
    if names is None:
        return None
    found = {names[one.name]: one for one in snapshot.histograms if one.name in names}
    if snapshot.engine is Engine.SGLANG:
        found = _counted(snapshot) | found
    if not {"request_prompt_tokens", "request_generation_tokens"} <= set(found):
        return None
    return VllmEngine(
        index=snapshot.engine_index,
        model=snapshot.model,
        running=_value(snapshot.running),
        waiting=_value(snapshot.waiting),
        generation_tokens=_value(snapshot.generation_tokens_total),
        histograms=found,
    )


def _counted(snapshot: EngineSnapshot) -> dict[str, HistogramReading]:
    """Return the sums of SGLang's counters as histograms without buckets."""
    requests = snapshot.others.get("sglang:num_requests_total")
    totals = {
        "request_prompt_tokens": snapshot.prompt_tokens_total,
        "request_generation_tokens": snapshot.generation_tokens_total,
    }
    if requests is None:
        return {}
    return {
        name: HistogramReading(name=name, edges=(), counts=(), count=requests, total=float(total.value))
        for name, total in totals.items()
        if total is not None
    }


def _value(quantity: Quantity | None) -> int | None:
    return None if quantity is None else int(quantity.value)
