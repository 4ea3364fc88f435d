"""The server: what it answers, what it counts, and that `measure` reads it to the token."""

import json
import socket
import threading
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.runtime import Engine, Options
from kvledger.runtime.serve import Tallies
from kvledger.runtime.serve.exposition import Exposition, take_instant
from tests.cli.calling import call

from .serving import POOL, TOKEN_BYTES, complete, serving
from .small_models import draw_prompts, generate_plainly, small_model


def scrape(address):
    (engine,) = read_vllm_metrics(POOL.request("GET", f"{address}/metrics").data.decode()).engines
    return engine


def live_tokens(engine):
    prompts = engine.prompt_tokens - engine.total("request_prompt_tokens")
    return prompts + engine.generation_tokens - engine.total("request_generation_tokens")


def hit_tokens(engine):
    ended = engine.total("request_prompt_tokens") - engine.total("request_prefill_kv_computed_tokens")
    return engine.cached_tokens - ended


def test_it_answers_with_the_tokens_of_generate():
    prompt = draw_prompts(1, seed=1)[0]
    with serving() as (address, _, _):
        status, found = complete(address, prompt=prompt, max_tokens=9, ignore_eos=True)
    assert status == 200
    (choice,) = found["choices"]
    assert choice["token_ids"] == generate_plainly(small_model("llama"), prompt, 9)
    assert choice["finish_reason"] == "length"
    usage = found["usage"]
    assert [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total")] == [len(prompt), 9, len(prompt) + 9]


def test_several_prompts_and_samples_are_choices_in_order():
    prompts = [[5, 6, 7], [8] * 9]
    with serving() as (address, _, _):
        _, found = complete(address, prompt=prompts, max_tokens=4, n=2, ignore_eos=True)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    expected = [generate_plainly(small_model("llama"), prompt, 4) for prompt in prompts]
    assert [choice["token_ids"] for choice in found["choices"]] == [expected[i // 2] for i in range(4)]


def test_a_stream_ends_with_done_and_has_every_token():
    prompt = [5, 6, 7]
    with serving() as (address, _, _):
        body = {"prompt": prompt, "max_tokens": 6, "ignore_eos": True, "stream": True, "temperature": 0}
        body["stream_options"] = {"include_usage": True}
        answer = POOL.request("POST", f"{address}/v1/completions", body=json.dumps(body))
    lines = [line.removeprefix("data: ") for line in answer.data.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    tokens = [token for event in events for choice in event["choices"] for token in choice["token_ids"]]
    assert tokens == generate_plainly(small_model("llama"), prompt, 6)
    assert events[-1]["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": []}, "no tokens"),
        ({"prompt": [10**6]}, "not one of the model's"),
        ({"prompt": [1] * 5000}, "5000"),
        ({"prompt": [5], "temperature": -1}, "temperature"),
        ({"prompt": [5], "logprobs": 21}, "logprobs is 21, not from 0 to 20"),
        ({"prompt": [5], "logprobs": 1, "echo": True}, "`logprobs` of the prompt are not served here"),
        ({"prompt": [5], "max_tokens": 0}, "max_tokens is 0, not from 1"),
        ({"prompt": [5], "max_tokens": 4, "min_tokens": 5}, "min_tokens is 5, not from 0 to 4"),
        ({"prompt": [5], "include_stop_str_in_output": True}, "`include_stop_str_in_output` is not served here"),
        ({"prompt": [5], "logit_bias": {"5": 100}}, "`logit_bias` is not served here"),
        ({"prompt": [5], "presence_penalty": 0.5}, "`presence_penalty` is not served here"),
        ({"prompt": [5], "n": 0}, "`n` is 0"),
        ({"prompt": [5], "top_k": -5}, "top_k is -5"),
        ({"prompt": "text"}, "tokenizer"),
        ({"max_tokens": 3}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(body, message):
    with serving() as (address, engine, _):
        status, found = complete(address, **body)
        assert status == 400
        assert message in found["error"]["message"]
        assert engine.is_idle


def test_fields_that_ask_for_nothing_are_taken():
    neutral = {"frequency_penalty": 0, "repetition_penalty": 1.0, "logprobs": None, "echo": False, "user": "x"}
    with serving() as (address, _, _):
        status, _ = complete(address, prompt=[5], max_tokens=2, top_k=-1, model="small", **neutral)
    assert status == 200


def test_another_model_and_other_paths_are_refused_with_what_there_is():
    with serving() as (address, _, _):
        status, found = complete(address, prompt=[5], model="gpt-4")
        other = POOL.request("POST", f"{address}/v1/embeddings", body="{}")
        method = POOL.request("GET", f"{address}/v1/completions")
    assert (status, other.status, method.status) == (404, 404, 405)
    assert "the model `gpt-4` is not served here" in found["error"]["message"]
    assert "there are POST /v1/completions" in json.loads(other.data)["error"]["message"]


def test_garbage_is_refused():
    with serving() as (address, _, _):
        answer = POOL.request("POST", f"{address}/v1/completions", body=b"{" * 5000)
        assert answer.status == 400
        assert POOL.request("GET", f"{address}/health").status == 200


def test_one_refused_prompt_leaves_nothing_of_the_others_behind():
    with serving() as (address, engine, driver):
        status, _ = complete(address, prompt=[[5] * 9, []], max_tokens=50, ignore_eos=True)
        assert status == 400
        driver.call(lambda _: None).result()
        deadline = time.monotonic() + 10
        while not engine.is_idle and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.is_idle


def test_a_client_that_goes_away_frees_its_blocks_and_leaves_no_offset():
    with serving(blocks=400) as (address, _, driver):
        body = json.dumps({"prompt": [5] * 20, "max_tokens": 230, "ignore_eos": True, "stream": True})
        answer = POOL.request("POST", f"{address}/v1/completions", body=body, preload_content=False)
        answer.read(50)
        answer.close()
        deadline = time.monotonic() + 20
        while scrape(address).running and time.monotonic() < deadline:
            time.sleep(0.05)
        after = scrape(address)
        assert after.running == 0
        assert live_tokens(after) == 0
        assert driver.call(lambda e: e.ledger()).result().used == 0


def test_a_client_that_does_not_stream_and_goes_away_frees_its_blocks():
    with serving(blocks=400) as (address, engine, driver):
        run = engine.runner.run
        engine.runner.run = lambda schedule: time.sleep(0.02) or run(schedule)
        port = int(address.rsplit(":", 1)[1])
        body = json.dumps({"prompt": [5] * 20, "max_tokens": 230, "ignore_eos": True, "n": 3}).encode()
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            while not driver.call(lambda engine: engine.scheduler.running).result(timeout=60):
                time.sleep(0.001)
        deadline = time.monotonic() + 20
        while not engine.is_idle and time.monotonic() < deadline:
            time.sleep(0.005)
        after = scrape(address)
    assert after.finished["abort"] == 3
    assert live_tokens(after) == 0


def test_a_client_that_goes_away_within_its_request_is_no_fault_of_the_server(caplog):
    with serving() as (address, engine, _):
        port = int(address.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        assert complete(address, prompt=[5], max_tokens=2)[0] == 200
        assert engine.is_idle
    assert not caplog.records


def test_a_stream_that_the_model_fails_ends_with_the_reason():
    def fail(_schedule):
        raise RuntimeError("out of memory, say")

    with serving() as (address, engine, _):
        engine.runner.run = fail
        body = json.dumps({"prompt": [5, 6], "max_tokens": 6, "stream": True})
        answer = POOL.request("POST", f"{address}/v1/completions", body=body)
    event, done = [line.removeprefix("data: ") for line in answer.data.decode().split("\n\n") if line]
    assert json.loads(event)["choices"][0]["finish_reason"] == "error"
    assert json.loads(event)["error"]["message"] == "the model failed: RuntimeError: out of memory, say"
    assert done == "[DONE]"


def test_an_engine_that_has_stopped_is_said_to_every_answer_and_at_every_endpoint(monkeypatch):
    def stop(_engine):
        raise RuntimeError("a fault")

    with serving() as (address, _, _):
        monkeypatch.setattr(Engine, "step", stop)
        status, found = complete(address, prompt=[5, 6], max_tokens=6, n=3)
        assert status == 500
        assert found["error"]["message"] == "the engine has stopped: a fault"
        for path in ("/health", "/metrics", "/ledger"):
            answer = POOL.request("GET", f"{address}{path}")
            assert answer.status == 503
            assert "the engine has stopped" in json.loads(answer.data)["error"]["message"]


def test_metrics_and_tables_agree_to_the_token_at_every_instant():
    from prometheus_client import CollectorRegistry, generate_latest

    shared = [7] * 24
    options = Options(max_num_batched_tokens=32)
    tallies = Tallies()
    with serving(blocks=120, options=options, tallies=tallies) as (address, _, driver):

        def look(engine):
            registry = CollectorRegistry(auto_describe=False)
            registry.register(Exposition(take_instant(engine, tallies, model_name="small")))
            begun = [s for s in engine.scheduler.running if s.generated]
            waiting = [s for s in engine.scheduler.waiting if s.generated]
            inside = sum(len(s.tokens) for s in begun + waiting)
            hits = sum(s.cached_tokens for s in begun + waiting)
            return generate_latest(registry).decode(), inside, hits, engine.ledger()

        threads = [
            threading.Thread(
                target=complete, args=(address,), kwargs={"prompt": shared + p, "max_tokens": 12, "ignore_eos": True}
            )
            for p in draw_prompts(14, seed=3, longest=30)
        ]
        for thread in threads:
            thread.start()
        seen = 0
        while any(thread.is_alive() for thread in threads):
            text, inside, hits, ledger = driver.call(look).result()
            (engine,) = read_vllm_metrics(text).engines
            assert live_tokens(engine) == inside
            assert hit_tokens(engine) == hits
            blocks = engine.count_config("num_gpu_blocks") - 1
            assert round(engine.usage_ratio * blocks) * 4 * TOKEN_BYTES == ledger.held
            seen += inside > 0
            time.sleep(0.002)
        assert seen > 3
        assert live_tokens(scrape(address)) == 0


def test_measure_reads_the_server_as_it_reads_vllm(capsys):
    with serving(blocks=400) as (address, engine, _):
        body = json.dumps({"prompt": [5] * 20, "max_tokens": 230, "ignore_eos": True, "stream": True})
        answer = POOL.request("POST", f"{address}/v1/completions", body=body, preload_content=False)
        answer.read(50)
        found = call(capsys, "measure", address, "--json", "-q")
        answer.close()
        assert found.code == 0, found.err
        last = found.json()["sources"][0]["engines"][0]["last"]
        assert last["pool"]["usable_blocks"] * last["pool"]["block_bytes"] == engine.pages.nbytes
        assert sum(last["ledger"]["accounts_bytes"].values()) == last["ledger"]["capacity_bytes"]
        assert last["running"] == 1
        assert last["tokens"]["live"]["low"] >= 20
