"""Engines that tell their pool themselves: each instant becomes a sheet that balances, worked out by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.facts import Engine, EngineSnapshot, PoolReading
from kvledger.engines.quantity import Quantity, exact
from kvledger.engines.sglang.metrics import read_metrics as read_sglang
from kvledger.engines.tgi.metrics import read_metrics as read_tgi
from kvledger.ledger import Account, Accuracy
from kvledger.measure.snapshots import Hints, draw_pool, draw_snapshots


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


PAGED = {
    "num_running_reqs": 4,
    "max_total_num_tokens": 64_000,
    "page_size": 64,
    "kv_used_tokens": 6400,
    "kv_evictable_tokens": 0,
    "kv_available_tokens": 57_600,
}


def test_every_held_page_of_sglang_has_a_token():
    """One sample does not tell whether the gauges come from a decode step: a prefill may add requests to the 4."""
    found = only(*sglang(**PAGED)).sheet
    assert (found.figure("used").low, found.figure("used").high) == (100, 6400)
    assert amounts(found) == {"used": 100, "free": 57_600, "unattributed": 6300}


def test_while_only_decode_steps_run_sglang_leaves_a_tail_a_request_open():
    """4 requests and at most one in prefill, pages of 64: at least 6,400 - 5 * 63 = 6,085 slots are filled."""
    (snapshot,) = sglang(**PAGED)
    found = draw_pool(snapshot, snapshot.pools[0], Hints(only_decodes=True)).sheet
    assert (found.figure("used").low, found.figure("used").high) == (6085, 6400)
    assert found.figure("internal").high == 315


def test_the_tokens_of_sglangs_decode_batch_count_a_shared_prefix_several_times():
    """4 requests of 3,000 tokens that share 2,000 of them: 12,000 tokens in 6,400 slots, which bounds no account."""
    found = only(*sglang(**PAGED, decode_sum_seq_lens=12_000)).sheet
    assert found.figure("decode_tokens").low == 12_000
    assert (found.figure("used").low, found.figure("used").high) == (100, 6400)


def test_a_release_of_sglang_that_does_not_tell_its_pool_leaves_its_size_an_interval(shared):
    """2,826 requests queue at 28 %: the pool is 123,859 tokens over 0.275 to 0.285."""
    cases = [json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines()]
    case = next(case for case in cases if case["id"] == "K2-013")
    sheet = only(*read_sglang("\n".join(case["printed"]))).sheet
    size = sheet.figure("capacity")
    assert [size.low, size.high] == pytest.approx(case["derived"]["pool_tokens_range"], abs=1)
    assert (sheet.figure("held").low, sheet.figure("held").high) == (123_859, 123_859)


def test_tgi_does_not_tell_what_of_a_reservation_is_there():
    text = "tgi_batch_current_max_tokens 3000\ntgi_batch_max_total_tokens 8000\ntgi_batch_current_size 2\n"
    found = only(*read_tgi(text)).sheet
    assert found.figure("reserved").high == 3000
    assert found.ledger.used == 0
    assert found.ledger.unattributed >= 3000
    assert any("reserved at admission" in part.cause for part in found.unattributed)


def sized(size, *, page=16, more=()):
    pool = PoolReading(
        capacity=exact(1600), used=exact(640), cached=exact(0), free=exact(960), size_bytes=size,
        block_tokens=None if page is None else exact(page),
    )  # fmt: skip
    return draw_snapshots(
        [EngineSnapshot(engine=Engine.SGLANG, pools=(pool, *more), running=exact(0), waiting=exact(0))]
    )[0].sheet


def test_bytes_are_used_when_the_pool_tells_them_and_page_0_is_not_usable():
    sheet = sized(exact(1616 * 1000))
    assert (sheet.unit, sheet.ledger.capacity) == ("bytes", 1616 * 1000)
    assert sheet.ledger.free == 960 * 1000
    assert (16_000, "page 0: padding writes there, it holds no token of a request") in [
        (row.amount, row.cause) for row in sheet.unattributed
    ]
    assert sheet.figure("held").accuracy is Accuracy.DERIVED


@pytest.mark.parametrize("page", [16, None])
def test_a_rounded_size_is_a_rounded_price(page):
    size = Quantity(value=1616 * 1000, low=1616 * 998, high=1616 * 1002)
    sheet = sized(size, page=page)
    assert sheet.ledger.free == 960 * (1000 if page else 1009)
    assert sheet.figure("held").accuracy is Accuracy.MODELLED


def test_the_size_of_two_pools_together_prices_neither():
    assert sized(exact(1616 * 1000), more=(PoolReading(name="swa"),)).unit == "tokens"


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


@pytest.mark.parametrize("unit", ["blocks", "tokens"])
def test_a_host_pool_is_no_part_of_the_sheet(unit):
    pools = (PoolReading(name="host", unit=unit, capacity=exact(5), used=exact(1)),)
    assert draw_snapshots([EngineSnapshot(engine=Engine.SGLANG, pools=pools)]) == ()
