"""The ledger from block tables: by hand, and against a slow twin that walks every block."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account
from kvledger.measure.inside import GroupKind, InsideGroup, InsidePool, InsideState, RequestTable, draw_inside

FULL = InsideGroup(kind=GroupKind.FULL, block_tokens=4, payload_bytes=40)


def request(stored, *tables, prompt=None, output=0, name="r"):
    prompt = stored if prompt is None else prompt
    return RequestTable(
        request_id=name, prompt_tokens=prompt, output_tokens=output, stored_tokens=stored, tables=tables
    )


def draw(*requests, groups=(FULL,), blocks=20, block_bytes=40, cached=0, orphans=0):
    held = {block for one in requests for table in one.tables for block in table if block}
    state = InsideState(
        running=len(requests),
        waiting=0,
        preempted=0,
        prefilling=0,
        live_tokens=0,
        free_blocks=blocks - 1 - len(held) - orphans,
        cached_blocks=cached,
        requests=requests,
    )
    return draw_inside(InsidePool(blocks=blocks, block_bytes=block_bytes, groups=groups), state)


def test_one_request_of_six_tokens_holds_two_blocks_and_wastes_two_slots():
    """6 of 8 slots at 10 bytes; 17 of 20 blocks are free, 3 of them cached, and one is the null block."""
    reading = draw(request(6, [5, 9]), cached=3)
    assert {account: reading.ledger[account] for account in Account if reading.ledger[account]} == {
        Account.USED: 60,
        Account.INTERNAL: 20,
        Account.CACHED: 120,
        Account.FREE: 560,
        Account.UNATTRIBUTED: 40,
    }
    assert (reading.held_blocks, reading.used_tokens) == (2, 6)


def test_a_shared_block_counts_once_and_the_rest_is_saved():
    """Two requests of 6 and 7 tokens share their first block: 9 distinct tokens of 13."""
    reading = draw(request(6, [1, 2]), request(7, [1, 3]))
    assert (reading.used_tokens, reading.saved_tokens, reading.held_blocks) == (9, 4, 3)
    assert (reading.ledger.used, reading.ledger.internal, reading.ledger.memo.shared_saving) == (90, 30, 40)
    assert [(one.blocks, one.shared_blocks, one.held_bytes, one.needed_bytes) for one in reading.requests] == [
        (2, 1, 80, 60),
        (2, 1, 80, 70),
    ]


def test_blocks_behind_a_window_are_gone_and_what_is_left_of_one_is_stale():
    """Window 5, 11 stored: the next token reaches tokens 7 to 10, of which block 1 holds 4 to 7."""
    window = InsideGroup(kind=GroupKind.WINDOW, block_tokens=4, payload_bytes=40, reach_tokens=5)
    reading = draw(request(11, [0, 7, 8]), groups=(window,))
    assert (reading.ledger.used, reading.ledger.memo.stale, reading.ledger.internal) == (40, 30, 40)
    assert reading.used_tokens is None


def test_a_chunk_starts_afresh():
    """Chunk 8, 10 stored: tokens 8 and 9 are needed."""
    chunk = InsideGroup(kind=GroupKind.CHUNK, block_tokens=4, payload_bytes=40, reach_tokens=8)
    reading = draw(request(10, [0, 0, 3]), groups=(chunk,))
    assert (reading.ledger.used, reading.ledger.internal) == (20, 20)


def test_a_state_fills_its_last_block_and_the_others_are_kept_besides():
    state = InsideGroup(kind=GroupKind.STATE, block_tokens=4, payload_bytes=30)
    reading = draw(request(10, [1, 2]), groups=(state,))
    assert (reading.ledger.used, reading.ledger.internal) == (30, 50)


def test_narrow_groups_of_one_pool_leave_padding_in_internal():
    narrow = InsideGroup(kind=GroupKind.FULL, block_tokens=4, payload_bytes=24)
    reading = draw(request(8, [1, 2], [3, 4]), groups=(FULL, narrow))
    assert (reading.ledger.used, reading.ledger.internal) == (80 + 48, 32)


def test_what_no_table_explains_is_unattributed():
    other = InsideGroup(kind=GroupKind.OTHER, block_tokens=4, payload_bytes=40)
    reading = draw(request(8, [1, 2], [3]), groups=(FULL, other), orphans=2)
    assert [(part.amount, part.cause.partition(":")[0].partition(",")[0]) for part in reading.unattributed] == [
        (40, "null block"),
        (40, "held by layers of a kind whose needs are not known"),
        (80, "held"),
    ]


def test_an_empty_scheduler_has_an_empty_ledger():
    reading = draw()
    assert (reading.ledger.used, reading.ledger.free, reading.requests) == (0, 19 * 40, ())


KINDS = st.sampled_from([kind for kind in GroupKind if kind is not GroupKind.OTHER])
GROUPS = st.builds(
    InsideGroup,
    kind=KINDS,
    block_tokens=st.integers(1, 6),
    payload_bytes=st.just(720),
    reach_tokens=st.integers(1, 20),
)


def needed_from(group, stored):
    if group.kind is GroupKind.WINDOW:
        return max(0, stored - group.reach_tokens + 1)
    return stored // group.reach_tokens * group.reach_tokens if group.kind is GroupKind.CHUNK else 0


class Tables:
    """Hands out blocks; full leading blocks of one request may be another's too."""

    def __init__(self, data, groups):
        self.data, self.groups, self.next, self.requests = data, groups, 1, []

    def add(self, number):
        stored, tables = self.data.draw(st.integers(0, 30)), []
        for at, group in enumerate(self.groups):
            count = -(-stored // group.block_tokens)
            first = needed_from(group, stored) // group.block_tokens
            table = []
            donor = self.data.draw(st.sampled_from([None, *self.requests])) if self.requests else None
            for place in range(count):
                whole = (place + 1) * group.block_tokens <= min(stored, donor.stored_tokens if donor else 0)
                shared = group.kind is GroupKind.FULL and whole
                if place < first:
                    table.append(0)
                elif shared:
                    table.append(donor.tables[at][place])
                else:
                    table.append(self.next)
                    self.next += 1
            tables.append(table)
        self.requests.append(request(stored, *tables, name=str(number)))


def twin(groups, requests):
    """Walk every block: the tokens of each, and which of them somebody still needs."""
    used = stale = saved = 0
    for at, group in enumerate(groups):
        unit = 720 if group.kind is GroupKind.STATE else 720 // group.block_tokens
        filled, needed, logical = defaultdict(set), defaultdict(set), 0
        for one in requests:
            table = one.tables[at]
            for place, block in enumerate(table):
                if group.kind is GroupKind.STATE:
                    mine = {"state"} if place == len(table) - 1 else set()
                    reached = mine
                else:
                    mine = set(range(place * group.block_tokens, (place + 1) * group.block_tokens))
                    mine = {token for token in mine if token < one.stored_tokens}
                    reached = {token for token in mine if token >= needed_from(group, one.stored_tokens)}
                if block:
                    filled[block] |= mine
                    needed[block] |= reached
                    logical += len(reached)
        distinct = sum(map(len, needed.values()))
        used += distinct * unit
        stale += (sum(map(len, filled.values())) - distinct) * unit
        saved += (logical - distinct) * unit
    return used, stale, saved


@settings(max_examples=150, deadline=None)
@given(data=st.data(), groups=st.lists(GROUPS, min_size=1, max_size=3), count=st.integers(0, 6))
def test_the_ledger_is_that_of_a_walk_over_every_block(data, groups, count):
    tables = Tables(data, groups)
    for number in range(count):
        tables.add(number)
    reading = draw(*tables.requests, groups=tuple(groups), blocks=tables.next + 5, block_bytes=720)
    assert reading.ledger.check()
    found = reading.ledger.used, reading.ledger.memo.stale, reading.ledger.memo.shared_saving
    assert found == twin(groups, tables.requests)


@pytest.mark.parametrize("free", [-1, 30])
def test_counts_that_contradict_each_other_never_become_a_ledger(free):
    from kvledger.errors import UnbalancedLedger

    state = InsideState(
        running=0, waiting=0, preempted=0, prefilling=0, live_tokens=0, free_blocks=free, cached_blocks=0, requests=()
    )
    with pytest.raises(UnbalancedLedger):
        draw_inside(InsidePool(blocks=20, block_bytes=40, groups=(FULL,)), state)
