"""One door to the readers of all engines."""

from pathlib import Path

import pytest

from kvledger.engines.facts import Engine
from kvledger.engines.readers import read_log, read_snapshots
from kvledger.errors import SourceError
from tests.engines.log_samples import READERS, SAMPLES

DATA = Path(__file__).parents[1] / "data" / "llamacpp-b11434"


@pytest.mark.parametrize("engine", Engine)
def test_a_log_is_read_by_its_engine(engine):
    assert read_log(SAMPLES[engine]) == READERS[engine](SAMPLES[engine])
    assert read_log(iter(SAMPLES[engine].splitlines()), engine) == READERS[engine](SAMPLES[engine])


def test_an_unknown_log_is_refused_with_the_engines():
    with pytest.raises(SourceError) as caught:
        read_log("nothing of interest\n")
    assert "`vllm`" in caught.value.hint
    with pytest.raises(SourceError):
        read_log(iter(["a", "b"]))


@pytest.mark.parametrize("name", ["slots-split-busy.json", "props-split.json", "metrics-split-busy.prom"])
def test_answers_of_llama_cpp(name):
    (snapshot,) = read_snapshots((DATA / name).read_text())
    assert snapshot.engine is Engine.LLAMACPP


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("sglang:num_running_reqs 1\n", Engine.SGLANG),
        ("tgi_queue_size 1\n", Engine.TGI),
        ("trtllm_kv_cache_max_blocks 5\n", Engine.TENSORRT_LLM),
        ('[{"iter": 1, "kvCacheStats": {}}]', Engine.TENSORRT_LLM),
        ("lmdeploy:gpu_cache_usage_perc 0.5\n", Engine.LMDEPLOY),
    ],
)
def test_metrics_of_the_other_engines(text, engine):
    (snapshot,) = read_snapshots(text)
    assert snapshot.engine is engine


@pytest.mark.parametrize(
    "text", ["", "x", SAMPLES[Engine.SGLANG], "vllm:num_requests_running 1\n", '{"status": 1, "data": 2}']
)
def test_other_texts_are_refused(text):
    with pytest.raises(SourceError):
        read_snapshots(text)
