"""llama.cpp's slots: sheets by hand in both layouts, and what samples prove about the layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engines.quantity import exact
from kvledger.measure.slots import Cells, Layout, LayoutProof
from kvledger.measure.snapshots import Hints, draw_pool
from tests.measure.slot_server import slot, snapshot_of

FOUR = [slot(0, tokens=300, busy=True, task=9, prompt=100), slot(1, tokens=200, task=3), slot(2, tokens=0, task=4)]
FOUR += [slot(3, tokens=None)]


def draw(slots, layout=Layout.UNKNOWN, **cells):
    snapshot = snapshot_of(*slots)
    found = draw_pool(snapshot, snapshot.pools[0], Hints(cells=Cells(layout=layout, **cells)))
    assert found.sheet is not None, found.problem
    return found.sheet


def amounts(sheet):
    return {account.value: amount for account, amount in sheet.ledger.accounts().items() if amount}


def interval(sheet, name):
    return sheet.figure(name).low, sheet.figure(name).high


def test_slots_with_strips_reserve_the_rest_of_each_strip():
    """4 strips of 1,000: one works with 300 tokens, one keeps 200, two are empty."""
    assert amounts(draw(FOUR, Layout.STRIPS)) == {"used": 300, "cached": 200, "reserved": 700, "free": 2800}


def test_slots_that_share_take_cells_as_tokens_come():
    """1,000 cells for all: nothing is reserved."""
    assert amounts(draw(FOUR, Layout.SHARED)) == {"used": 300, "cached": 200, "free": 500}


def test_where_the_layout_is_not_known_only_what_both_say_is_attributed():
    sheet = draw(FOUR)
    assert amounts(sheet) == {"used": 300, "cached": 200, "free": 500, "unattributed": 3000}
    assert interval(sheet, "capacity") == (1000, 4000)
    assert interval(sheet, "reserved") == (0, 700)
    assert interval(sheet, "free") == (500, 2800)
    assert "--kv-unified" in sheet.unattributed[0].cause


def test_one_slot_is_the_same_in_both_layouts():
    assert amounts(draw([slot(0, tokens=10, busy=True)])) == {"used": 10, "reserved": 990}


def test_cells_beyond_the_training_context_are_of_no_use_to_a_strip():
    """2 strips of 1,280 cells of which a slot may use 1,000."""
    sheet = draw([slot(0, tokens=10, busy=True), slot(1, tokens=0)], Layout.STRIPS, counts={Layout.STRIPS: 2560})
    assert amounts(sheet) == {"used": 10, "reserved": 990, "free": 1000, "unattributed": 560}
    assert "beyond the training context" in sheet.unattributed[0].cause


def test_a_window_needs_its_last_tokens_and_leaves_the_rest_of_a_strip_as_grain():
    """Strips of 768 cells for a window of 512: 600 tokens need 512 of them, 100 tokens 100; 256 are a buffer."""
    slots = [slot(0, tokens=600, busy=True), slot(1, tokens=100, busy=True, task=5), slot(2, tokens=700)]
    counts = {Layout.STRIPS: 3 * 768, Layout.SHARED: 2304}
    sheet = draw(slots, Layout.STRIPS, counts=counts, is_windowed=True, window_tokens=512)
    assert amounts(sheet) == {"used": 612, "cached": 512, "reserved": 412, "internal": 512, "free": 256}


def test_a_window_that_is_not_told_gives_no_ledger():
    snapshot = snapshot_of(*FOUR)
    found = draw_pool(snapshot, snapshot.pools[0], Hints(cells=Cells(layout=Layout.STRIPS, is_windowed=True)))
    assert "--model" in found.problem


def test_one_request_that_runs_several_times_may_share_the_cells_of_its_prompt():
    """Tasks 7 and 8 with equal prompts of 90 tokens: 100 + 100 tokens in 110 to 200 cells."""
    slots = [slot(n, tokens=100, busy=True, task=7 + n, prompt=90) for n in (0, 1)]
    sheet = draw(slots, Layout.SHARED)
    assert interval(sheet, "used") == (110, 200)
    assert interval(sheet, "shared_saving") == (0, 90)
    assert interval(sheet, "internal") == (0, 0)
    assert interval(draw(slots, Layout.STRIPS), "used") == (200, 200)


@pytest.mark.parametrize("second", [{"task": 12, "prompt": 90}, {"task": 8, "prompt": 89}])
def test_requests_that_are_not_alike_or_not_consecutive_share_nothing(second):
    slots = [slot(0, tokens=100, busy=True, task=7, prompt=90), slot(1, tokens=100, busy=True, **second)]
    assert interval(draw(slots, Layout.SHARED), "used") == (200, 200)


def test_a_build_that_does_not_count_tokens_leaves_them_between_generated_and_the_context():
    slots = [slot(0, tokens=50, busy=True, prompt=20), slot(1, tokens=30)]
    for one in slots:
        del one["n_prompt_tokens"]
    sheet = draw(slots, Layout.STRIPS)
    assert interval(sheet, "used") == (29, 1000)
    assert interval(sheet, "cached") == (0, 1000)
    assert amounts(sheet) == {"used": 29, "unattributed": 1971}


def test_the_gauge_of_old_builds_narrows_what_slots_leave_open():
    """5/8 of 2,000 cells are taken in all; a working slot has at most 1,000 of them."""
    from dataclasses import replace

    slots = [slot(0, tokens=50, busy=True, prompt=20), slot(1, tokens=30)]
    for one in slots:
        del one["n_prompt_tokens"]
    snapshot = snapshot_of(*slots)
    pools = (replace(snapshot.pools[0], usage_ratio=exact(0.625), occupied=exact(1250)),)
    found = draw_pool(replace(snapshot, pools=pools), pools[0], Hints(cells=Cells(layout=Layout.STRIPS))).sheet
    assert interval(found, "used") == (250, 1000)
    assert interval(found, "cached") == (250, 1000)


def prove(*samples):
    proof = LayoutProof()
    for slots in samples:
        proof.take(snapshot_of(*slots).slots)
    return proof


def test_more_tokens_than_a_context_prove_strips():
    proof = prove([slot(0, tokens=700, busy=True, task=3, prompt=500), slot(1, tokens=400)])
    assert proof.layout is Layout.STRIPS
    assert "1,100 tokens" in proof.source


def test_an_idle_slot_that_is_cleared_proves_that_slots_share():
    before = [slot(0, tokens=300, task=3), slot(1, tokens=0, task=1)]
    after = [slot(0, tokens=0, task=3), slot(1, tokens=200, busy=True, task=8)]
    assert prove(before, after).layout is Layout.SHARED


def test_a_slot_that_had_another_request_meanwhile_proves_nothing():
    before, after = [slot(0, tokens=300, task=3)], [slot(0, tokens=0, task=5)]
    other = slot(1, tokens=10)
    assert prove([*before, other], [*after, other]).layout is Layout.UNKNOWN


def test_a_family_of_equal_prompts_proves_no_strips():
    slots = [slot(n, tokens=700, busy=True, task=7 + n, prompt=690) for n in (0, 1)]
    assert prove(slots).layout is Layout.UNKNOWN


SLOTS = st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=6)


@given(SLOTS, st.sampled_from([Layout.STRIPS, Layout.SHARED]), st.booleans())
def test_what_is_told_holds_for_cells_counted_one_by_one(chosen, truth, told):
    """A naive server: each cell of each strip (or of one pool) is free, or belongs to a working or an idle slot.

    One slot owns its pool in any case.
    """
    truth = Layout.STRIPS if len(chosen) == 1 else truth
    slots = [slot(n, tokens=t, busy=busy, task=10 * n) for n, (t, busy) in enumerate(chosen)]
    total = sum(tokens for tokens, _ in chosen)
    if truth is Layout.SHARED and total > 1000:
        return
    cells = ["free"] * (1000 if truth is Layout.SHARED else 1000 * len(slots))
    place = 0
    for number, (tokens, busy) in enumerate(chosen):
        place = place if truth is Layout.SHARED else 1000 * number
        cells[place : place + tokens] = ["used" if busy else "cached"] * tokens
        if truth is Layout.STRIPS and busy:
            cells[place + tokens : place + 1000] = ["reserved"] * (1000 - tokens)
        place += tokens
    sheet = draw(slots, truth if told else Layout.UNKNOWN)
    for name in ("used", "cached", "reserved", "free", "internal"):
        low, high = interval(sheet, name)
        assert low <= cells.count(name) <= high, name
        if told and len(slots) > 1:
            assert low == high
    assert sheet.available <= cells.count("free") + cells.count("cached")
