"""Reading vLLM's /metrics: versions, engines, and everything that must not become a number."""

import json
import time

import pytest

from kvledger.engines.vllm.metrics import Generation, read_vllm_metrics
from kvledger.errors import SourceError
from tests.measure.recorded import rows, scrapes

V1 = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 32.0
"""


def one(text):
    (engine,) = read_vllm_metrics(text).engines
    return engine


def test_counters_and_gauges_are_read_by_name():
    engine = one(V1)
    assert (engine.running, engine.waiting, engine.usage_ratio) == (3, 1, 0.25)
    assert (engine.prompt_tokens, engine.generation_tokens, engine.query_tokens) == (100, 50, 32)
    assert (engine.model, engine.generation, engine.missing) == ("m", Generation.V1, ())


def test_created_series_are_no_counters():
    assert one(V1).prompt_tokens == 100
    assert not read_vllm_metrics(V1).is_multiprocess


def test_engines_are_told_apart_and_sorted():
    second = V1.replace('engine="0"', 'engine="10"').replace("100.0", "7.0")
    third = V1.replace('engine="0"', 'engine="2"')
    assert [engine.index for engine in read_vllm_metrics(second + third + V1).engines] == [0, 2, 10]
    assert read_vllm_metrics(second + V1).engines[1].prompt_tokens == 7


@pytest.mark.parametrize("value", ["NaN", "None", "+Inf", "1e99", "-1.0", "garbage"])
def test_what_is_no_number_is_missing_and_never_zero(value):
    text = V1.replace(
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0', f'vllm:prompt_tokens_total{{engine="0"}} {value}'
    )
    engine = one(text)
    assert engine.prompt_tokens is None
    assert engine.missing == ("prompt_tokens",)


def test_v0_has_no_engine_label_and_the_old_gauge():
    engine = one(
        V1.replace('engine="0",', "").replace("vllm:kv_cache", "vllm:gpu_cache") + "vllm:num_requests_swapped 0.0\n"
    )
    assert engine.generation is Generation.V0
    assert engine.usage_ratio == 0.25
    assert engine.usage_source == "vllm:gpu_cache_usage_perc"


def test_the_new_gauge_wins_over_its_deprecated_twin():
    assert one(V1 + 'vllm:gpu_cache_usage_perc{engine="0"} 0.75\n').usage_ratio == 0.25


def test_prefix_queries_counted_in_blocks_are_not_taken_for_tokens():
    text = V1.replace("in terms of number of queried tokens", "in terms of number of queried blocks")
    assert one(text).query_tokens is None


def test_block_counts_that_are_none_stay_unknown():
    line = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None",x="a\\"b"} 1.0\n'
    engine = one(V1 + line)
    assert engine.count_config("num_gpu_blocks") is None
    assert engine.count_config("block_size") == 16
    assert engine.cache_config["x"] == 'a"b'


def test_a_gauge_outside_zero_to_one_is_not_believed():
    assert one(V1.replace("0.25", "25.0")).usage_ratio is None


def test_names_without_samples_say_that_statistics_are_off():
    with pytest.raises(SourceError, match="no sample") as caught:
        read_vllm_metrics("# HELP vllm:num_requests_running Running.\n# TYPE vllm:num_requests_running gauge\n")
    assert "disable-log-stats" in caught.value.hint


@pytest.mark.parametrize("text", ["", "hello\n", "<html>", "sglang:num_running_reqs 1\n", "\x00\x01"])
def test_other_texts_are_refused(text):
    with pytest.raises(SourceError, match="no metric of vLLM"):
        read_vllm_metrics(text)


def test_garbled_lines_are_counted_and_cost_only_themselves():
    scrape = read_vllm_metrics(V1 + 'vllm:num_preemptions_total{engine="x"} 1\nvllm:num_preemptions_total{engine\n')
    assert scrape.garbled_lines == 2
    assert scrape.engines[0].prompt_tokens == 100


def test_histograms_keep_sums_counts_and_edges_of_the_scrape():
    first, last = scrapes("async")[0].engines[0], scrapes("async")[-1].engines[0]
    prompt = last.histograms["request_prompt_tokens"]
    assert prompt.count == last.finished["length"]
    assert prompt.edges[0] == 1
    assert prompt.edges[-1] == float("inf")
    assert list(prompt.counts) == sorted(prompt.counts)
    assert prompt.counts[-1] == prompt.count > first.histograms["request_prompt_tokens"].count


def test_handed_texts_of_users_are_read(shared):
    cases = [json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines()]
    printed = {case["id"]: "\n".join(case["printed"]) for case in cases if case["kind"] == "K2"}
    old = one(printed["K2-001"])
    assert (old.count_config("num_gpu_blocks"), old.count_config("num_cpu_blocks")) == (81767, 9362)
    assert old.prompt_tokens + old.generation_tokens == 1103
    assert old.generation is Generation.V0
    glm = one(printed["K2-002"])
    assert round(glm.usage_ratio * 102_563) == 1
    assert (glm.query_tokens, glm.hit_tokens) == (32, 0)
    assert one(printed["K2-003"]).usage_ratio == 0
    with pytest.raises(SourceError, match="no sample"):
        read_vllm_metrics(printed["K2-004"])


@pytest.mark.parametrize("cut", [100, 1000, 3333, 5000])
def test_a_text_that_was_cut_off_gives_what_it_has_or_an_error(cut):
    text = rows("async")[100]["text"]
    try:
        engine = one(text[:cut])
    except SourceError:
        return
    whole = one(text)
    assert engine.running in (None, whole.running)


def test_a_scrape_of_64_kb_is_read_in_a_few_milliseconds():
    text = rows("async")[0]["text"]
    padding = "".join(f'http_request_duration_seconds_bucket{{handler="/v1/{n}",le="0.1"}} 1.0\n' for n in range(700))
    text += padding
    assert len(text) > 45_000
    best = min(_seconds(text) for _ in range(5))
    assert best < 0.01


def _seconds(text):
    began = time.perf_counter()
    read_vllm_metrics(text)
    return time.perf_counter() - began
