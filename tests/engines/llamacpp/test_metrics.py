"""``/slots``, ``/props`` and ``/metrics`` of llama.cpp's server, recorded and made."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.llamacpp.metrics import read_metrics, read_props, read_slots
from kvledger.engines.quantity import Fact
from kvledger.errors import Error, SourceError

DATA = Path(__file__).parents[2] / "data" / "llamacpp-b11434"
SPLIT, UNIFIED = Fact(value=False), Fact(value=True)


def recorded(name):
    return (DATA / name).read_text()


def test_a_running_slot_and_one_that_kept_its_tokens():
    """Slot 0 has computed 11 prompt tokens and 65 decoded ones; slot 1 keeps the 23 tokens of an ended request."""
    snapshot = read_slots(recorded("slots-split-busy.json"), unified=SPLIT)
    assert [(s.is_processing, s.tokens.value, s.capacity_tokens.value) for s in snapshot.slots] == [
        (True, 76, 1024),
        (False, 23, 1024),
    ]
    assert snapshot.slots[0].prompt_tokens.value == 11
    assert (snapshot.slots[0].decoded_tokens.value, snapshot.slots[0].remaining_tokens.value) == (65, 635)
    (pool,) = snapshot.pools
    assert (pool.unit, pool.capacity.value, pool.used.value, pool.cached.value) == ("cells", 2048, 76, 23)
    assert (snapshot.running.value, snapshot.max_running.value) == (1, 2)


def test_idle_slots_keep_what_they_hold():
    (pool,) = read_slots(recorded("slots-split-idle.json"), unified=SPLIT).pools
    assert (pool.used.value, pool.cached.value) == (0, 733)


def test_a_fresh_server_holds_nothing():
    (pool,) = read_slots(recorded("slots-split-fresh.json")).pools
    assert (pool.used.value, pool.cached.value) == (0, 0)


def test_unified_slots_share_their_cells():
    """Each slot says 2,048 and so does the pool; an idle slot gave its tokens to host memory."""
    snapshot = read_slots(recorded("slots-unified-busy.json"), unified=UNIFIED)
    (pool,) = snapshot.pools
    assert (pool.capacity.value, pool.used.value, pool.cached.value) == (2048, 166, 0)


def test_capacity_stays_open_when_sharing_is_not_known():
    assert read_slots(recorded("slots-unified-busy.json")).pools[0].capacity is None


@pytest.mark.parametrize(("mode", "length"), [("split", 1024), ("unified", 2048)])
def test_props_tell_slots_and_context(mode, length):
    snapshot = read_props(recorded(f"props-{mode}.json"))
    assert (snapshot.max_running.value, snapshot.max_model_len.value, snapshot.model) == (2, length, "smollm2.gguf")


def test_metrics_without_gauges_of_the_cache():
    (snapshot,) = read_metrics(recorded("metrics-split-busy.prom"))
    assert (snapshot.running.value, snapshot.waiting.value) == (1, 0)
    assert snapshot.pools == ()
    assert snapshot.missing == ("llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens")


def test_builds_without_token_counts_name_what_is_missing():
    """A build between b9093 and b11434 tells what was decoded, not what is held."""
    slot = {"id": 0, "n_ctx": 512, "is_processing": True, "id_task": 3, "next_token": {"n_decoded": 9, "n_remain": -1}}
    snapshot = read_slots(json.dumps([slot]))
    assert (snapshot.slots[0].tokens, snapshot.pools[0].used) == (None, None)
    assert snapshot.slots[0].decoded_tokens.value == 9
    assert snapshot.slots[0].remaining_tokens is None
    assert snapshot.missing == ("/slots[0].n_prompt_tokens",)


def test_the_fields_of_2024():
    slots = [
        {"id": 0, "n_ctx": 512, "state": 1, "n_past": 40, "id_task": 3},
        {"id": 1, "n_ctx": 512, "state": 0, "n_past": 7},
    ]
    (pool,) = read_slots(json.dumps(slots)).pools
    assert (pool.used.value, pool.cached.value) == (40, 7)


def test_a_server_that_hides_its_slots_says_how_to_show_them():
    answer = (
        '{"error": {"code": 501, "message": "This server does not support slots endpoint.", "type": "not_supported"}}'
    )
    with pytest.raises(SourceError, match="does not tell its slots") as caught:
        read_slots(answer)
    assert "--no-slots" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "null", '{"a": 1}', "[" * 100_000, "[{}" + ",{}" * 70_000 + "]"])
def test_what_is_no_list_of_slots_is_refused(text):
    with pytest.raises(SourceError):
        read_slots(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "n_ctx", "n_prompt_tokens", "next_token", "n_decoded", "n_remain", "state", "is_processing"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_gives_a_snapshot_or_our_error(value):
    for read in (read_slots, read_props):
        with contextlib.suppress(Error):
            read(json.dumps(value))


@given(st.binary(max_size=200))
def test_any_bytes_give_our_error_or_nothing(data):
    text = data.decode("utf-8", errors="replace")
    for read in (read_slots, read_props, read_metrics):
        with contextlib.suppress(Error):
            read(text)
