"""Engines that tell their pool themselves: each instant becomes a sheet that balances, worked out by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.llamacpp.metrics import read_slots
from kvledger.engines.quantity import Fact, exact
from kvledger.engines.sglang.metrics import read_metrics as read_sglang
from kvledger.engines.tgi.metrics import read_metrics as read_tgi
from kvledger.ledger import Account
from kvledger.measure.snapshots import draw_snapshots


def only(*snapshots):
    (sheet,) = draw_snapshots(snapshots)
    return sheet


def amounts(sheet):
    return {account.value: amount for account, amount in sheet.ledger.accounts().items() if amount}


def sglang(**values):
    labels = '{model_name="m",tp_rank="0",pp_rank="0",moe_ep_rank="0",engine_type="unified"}'
    return read_sglang("".join(f"sglang:{name}{labels} {value}\n" for name, value in values.items()))


def test_sglang_with_pages_of_one_token_is_told_exactly():
    found = only(
        *sglang(
            num_running_reqs=3,
            max_total_num_tokens=10_000,
            page_size=1,
            kv_used_tokens=1200,
            kv_evictable_tokens=5000,
            kv_available_tokens=3800,
        )
    )
    assert amounts(found.sheet) == {"used": 1200, "cached": 5000, "free": 3800}
    assert found.sheet.unit == "tokens"


def test_sglang_with_pages_leaves_at_most_a_tail_a_request_open():
    """4 requests, pages of 64: of 6,400 held tokens at least 6,400 - 4 * 63 = 6,148 are stored; the batch: 6,300."""
    values = {
        "num_running_reqs": 4,
        "max_total_num_tokens": 64_000,
        "page_size": 64,
        "kv_used_tokens": 6400,
        "kv_evictable_tokens": 0,
        "kv_available_tokens": 57_600,
    }
    found = only(*sglang(**values)).sheet
    assert (found.figure("used").low, found.figure("used").high) == (6148, 6400)
    assert amounts(found) == {"used": 6148, "free": 57_600, "unattributed": 252}
    told = only(*sglang(**values, decode_sum_seq_lens=6300)).sheet
    assert (told.figure("used").low, told.figure("internal").high) == (6300, 100)


def test_llama_slots_of_a_split_pool_reserve_their_strips():
    """4 strips of 1,000 cells: one runs with 300, one idles with 200 kept."""
    slots = [
        {"id": n, "n_ctx": 1000, "is_processing": n == 0, "n_prompt_tokens": tokens, "id_task": 1}
        for n, tokens in enumerate((300, 200, 0, 0))
    ]
    split = only(read_slots(json.dumps(slots), unified=Fact(value=False))).sheet
    assert amounts(split) == {"used": 300, "cached": 200, "reserved": 700, "free": 2800}
    for slot in slots:
        slot["n_ctx"] = 4000
    unified = only(read_slots(json.dumps(slots), unified=Fact(value=True))).sheet
    assert amounts(unified) == {"used": 300, "cached": 200, "free": 3500}


def test_llama_slots_without_the_log_do_not_tell_their_pool():
    slots = [{"id": 0, "n_ctx": 1000, "is_processing": True, "n_prompt_tokens": 3, "id_task": 1}]
    assert "start-up log" in only(read_slots(json.dumps(slots))).problem


def test_tgi_does_not_tell_what_of_a_reservation_is_there():
    text = "tgi_batch_current_max_tokens 3000\ntgi_batch_max_total_tokens 8000\ntgi_batch_current_size 2\n"
    found = only(*read_tgi(text)).sheet
    assert found.figure("reserved").high == 3000
    assert found.ledger.used == 0
    assert found.ledger.unattributed >= 3000
    assert any("reserved at admission" in part.cause for part in found.unattributed)


def test_bytes_are_used_when_the_pool_tells_them():
    pool = PoolReading(capacity=exact(100), used=exact(40), cached=exact(0), free=exact(60), size_bytes=exact(100_050))
    found = only(EngineSnapshot(engine=Engine.SGLANG, pools=(pool,), running=exact(0), waiting=exact(0))).sheet
    assert found.unit == "bytes"
    assert found.ledger.capacity == 100_050
    assert found.ledger.free == 60_000


@given(
    capacity=st.integers(1, 10_000),
    shares=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000)),
    running=st.none() | st.integers(0, 50),
    page=st.none() | st.sampled_from([1, 16, 64]),
    live=st.none() | st.integers(0, 10_000),
    reserved=st.booleans(),
    known=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_every_sheet_balances_whatever_an_engine_says(capacity, shares, running, page, live, reserved, known):
    used, cached, free = (exact(value) if told else None for value, told in zip(shares, known, strict=True))
    pool = PoolReading(
        capacity=exact(capacity),
        used=used,
        cached=cached,
        free=free,
        block_tokens=None if page is None else exact(page),
    )
    snapshot = EngineSnapshot(
        engine=Engine.SGLANG,
        pools=(pool,),
        running=None if running is None else exact(running),
        live_tokens=None if live is None else exact(live),
        reserved_tokens=used if reserved else None,
    )
    found = only(snapshot)
    if found.sheet is None:
        assert found.problem
        return
    assert sum(found.sheet.ledger[account] for account in Account) == capacity
    assert sum(part.amount for part in found.sheet.unattributed) == found.sheet.ledger.unattributed


def test_handed_texts_of_sglang_are_drawn_or_say_what_is_missing(shared):
    cases = [json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines()]
    text = "\n".join(next(case for case in cases if case["id"] == "K2-013")["printed"])
    sheets = draw_snapshots(read_sglang(text))
    assert sheets
    assert all(one.sheet is not None or one.problem for one in sheets)


@pytest.mark.parametrize("unit", ["blocks", "tokens"])
def test_a_host_pool_is_no_part_of_the_sheet(unit):
    pools = (PoolReading(name="host", unit=unit, capacity=exact(5), used=exact(1)),)
    assert draw_snapshots([EngineSnapshot(engine=Engine.SGLANG, pools=pools)]) == ()
