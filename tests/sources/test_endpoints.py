"""Running servers of any engine: what they are is found out, and only what is needed is asked."""

import json
from pathlib import Path

import pytest

from kvledger.engines.facts import Engine
from kvledger.errors import SourceError
from kvledger.sources.endpoints import Endpoint
from kvledger.sources.http import Access, parse_address
from tests.measure.slot_server import slot
from tests.sources.engine_server import serving_paths

DATA = Path(__file__).parents[1] / "data" / "llamacpp-b11434"
SGLANG = 'sglang:num_running_reqs{model_name="m"} 2\nsglang:max_total_num_tokens{model_name="m"} 100\n'
TENSORRT = "trtllm_kv_cache_max_blocks 100\ntrtllm_kv_cache_used_blocks 40\ntrtllm_num_requests_running 3\n"


def llamacpp(**changes):
    answers = {
        "/props": (DATA / "props-split.json").read_text(),
        "/slots": (DATA / "slots-split-busy.json").read_text(),
        "/metrics": (DATA / "metrics-split-busy.prom").read_text(),
    }
    return {name: text for name, text in (answers | changes).items() if text is not None}


def endpoint(url, path="/metrics"):
    return Endpoint(address=parse_address(url, default_path=path), access=Access(timeout_seconds=5))


def take(answers, path=""):
    with serving_paths(answers) as (url, asked):
        found = endpoint(url + path).take()
    return found, asked


def test_llamacpp_is_known_by_its_metrics_and_read_from_its_slots():
    found, asked = take(llamacpp())
    (snapshot,) = found.snapshots
    assert (snapshot.engine, snapshot.model) == (Engine.LLAMACPP, "smollm2.gguf")
    assert [int(one.tokens.value) for one in snapshot.slots] == [76, 23]
    assert (snapshot.running.value, snapshot.waiting.value) == (1, 0)
    assert snapshot.prompt_tokens_total.value == 15
    assert set(asked) == {"/metrics", "/props", "/slots"}


def test_llamacpp_without_metrics_is_known_by_its_props():
    found, _ = take(llamacpp(**{"/metrics": 501}))
    assert found.snapshots[0].waiting is None
    assert len(found.snapshots[0].slots) == 2


@pytest.mark.parametrize("path", ["/slots", "/props", "/metrics", "/"])
def test_any_address_of_llamacpp_leads_to_all_of_them(path):
    found, _ = take(llamacpp(), path)
    assert len(found.snapshots[0].slots) == 2
    assert found.snapshots[0].model == "smollm2.gguf"


def test_a_prefix_and_what_was_asked_for_stay():
    answers = {f"/a{name}": text for name, text in llamacpp().items()}
    _, asked = take(answers, "/a/slots?model=x&autoload=0")
    assert "/a/props?model=x&autoload=0" in asked


def test_a_sleeping_server_is_not_woken_for_its_slots():
    props = json.dumps(json.loads(llamacpp()["/props"]) | {"is_sleeping": True})
    found, asked = take(llamacpp(**{"/props": props}))
    assert "sleeps" in found.snapshots[0].problem
    assert "/slots" not in asked


def test_a_router_says_which_address_to_give():
    with pytest.raises(SourceError, match="router") as caught:
        take({"/metrics": 501, "/props": '{"role": "router", "default_generation_settings": {}, "total_slots": 0}'})
    assert "?model=" in caught.value.hint


def test_a_server_that_hides_its_slots_says_how_to_show_them():
    with pytest.raises(SourceError, match="slots") as caught:
        take(llamacpp(**{"/slots": 501}))
    assert "--no-slots" in caught.value.hint


def test_old_builds_that_hide_their_slots_have_gauges():
    gauges = "llamacpp:kv_cache_usage_ratio 0.25\nllamacpp:kv_cache_tokens 512\nllamacpp:requests_processing 1\n"
    found, _ = take(llamacpp(**{"/slots": 501, "/metrics": gauges}))
    assert found.snapshots[0].pools[0].occupied.value == 512


def test_metrics_that_were_refused_once_are_not_asked_again():
    with serving_paths(llamacpp(**{"/metrics": 501})) as (url, asked):
        server = endpoint(url)
        for _ in range(3):
            server.take()
    assert asked["/metrics"] == 2
    assert asked["/slots"] == 3


def test_sglang_is_read_from_its_metrics_alone():
    found, asked = take({"/metrics": SGLANG})
    assert found.snapshots[0].engine is Engine.SGLANG
    assert asked == {"/metrics": 1}


LOADS = {
    "version": "0.5.23",
    "loads": [
        {
            "dp_rank": rank,
            "num_running_reqs": 2,
            "num_waiting_reqs": 5,
            "num_used_tokens": 40 + rank,
            "max_total_num_tokens": 100,
            "max_running_requests": 8,
            "memory": {"kv_cache_gb": 1.5},
        }
        for rank in (0, 1)
    ],
}


def test_sglang_without_metrics_tells_its_loads():
    found, _ = take({"/v1/loads": json.dumps(LOADS)})
    assert [one.engine_index for one in found.snapshots] == [0, 1]
    first = found.snapshots[0]
    assert (first.version, first.waiting.value, first.pools[0].used.value) == ("0.5.23", 5, 40)
    assert not first.pools[0].size_bytes.is_exact


def test_tensorrt_llm_is_asked_where_reading_takes_nothing_from_others():
    with serving_paths({"/metrics": "[]", "/prometheus/metrics": TENSORRT}) as (url, asked):
        server = endpoint(url)
        for _ in range(3):
            found = server.take()
    assert found.snapshots[0].pools[0].used.value == 40
    assert asked["/metrics"] == 1


def iteration(rank=0, used=10):
    return {"iter": used, "attentionDpRank": rank, "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": used}}


def test_iterations_of_tensorrt_llm_give_the_last_of_each_rank():
    found, _ = take({"/metrics": json.dumps([iteration(), iteration(1, 20), iteration(0, 30)])})
    assert {one.engine_index: one.pools[0].used.value for one in found.snapshots} == {0: 30, 1: 20}


def test_a_server_without_statistics_of_its_steps_says_which_setting_gives_them():
    with pytest.raises(SourceError) as caught:
        take({"/metrics": "[]"})
    assert "enable_iter_perf_stats" in caught.value.hint


def test_ollama_says_what_it_has_loaded_and_where_to_look():
    models = {"models": [{"name": "llama3:8b", "digest": "x", "size": 5, "size_vram": 5, "context_length": 4096}]}
    with pytest.raises(SourceError, match=r"Ollama.*llama3:8b with 4,096 tokens") as caught:
        take({"/api/ps": json.dumps(models)})
    assert "llama-server" in caught.value.hint


def test_a_server_that_is_none_of_them_keeps_its_first_refusal():
    with pytest.raises(SourceError, match="status 404"):
        take({})


def test_a_site_that_answers_everything_with_a_page_is_no_engine():
    with pytest.raises(SourceError, match="404"):
        take({"/props": "<html>hello</html>", "/v1/loads": "<html>hello</html>", "/api/ps": "<html></html>"})


def test_what_a_server_is_stays_open_until_it_answers():
    with serving_paths({"/metrics": [503, 503, 503, SGLANG]}) as (url, _):
        server = endpoint(url)
        with pytest.raises(SourceError, match="503"):
            server.take()
        assert server.take().snapshots[0].engine is Engine.SGLANG


def test_slots_are_read_as_they_change():
    answers = [json.dumps([slot(0, tokens=tokens, busy=True)]) for tokens in (5, 6, 7)]
    with serving_paths(llamacpp(**{"/slots": answers})) as (url, _):
        server = endpoint(url)
        assert [server.take().snapshots[0].slots[0].tokens.value for _ in range(3)] == [5, 6, 7]


def test_plain_transformers_serve_is_told_by_its_api():
    paths = {"paths": {"/load_model": {}, "/reset": {}, "/v1/chat/completions": {}}}
    with pytest.raises(SourceError, match="tells nothing of its cache") as caught:
        take({"/openapi.json": json.dumps(paths), "/health": '{"status": "ok"}'})
    assert "kvledger.live.transformers_serve" in caught.value.hint


def test_another_api_is_no_transformers_serve():
    with pytest.raises(SourceError) as caught:
        take({"/openapi.json": '{"paths": {"/v1/chat/completions": {}}}'})
    assert "transformers" not in str(caught.value)
