"""Layers in groups: a recorded server with four window layers of 128 and two full layers, 600 blocks of 32 tokens.

A token costs 256 bytes a layer (1 head * 32 * 2 * 4 bytes), so a request of n tokens needs
``2 * 256 * n + 4 * 256 * min(n, 128)`` bytes.
"""

import pytest

from kvledger.errors import ModelError
from kvledger.measure.balance import Unsure
from kvledger.measure.figure import Span
from kvledger.measure.groups import count_needed_bytes, price_by_plan
from kvledger.measure.meter import Meter
from kvledger.measure.pool import GroupCost, Structure, read_pool_shape
from kvledger.model.reader import read_config
from tests.measure.recorded import rows, scrapes

LAYERS = ["sliding_attention", "sliding_attention", "full_attention"] * 2
MODEL = read_config(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_hidden_layers": 6,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "sliding_window": 128,
        "layer_types": LAYERS,
        "torch_dtype": "float32",
    },
    name="windows",
)


def needed(length):
    return 2 * 256 * length + 4 * 256 * min(length, 128)


def measured(complete=None):
    meter = Meter(complete=complete)
    for row, scrape in zip(rows("groups"), scrapes("groups"), strict=True):
        meter.take(scrape, seconds=row["seconds"])
    return [(row, reading) for row, reading in zip(rows("groups"), meter.settle()[0], strict=True) if reading.running]


def test_the_server_shows_by_its_concurrency_that_layers_are_in_groups():
    shape = read_pool_shape(scrapes("groups")[0].engines[0], engines=1)
    assert shape.structure is Structure.GROUPS
    assert "90.0 blocks, not 64" in shape.structure_source


def test_without_the_model_only_live_and_held_are_told():
    for row, reading in measured():
        assert Unsure.GROUPS in reading.balance.causes
        assert reading.sheet.ledger.used == 0
        if row["before"] == row["after"]:
            assert reading.balance.live.low - reading.running <= sum(row["before"].values())
            assert sum(row["before"].values()) <= reading.balance.live.high + reading.running


def test_with_the_model_used_bytes_hold_what_the_clients_tokens_need():
    checked = 0
    for row, reading in measured(lambda shape, engine: price_by_plan(shape, MODEL, "float32")):
        sheet = reading.sheet
        assert sheet.ledger.check() is sheet.ledger
        assert sheet.ledger.capacity == 600 * 2 * 256 * 32
        assert sheet.figure("used").high <= sheet.figure("held").high
        if row["before"] != row["after"] or len(row["before"]) != reading.running:
            continue
        truth = sum(needed(length) for length in row["before"].values())
        step = reading.running * 6 * 256
        assert sheet.figure("used").low - step <= truth <= sheet.figure("used").high + step
        checked += 1
    assert checked >= 8


def test_a_window_needs_least_in_one_request_and_most_in_equal_ones():
    """1,000 tokens of 10 requests, window 128, 2 bytes a token: 256 to 2,000 bytes; 3 bytes in full: 3,000."""
    groups = (GroupCost(name="w", token_bytes=2, window_tokens=128), GroupCost(name="f", token_bytes=3))
    assert count_needed_bytes(groups, Span.exact(1000), running=10, held_bytes=10**6) == Span(3256, 5000)


def test_a_state_costs_the_same_at_any_length():
    groups = (GroupCost(name="s", token_bytes=0, request_bytes=700),)
    assert count_needed_bytes(groups, Span(5, 50), running=3, held_bytes=10**6) == Span.exact(2100)


def test_nothing_needs_more_than_is_held():
    groups = (GroupCost(name="f", token_bytes=3),)
    assert count_needed_bytes(groups, Span(10, 2**61), running=3, held_bytes=99) == Span(30, 99)


def test_a_server_without_groups_contradicts_a_model_that_has_them():
    shape = read_pool_shape(scrapes("async")[0].engines[0], engines=1)
    with pytest.raises(ModelError, match="hybrid cache manager is off"):
        price_by_plan(shape, MODEL, None)
