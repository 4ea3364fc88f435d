"""The blocks of a vLLM whose metrics do not tell them, from its start-up log."""

import re

import pytest

from kvledger.engines.facts import Engine
from kvledger.engines.readers import read_log
from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.logged_pool import read_logged_pool
from kvledger.measure.meter import Meter
from kvledger.measure.pool import Structure
from tests.measure.recorded import rows

TEXT = rows("sync")[9]["text"]
"""A scrape of a vLLM with 257 blocks of 32 tokens."""
LABELS = r',?(num_gpu_blocks|kv_cache_size_tokens|kv_cache_max_concurrency|kv_cache_memory_bytes)="[^"]*"'
MUTE = re.sub(LABELS, "", TEXT)
LINE = "INFO 11-29 22:55:04 [kv_cache_utils.py:2327] GPU KV cache size: {} tokens, Maximum concurrency for {} tokens per request: {}x\n"  # fmt: skip # noqa: E501


def start(text):
    return read_log(text, Engine.VLLM).startups[-1]


def one(text=MUTE):
    (engine,) = read_vllm_metrics(text).engines
    return engine


def test_blocks_follow_from_the_size_line_where_layers_share_one_table():
    shape = read_logged_pool(one(), start(LINE.format("8,224", "2,048", "4.02")), engines=1)
    assert (shape.blocks, shape.block_tokens, shape.structure) == (257, 32, Structure.ONE_GROUP)
    assert (shape.max_model_len, shape.max_model_len_source) == (2048, "the start-up log")


def test_blocks_that_older_logs_print_are_taken_as_they_are():
    shape = read_logged_pool(one(), start("INFO 01-01 00:00:00 executor.py:1] # GPU blocks: 257, # CPU blocks: 9\n"), engines=2)  # fmt: skip # noqa: E501
    assert (shape.blocks, shape.structure) == (257, Structure.UNKNOWN)


@pytest.mark.parametrize(("tokens", "length", "concurrency"), [("8,224", "2,048", "9.64"), ("8,225", "2,048", "4.02")])
def test_tokens_of_layers_in_groups_are_no_number_of_blocks(tokens, length, concurrency):
    assert read_logged_pool(one(), start(LINE.format(tokens, length, concurrency)), engines=1) is None


def test_without_a_log_or_its_size_line_nothing_is_guessed():
    assert read_logged_pool(one(), None, engines=1) is None
    assert (
        read_logged_pool(one(), start("INFO 01-01 00:00:00 x.py:1] vLLM API server version 0.9.0\n"), engines=1) is None
    )


def test_the_ledger_from_the_log_is_the_one_of_the_metrics():
    """The labels of the whole scrape say the same 257 blocks."""
    log = start(LINE.format("8,224", "2,048", "4.02"))
    (told,) = Meter().take(read_vllm_metrics(TEXT), seconds=0)
    (logged,) = Meter(started=log).take(read_vllm_metrics(MUTE), seconds=0)
    (mute,) = Meter().take(read_vllm_metrics(MUTE), seconds=0)
    assert logged.balance == told.balance
    assert mute.sheet is None
    assert "give the start-up log with `--log`" in mute.problem
