"""Engines, kinds of text and versions by content."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.facts import Engine
from kvledger.engines.readers import read_log
from kvledger.engines.recognise import TextKind, recognise
from kvledger.units import GIB, MIB
from tests.engines.log_samples import SAMPLES

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("engine", Engine)
def test_logs_are_recognised(engine):
    found = recognise(SAMPLES[engine])
    assert (found.kind, found.engine) == (TextKind.LOG, engine)
    assert found.evidence


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        (Engine.VLLM, "0.18.0"),
        (Engine.LLAMACPP, "7123"),
        (Engine.OLLAMA, "0.13.1"),
        (Engine.TENSORRT_LLM, "1.2.0"),
        (Engine.SGLANG, None),
    ],
)
def test_versions_are_read_where_a_log_says_them(engine, version):
    assert recognise(SAMPLES[engine]).version == version


@pytest.mark.parametrize("engine", Engine)
def test_noise_before_the_first_phrase_does_not_matter(engine):
    assert recognise("some shell output\n" * 500 + SAMPLES[engine]).engine is engine


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("# HELP vllm:num_requests_running x\n", Engine.VLLM),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.5\n', Engine.VLLM),
        ("sglang:token_usage 0.5\n", Engine.SGLANG),
        ("# TYPE llamacpp:requests_processing gauge\n", Engine.LLAMACPP),
        ("tgi_queue_size 0\n", Engine.TGI),
        ("trtllm_kv_cache_utilization 0.1\n", Engine.TENSORRT_LLM),
        ('nv_trt_llm_request_metrics{request_type="active"} 1\n', Engine.TENSORRT_LLM),
        ("lmdeploy:gpu_cache_usage_perc 0.1\n", Engine.LMDEPLOY),
    ],
)
def test_metrics_are_recognised(text, engine):
    found = recognise("# TYPE python_info gauge\npython_info 1\n" + text)
    assert (found.kind, found.engine) == (TextKind.METRICS, engine)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llamacpp-b11434/slots-split-busy.json", TextKind.SLOTS),
        ("llamacpp-b11434/slots-split-fresh.json", TextKind.SLOTS),
        ("llamacpp-b11434/props-split.json", TextKind.PROPS),
        ("llamacpp-b11434/metrics-split-busy.prom", TextKind.METRICS),
        ("llamacpp-b11434/server-split.log", TextKind.LOG),
    ],
)
def test_recorded_answers_of_llama_cpp(name, kind):
    found = recognise((DATA / name).read_text())
    assert (found.kind, found.engine) == (kind, Engine.LLAMACPP)


def test_other_json():
    iterations = [{"iter": 1, "kvCacheStats": {"maxNumBlocks": 3}}]
    assert recognise(json.dumps(iterations)).kind is TextKind.ITERATIONS
    answer = {"status": "success", "data": {"resultType": "vector", "result": []}}
    assert recognise(json.dumps(answer)).kind is TextKind.PROMETHEUS_ANSWER
    assert recognise('{"a": 1}') is None


def test_a_docker_log_is_a_log_though_it_is_json():
    text = "".join(json.dumps({"log": line + "\n"}) + "\n" for line in SAMPLES[Engine.VLLM].splitlines())
    assert recognise(text).engine is Engine.VLLM


def test_an_error_of_the_allocator_alone_is_read_though_no_engine_signs_it():
    """Of 5.80 GiB in reserve 5.29 are allocated: 522.24 MiB are cached, beside 13.12 MiB that are free."""
    text = (
        "RuntimeError: CUDA out of memory. Tried to allocate 30.00 MiB (GPU 0; 7.79 GiB total capacity; 5.29 GiB "
        "already allocated; 13.12 MiB free; 5.80 GiB reserved in total by PyTorch) If reserved memory is >> allocated"
    )
    assert recognise(text).engine is Engine.TRANSFORMERS
    (notice,) = read_log(text).startups[-1].errors
    assert notice.needed.holds(30 * MIB)
    assert notice.available.holds(13.12 * MIB)
    assert notice.device.total.holds(7.79 * GIB)
    assert notice.device.cached.holds(0.51 * GIB)
    assert notice.device.cached.high - notice.device.cached.low <= 0.021 * GIB
    signed = f"Available KV cache memory: 3.77 GiB\n{text}"
    assert recognise(signed).engine is Engine.VLLM


@pytest.mark.parametrize("text", ["", "\n", "hello\n", "<html><body>404</body></html>", "x" * 10**6])
def test_other_texts_are_not_recognised(text):
    assert recognise(text) is None


@given(st.binary(max_size=300))
def test_any_bytes_raise_nothing(data):
    recognise(data.decode("utf-8", errors="replace"))
    recognise("[" * len(data) + data.decode("latin-1"))
