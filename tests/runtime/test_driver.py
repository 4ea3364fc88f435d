"""An engine driven from an event loop and from other threads."""

import asyncio
import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvledger.errors import CapacityError, Error, UsageError
from kvledger.runtime import Driver, Ending, Engine, Generation
from kvledger.runtime import driver as driver_module

from .small_models import draw_prompts, generate_plainly, small_model

TOKENS = Generation(max_tokens=10, ignore_eos=True)


@pytest.fixture
def engine():
    engine = Engine(small_model("llama"), "1MiB", block_size=4)
    yield engine
    engine.check()
    engine.close()


async def collect(driver, prompt, generation=TOKENS):
    return [token async for token in driver.stream(prompt, generation)]


def test_streams_of_many_callers_hold_the_tokens_of_each(engine):
    prompts = draw_prompts(6, seed=11)

    async def ask_all(driver):
        return await asyncio.gather(*(collect(driver, prompt) for prompt in prompts))

    with Driver(engine) as driver:
        streams = asyncio.run(ask_all(driver))
    for prompt, tokens in zip(prompts, streams, strict=True):
        assert [token.token_id for token in tokens] == generate_plainly(small_model("llama"), prompt, 10)
        assert [token.ending for token in tokens] == [None] * 9 + [Ending.LENGTH]


def test_leaving_a_stream_cancels_its_request_and_frees_its_blocks(engine):
    async def leave(driver):
        stream = driver.stream([1, 2, 3], Generation(max_tokens=200, ignore_eos=True))
        first = await anext(stream)
        await stream.aclose()
        return first

    with Driver(engine) as driver:
        assert asyncio.run(leave(driver)).ending is None
        assert driver.call(lambda engine: engine.is_idle).result() is True
        assert driver.call(lambda engine: engine.ledger().used).result() == 0


def test_a_prompt_that_is_refused_raises_in_its_stream_and_nothing_else_is_disturbed(engine):
    async def ask_both(driver):
        bad, good = await asyncio.gather(collect(driver, [1] * 300), collect(driver, [1, 2]), return_exceptions=True)
        return bad, good

    with Driver(engine) as driver:
        bad, good = asyncio.run(ask_both(driver))
    assert isinstance(bad, CapacityError)
    assert len(good) == 10


def test_results_come_to_threads_too_and_closing_cancels_what_is_left(engine):
    driver = Driver(engine)
    _, done = driver.submit([1, 2, 3], TOKENS)
    assert len(done.result(timeout=60).token_ids) == 10
    joined, left = driver.submit([1, 2, 3], Generation(max_tokens=200, ignore_eos=True))
    joined.result(timeout=60)
    driver.close()
    assert left.result(timeout=60).answers[0].ending in (Ending.CANCELLED, Ending.LENGTH)
    with pytest.raises(UsageError, match="closed"):
        driver.submit([1], TOKENS)[0].result(timeout=60)


def test_a_fault_of_the_engine_reaches_everybody_who_waits(engine, monkeypatch):
    def break_down():
        raise RuntimeError("the books do not balance")

    async def ask(driver):
        return await collect(driver, [1, 2], Generation(max_tokens=5, samples=2, ignore_eos=True))

    monkeypatch.setattr(engine, "step", break_down)
    with Driver(engine) as driver:
        with pytest.raises(Error, match="the books do not balance"):
            asyncio.run(ask(driver))
        with pytest.raises(Error, match="has stopped"):
            driver.call(lambda engine: None).result(timeout=60)


class Waiting:
    """A tokenizer that reads nothing before it may."""

    def __init__(self):
        self.may = threading.Event()

    def __call__(self, text):
        assert self.may.wait(60)
        return {"input_ids": [ord(letter) - 32 for letter in text]}

    def decode(self, ids, **_):
        return "".join(chr(i + 32) for i in ids)


@pytest.fixture
def reading():
    engine = Engine(small_model("llama"), "1MiB", block_size=4, tokenizer=Waiting())
    yield engine
    engine.tokenizer.may.set()
    engine.check()
    engine.close()


def test_others_are_answered_while_a_text_is_read(reading):
    with Driver(reading) as driver:
        number, answer = driver.submit("abc", TOKENS)
        assert driver.call(lambda engine: engine.is_idle).result(timeout=60)
        assert not number.done()
        reading.tokenizer.may.set()
        assert answer.result(timeout=60).answers[0].prompt_tokens == 3
        assert number.result(timeout=60) == 0


def test_requests_join_in_the_order_in_which_they_are_submitted(reading):
    with Driver(reading) as driver:
        numbers = [driver.submit(prompt, TOKENS)[0] for prompt in ("abc", [5, 6], "d")]
        reading.tokenizer.may.set()
        assert [number.result(timeout=60) for number in numbers] == [0, 1, 2]


def test_only_so_much_text_waits_to_be_read(reading, monkeypatch):
    monkeypatch.setattr(driver_module, "_MOST_UNREAD", 100)
    with Driver(reading) as driver:
        long = driver.submit("a" * 150, TOKENS)[1]  # alone, whatever its length
        number, refused = driver.submit("b", TOKENS)
        with pytest.raises(CapacityError, match="prompts of 150 characters and tokens wait to be read"):
            number.result(timeout=60)
        assert refused.exception(timeout=60).attributes == {"retry_after_seconds": 1}
        reading.tokenizer.may.set()
        assert long.result(timeout=60).answers[0].prompt_tokens == 150
        assert driver.submit("b", TOKENS)[1].result(timeout=60).answers[0].prompt_tokens == 1


def test_a_prompt_that_is_not_read_when_the_driver_closes_is_refused(reading):
    driver = Driver(reading)
    results = [driver.submit(text, TOKENS)[1] for text in ("abc", "d")]
    threading.Timer(0.05, reading.tokenizer.may.set).start()
    driver.close()
    for result in results:
        with pytest.raises(UsageError, match="closed"):
            result.result(timeout=60)


def test_a_refused_prompt_is_refused_in_its_result_too(engine):
    with Driver(engine) as driver:
        number, result = driver.submit([1] * 300, TOKENS)
        assert isinstance(number.exception(timeout=60), CapacityError)
        assert isinstance(result.exception(timeout=60), CapacityError)


def test_a_caller_that_cancels_its_future_stops_nobody_else(engine):
    with Driver(engine) as driver:
        number, given_up = driver.submit([1, 2, 3], TOKENS)
        number.result(timeout=60)
        given_up.cancel()
        assert len(driver.submit([4, 5], TOKENS)[1].result(timeout=60).token_ids) == 10


def test_a_delivery_that_fails_ends_its_own_request_only(engine):
    def fail(_token):
        raise KeyError("no such client")

    with Driver(engine) as driver:
        _, broken = driver.submit([1, 2, 3], Generation(max_tokens=5, samples=3, ignore_eos=True), deliver=fail)
        _, good = driver.submit([4, 5], TOKENS)
        with pytest.raises(KeyError, match="no such client"):
            broken.result(timeout=60)
        assert len(good.result(timeout=60).token_ids) == 10
        assert driver.call(lambda engine: engine.ledger().used).result(timeout=60) == 0
