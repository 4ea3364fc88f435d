"""What clients of OpenAI's interface may ask for, and how its answers look."""

import functools
import json
import threading
import time

import pytest

from .serving import POOL, ask, complete, serving, stream
from .small_models import generate_plainly, small_model, torch

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@functools.cache
def letters():
    """Return a tokenizer of Transformers whose tokens are the characters from space to tilde."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {chr(32 + i): i for i in range(95)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    found.chat_template = TEMPLATE
    return found


def written(prompt, tokens):
    """Return what the model itself writes after a prompt."""
    return letters().decode(generate_plainly(small_model("llama"), [ord(c) - 32 for c in prompt], tokens))


def logprobs_of(prompt, answer):
    """Return the model's own logarithms of chances after each token: (answer, vocabulary)."""
    with torch.inference_mode():
        logits = small_model("llama")(torch.tensor([prompt + answer])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].float(), -1)


def test_a_chat_is_answered_after_the_tokenizers_template():
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    with serving(tokenizer=letters()) as (address, _, _):
        status, found = ask(address, CHAT, messages=messages, max_completion_tokens=7, ignore_eos=True)
    prompt = "<system>be<user>hi<assistant>"
    assert status == 200
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"]["role"] == "assistant"
    assert found["choices"][0]["message"]["content"] == written(prompt, 7)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["prompt_tokens"] == len(prompt)


def test_a_chat_streams_who_speaks_then_what():
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True, "n": 2}
    with serving(tokenizer=letters()) as (address, _, _):
        events = stream(address, CHAT, **body, stream_options={"include_usage": True})
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 10
    assert all(event["usage"] is None for event in events[:-1])
    for index in (0, 1):
        own = [c for event in events for c in event["choices"] if c["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in own) == written("<user>hi<assistant>", 5)
        assert [c["finish_reason"] for c in own] == [None] * 5 + ["length"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "`messages` is empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "the chat template refuses the messages: no tools here"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a part of type `image_url`"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "`tools` is not served here"),
        ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3}, "`top_logprobs` needs `logprobs`"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "max_model_len is 256"),
        ({"prompt": "x"}, "messages"),
    ],
)
def test_a_chat_that_cannot_be_served_is_refused_with_the_reason(body, message):
    with serving(tokenizer=letters()) as (address, _, _):
        status, found = ask(address, CHAT, **body)
    assert status == 400
    assert message in found["error"]["message"]
    assert set(found["error"]) == {"message", "type", "param", "code"}


def test_a_chat_without_a_template_or_a_tokenizer_is_refused():
    messages = [{"role": "user", "content": "x"}]
    with serving() as (address, _, _):
        status, found = ask(address, CHAT, messages=messages)
    assert (status, "no tokenizer" in found["error"]["message"]) == (400, True)


def test_logprobs_are_those_of_the_models_own_logits():
    prompt = [5, 6, 7]
    with serving(tokenizer=letters()) as (address, _, _):
        _, found = complete(address, prompt=prompt, max_tokens=6, ignore_eos=True, logprobs=3)
    choice = found["choices"][0]
    expected = logprobs_of(prompt, choice["token_ids"])
    told = choice["logprobs"]
    assert told["tokens"] == list(choice["text"])
    assert told["text_offset"] == list(range(6))
    own = [float(row[token]) for row, token in zip(expected, choice["token_ids"], strict=True)]
    assert told["token_logprobs"] == pytest.approx(own, abs=1e-4)
    for row, top in zip(expected, told["top_logprobs"], strict=True):
        values, tokens = row.topk(3)
        assert list(top) == [letters().decode([token]) for token in tokens.tolist()]
        assert list(top.values()) == pytest.approx(values.tolist(), abs=1e-4)


def test_logprobs_of_a_chat_and_of_drawn_tokens_tell_the_likeliest_beside_them():
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": True, "seed": 1}
    with serving(tokenizer=letters()) as (address, _, _):
        _, found = ask(address, CHAT, **body, temperature=5, logprobs=True, top_logprobs=2)
        events = stream(address, CHAT, **body, temperature=5, logprobs=True, top_logprobs=2)
    (choice,) = found["choices"]
    content = choice["logprobs"]["content"]
    prompt = [ord(letter) - 32 for letter in "<user>hi<assistant>"]
    for row, token, told in zip(logprobs_of(prompt, choice["token_ids"]), choice["token_ids"], content, strict=True):
        assert told["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        assert bytes(told["bytes"]).decode() == told["token"] == letters().decode([token])
        assert [top["logprob"] for top in told["top_logprobs"]] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
    streamed = [one for event in events for c in event["choices"] for one in (c["logprobs"] or {}).get("content", [])]
    assert [one["token"] for one in streamed] == [one["token"] for one in content]


def test_an_answer_has_at_least_min_tokens_before_something_ends_it():
    plain = generate_plainly(small_model("llama"), [5, 6, 7], 8)
    stop = plain[1]
    with serving(tokenizer=letters()) as (address, _, _):
        asked = {"prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True}
        _, early = complete(address, **asked, stop_token_ids=[stop])
        _, late = complete(address, **asked, stop_token_ids=[stop], min_tokens=5)
        _, text = complete(address, **asked, stop=letters().decode([plain[1]]), min_tokens=5)
    assert early["choices"][0]["token_ids"] == plain[:2]
    ids = late["choices"][0]["token_ids"]
    assert len(ids) >= 5
    assert stop not in ids[:5]
    assert len(text["choices"][0]["token_ids"]) >= 5
    assert text["choices"][0]["text"].startswith(letters().decode(plain[:5]))


def test_the_prompt_is_echoed_whole_and_in_a_stream():
    asked = {"prompt": ["ab", "xyz"], "max_tokens": 3, "ignore_eos": True, "echo": True}
    with serving(tokenizer=letters()) as (address, _, _):
        _, found = complete(address, **asked)
        _, tokens = complete(address, **{**asked, "prompt": [ord("a") - 32, ord("b") - 32]})
        events = stream(address, "/v1/completions", **asked)
    texts = [prompt + written(prompt, 3) for prompt in asked["prompt"]]
    assert [choice["text"] for choice in found["choices"]] == texts
    assert tokens["choices"][0]["text"] == texts[0]
    for index in (0, 1):
        pieces = [c["text"] for event in events for c in event["choices"] if c["index"] == index]
        assert "".join(pieces) == texts[index]


def test_usage_tells_what_the_prefix_cache_had():
    with serving(tokenizer=letters()) as (address, _, _):
        first, second = (complete(address, prompt=[5] * 21, max_tokens=1)[1]["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 20}


def test_usage_comes_with_every_event_when_it_is_asked_for():
    with serving() as (address, _, _):
        asked = {"prompt": [5, 6], "max_tokens": 3, "ignore_eos": True}
        events = stream(address, "/v1/completions", **asked, stream_options={"continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3]


def test_a_model_is_found_by_its_name_and_the_version_is_told():
    import kvledger

    with serving() as (address, _, _):
        found = {path: POOL.request("GET", f"{address}{path}") for path in ("/v1/models/small", "/v1/models/x/y")}
        version = POOL.request("GET", f"{address}/version")
    assert json.loads(found["/v1/models/small"].data)["id"] == "small"
    assert found["/v1/models/x/y"].status == 404
    assert json.loads(version.data) == {"version": kvledger.__version__}


class Slow:
    """A tokenizer that reads nothing before it may."""

    def __init__(self, may):
        self.may = may

    def __call__(self, text):
        assert self.may.wait(60)
        return {"input_ids": [ord(letter) - 32 for letter in text]}

    def decode(self, ids, **_):
        return letters().decode(ids)


def test_a_long_text_holds_up_nobody_who_is_being_answered():
    """The tokenizer waits until the other answer has come: were it in the engine's thread, neither would."""
    answered = threading.Event()
    with serving(tokenizer=Slow(answered)) as (address, engine, _):
        held = []
        thread = threading.Thread(target=lambda: held.append(complete(address, prompt="abc", max_tokens=2)))
        running = threading.Thread(
            target=lambda: held.append(complete(address, prompt=[5], max_tokens=200, ignore_eos=True))
        )
        running.start()
        while engine.scheduler.is_idle:  # what comes first is read first
            time.sleep(0.001)
        thread.start()
        running.join(60)
        answered.set()
        thread.join(60)
    assert [status for status, _ in held] == [200, 200]
    assert len(held[0][1]["choices"][0]["token_ids"]) == 200
    assert len(held[1][1]["choices"][0]["token_ids"]) == 2


def test_half_a_surrogate_pair_is_refused():
    with serving(tokenizer=letters()) as (address, _, _):
        answer = POOL.request("POST", f"{address}/v1/completions", body=b'{"prompt": "\\ud800", "max_tokens": 2}')
        assert POOL.request("GET", f"{address}/health").status == 200
    assert answer.status == 400


def test_more_prompts_than_can_wait_are_asked_to_come_back(monkeypatch):
    from kvledger.runtime import driver

    monkeypatch.setattr(driver, "_MOST_UNREAD", 50)
    refused = threading.Event()
    threading.Timer(0.2, refused.set).start()
    with serving(tokenizer=Slow(refused)) as (address, _, _):
        body = json.dumps({"prompt": ["a" * 40, "b" * 40], "max_tokens": 1})
        answer = POOL.request("POST", f"{address}/v1/completions", body=body)
        found = json.loads(answer.data)["error"]
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert found["type"] == "server_error"
