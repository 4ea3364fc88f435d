"""An engine driven from an event loop and from other threads."""

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvledger.errors import CapacityError, Error, UsageError
from kvledger.runtime import Driver, Ending, Engine, Generation

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
    _, left = driver.submit([1, 2, 3], Generation(max_tokens=200, ignore_eos=True))
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
