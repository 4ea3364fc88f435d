"""Logs of Text Generation Inference."""

from kvledger.engines.facts import NoticeKind
from kvledger.engines.tgi.log import read_log
from tests.engines.log_samples import TGI


def test_blocks_times_their_tokens():
    (start,) = read_log(TGI).startups
    (pool,) = start.pools
    assert (pool.blocks.value, pool.block_tokens.value, pool.tokens.value) == (20_000, 16, 320_000)
    assert (start.model.value, start.tp.value, start.max_model_len.value) == ("org/model-8b", 2, 4096)
    assert (start.memory_ratio.value, start.prefix_caching.value) == (0.9, True)
    assert start.options["attention"] == "flashinfer"


def test_the_budget_alone_gives_the_tokens():
    (start,) = read_log("INFO text_generation_router: Setting max batch total tokens to 119184").startups
    assert start.pools[0].tokens.value == 119_184


def test_arguments_over_several_lines():
    (start,) = read_log(
        "2026-03-04T10:00:00Z  INFO text_generation_launcher: Args {\n    model_id: \"m\",\n    "
        "max_total_tokens: Some(\n"
        "        4096,\n    ),\n    max_batch_prefill_tokens: None,\n}\n"
    ).startups  # fmt: skip
    assert (start.model.value, start.max_model_len.value, start.batch_tokens) == ("m", 4096, None)


def test_a_second_launch_is_a_second_start():
    assert len(read_log(TGI + TGI).startups) == 2


def test_no_memory_for_the_prefill_is_an_error():
    (start,) = read_log("Error: Not enough memory to handle prefill tokens. You need to decrease").startups
    assert start.errors[0].kind is NoticeKind.NO_MEMORY
