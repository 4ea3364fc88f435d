"""Texts of /metrics that users made public, and how names differ in them."""

import pytest

from kvledger.engines.facts import Engine
from kvledger.engines.readers import read_snapshots
from kvledger.engines.recognise import recognise
from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.verdict import Diagnosis, Signs, judge

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2
sglang:token_usage{model_name="m",tp_rank="0"} 0.4
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 100000
sglang:num_used_tokens{model_name="m",tp_rank="0"} 40000
"""
LLAMACPP = "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\nllamacpp:kv_cache_tokens 70\n"


@pytest.mark.parametrize(("text", "engine"), [(SGLANG, Engine.SGLANG), (LLAMACPP, Engine.LLAMACPP)])
def test_a_collector_that_allows_no_colon_changes_nothing(text, engine):
    spelled = text.replace("sglang:", "sglang_").replace("llamacpp:", "llamacpp_")
    assert recognise(spelled).engine is engine
    assert read_snapshots(spelled) == read_snapshots(text)


def test_a_text_with_both_spellings_is_read_once():
    both = SGLANG + SGLANG.replace("sglang:", "sglang_").replace("40000", "7")
    assert read_snapshots(both) == read_snapshots(SGLANG)


def test_the_first_releases_of_sglang_call_the_model_name():
    (found,) = read_snapshots(SGLANG.replace("model_name=", "name="))
    assert found.model == "m"


def test_triton_calls_the_model_of_vllm_model():
    (found,) = read_vllm_metrics('vllm:num_requests_running{model="served",version="1"} 1\n').engines
    assert found.model == "served"


def test_requests_that_are_not_told_are_no_idle_server():
    signs = {
        "samples": 2, "peak_held_ratio": 0.4, "peak_used_ratio": 0.4, "peak_used_high_ratio": 0.4, "peak_waiting": 0,
        "waiting_ratio": 0.0, "held_ratio_while_waiting": None, "preemptions": None, "finished": None,
        "generated_tokens": None, "seconds": 9.0,
    }  # fmt: skip
    assert judge(Signs(peak_running=None, **signs)).diagnosis is Diagnosis.ROOM
    assert judge(Signs(peak_running=0, **signs)).diagnosis is Diagnosis.IDLE


def test_preemptions_beside_an_unknown_number_of_requests_are_no_circle():
    signs = {
        "samples": 2, "peak_held_ratio": 1.0, "peak_used_ratio": 1.0, "peak_used_high_ratio": 1.0, "peak_waiting": 3,
        "peak_running": 4, "waiting_ratio": 1.0, "held_ratio_while_waiting": 1.0, "preemptions": 9,
        "generated_tokens": 100, "seconds": 9.0,
    }  # fmt: skip
    told = judge(Signs(finished=None, **signs))
    assert told.diagnosis is Diagnosis.FULL
    assert "9 preemptions took it" in told.sentence
    assert judge(Signs(finished=3, **signs)).diagnosis is Diagnosis.THRASHING
