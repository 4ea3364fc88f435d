"""Where everything lies at one instant: by hand, by its own arithmetic, and the same however it was reached."""

from dataclasses import replace

import numpy as np
import pytest

from kvledger.ledger import Account
from kvledger.pool import parse_policy
from kvledger.pool.policy import Kind, Policy
from kvledger.replay import Pool, Settings, SharedPrefix, Workload
from kvledger.replay import _layout as at
from kvledger.replay import replay as run
from kvledger.replay._places import take_snapshot
from kvledger.replay.moments import take_snapshots
from kvledger.replay.samples import with_samples
from kvledger.replay.simulate import assemble
from kvledger.replay.snapshot import Moment, Order

from .random_traffic import traffic
from .test_groups import block_groups

POOL = Pool(bytes_per_token=1024, capacity_tokens=6000, tensors_per_token=2, vmm_page_bytes=2**14)
SETTINGS = Settings(max_model_len=1024, max_num_seqs=64, max_num_batched_tokens=512)
NAMES = ("max", "pow2", "exact", "declared", "exact@first", "exact@buddy", "grow@exact", "grow@doubling",
         "grow@segments", "static-batch", "paged", "upfront", "no-evict", "vmm")  # fmt: skip


def snapshots_of(policy, workload, settings=SETTINGS):
    outcome = run(workload, policy, pool=POOL, settings=settings)
    return take_snapshots(workload, policy, pool=POOL, settings=settings, outcome=outcome), outcome


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_the_map_is_in_one_piece_or_in_a_hole(name):
    found, outcome = snapshots_of(parse_policy(name), traffic(400))
    assert {Moment.FULLEST, Moment.MOST_WASTE} <= {one.moment for one in found}
    for one in found:
        pieces, ledger = one.pieces, one.ledger
        assert ledger.capacity == outcome.capacity_bytes
        assert len(pieces) == one.running
        ends = pieces.start_bytes + pieces.size_bytes
        assert (pieces.start_bytes[1:] >= ends[:-1]).all()
        assert int(ends[-1]) <= ledger.capacity
        assert (pieces.used_bytes + pieces.reserved_bytes <= pieces.size_bytes).all()
        holes = ledger.capacity - int(pieces.size_bytes.sum())
        assert holes == ledger.free + ledger.external


@pytest.mark.parametrize("name", NAMES)
def test_a_moment_is_the_same_however_it_was_reached(name):
    workload, policy = traffic(400), parse_policy(name)
    found, _ = snapshots_of(policy, workload)
    for one in found:
        machine = assemble(workload, policy, pool=POOL, settings=SETTINGS)
        machine.state.core.ints[at.I_FAST] = 0
        while machine.state.core.ints[at.I_STEPS] < one.step:
            machine.advance(1)
        again = take_snapshot(machine, one.moment)
        assert again.ledger == one.ledger
        assert (again.pieces.start_bytes == one.pieces.start_bytes).all()
        assert (again.pieces.used_bytes == one.pieces.used_bytes).all()


def test_the_fullest_moment_holds_what_the_timeline_says_was_held_at_most():
    found, outcome = snapshots_of(parse_policy("paged"), traffic(400))
    fullest = next(one for one in found if one.moment is Moment.FULLEST)
    peak = max(point.peak_held_ratio for point in outcome.timeline)
    assert peak - 0.05 < fullest.ledger.held / fullest.ledger.capacity <= peak  # what ended in the step has left


def test_two_reservations_by_hand():
    """Requests of 10 + 30 and 20 + 30 tokens in extents of 100, of a pool of 250: 50 are too few for a third."""
    workload = replace(
        traffic(3),
        arrival_seconds=np.zeros(3),
        prompt_tokens=np.array([10, 20, 5], np.int32),
        output_tokens=np.array([30, 30, 2], np.int32),
        max_tokens=None,
    )
    pool, settings = Pool(bytes_per_token=8, capacity_tokens=250), Settings(max_model_len=100)
    policy = parse_policy("max")
    outcome = run(workload, policy, pool=pool, settings=settings)
    found = take_snapshots(workload, policy, pool=pool, settings=settings, outcome=outcome)
    waste = next(one for one in found if one.moment is Moment.MOST_WASTE)
    assert waste.order is Order.ADDRESSES
    assert waste.step == 1
    assert waste.pieces.start_bytes.tolist() == [0, 800]
    assert waste.pieces.size_bytes.tolist() == [800, 800]
    assert waste.pieces.used_bytes.tolist() == [80, 160]
    assert waste.pieces.reserved_bytes.tolist() == [720, 640]
    assert waste.ledger.accounts()[Account.FREE] == 400
    assert waste.asked_bytes == 800


def test_blocks_of_a_prefix_cache_are_told_one_by_one():
    policy = replace(parse_policy("paged"), prefix_caching=True)
    found, _ = snapshots_of(policy, traffic(400))
    for one in found:
        assert one.order is Order.BLOCKS
        held = one.blocks.references > 0
        assert (one.blocks.used_bytes[~held] == 0).all()
        assert (one.blocks.used_bytes[held] > 0).all()
        assert (one.blocks.cached_bytes[held] == 0).all()
        assert int(one.blocks.cached_bytes.sum()) == one.ledger.cached


def test_blocks_that_answers_share_are_told_one_by_one_with_all_who_refer_to_them():
    found, outcome = snapshots_of(parse_policy("paged"), with_samples(traffic(200), 3))
    assert outcome.sharing.copied_blocks > 0
    for one in found:
        assert one.order is Order.BLOCKS
        assert one.running % 3 == 0
        held = one.blocks.references > 0
        assert set(np.unique(one.blocks.references[held])) <= {1, 2, 3}
        assert (one.blocks.references == 3).any()
        assert int(one.blocks.used_bytes.sum()) == one.ledger.used
        assert (one.blocks.used_bytes[~held] == 0).all()
        assert (one.blocks.cached_bytes == 0).all()


def test_blocks_of_groups_hold_what_the_next_step_needs():
    """One request of 1 + 40 tokens, a window of 5 beside a full table, blocks of 4 tokens, 2 bytes a token.

    With c tokens stored, the next step needs all c of the full table and the last 4 of the window.
    """
    policy = Policy(name="paged", kind=Kind.PAGED, groups=block_groups([("window", 4, 5, 8), ("full", 4, 0, 8)], 8))
    workload = Workload(arrival_seconds=np.zeros(1), prompt_tokens=np.array([1]), output_tokens=np.array([40]))
    pool, settings = Pool(bytes_per_token=1, num_blocks=20), Settings(max_model_len=64)
    machine = assemble(workload, policy, pool=pool, settings=settings)
    for stored in range(1, 40):
        machine.advance(1)
        found = take_snapshot(machine, Moment.FULLEST)
        assert found.ledger.used == 2 * (stored + min(stored, 4))
        assert found.blocks.used_bytes.max() <= 8
        assert found.ledger.held == 8 * (found.blocks.references > 0).sum() <= 8 * (-(-stored // 4) + 2)
    outcome = run(workload, policy, pool=pool, settings=settings)
    moments = take_snapshots(workload, policy, pool=pool, settings=settings, outcome=outcome)
    assert moments
    assert all(one.order is Order.BLOCKS and one.ledger.used == 2 * (one.step + min(one.step, 4)) for one in moments)


@pytest.mark.parametrize("caching", [False, True])
def test_the_map_of_groups_is_what_plain_python_finds_in_the_tables(caching):
    groups = block_groups([("window", 4, 9, 8), ("full", 4, 0, 8)], 11)
    policy = Policy(name="paged", kind=Kind.PAGED, groups=groups, prefix_caching=caching)
    workload = replace(traffic(60), content=SharedPrefix(tokens=np.full(60, 24, np.int32))) if caching else traffic(60)
    pool, settings = Pool(bytes_per_token=1, num_blocks=600), replace(SETTINGS, max_num_seqs=12)
    outcome = run(workload, policy, pool=pool, settings=settings)
    found = take_snapshots(workload, policy, pool=pool, settings=settings, outcome=outcome)
    assert found
    for one in found:
        machine = assemble(workload, policy, pool=pool, settings=settings)
        while machine.state.core.ints[at.I_STEPS] < one.step:
            machine.advance(1)
        tables, core = machine.tables.tables, machine.state.core
        slots: dict[int, set[int]] = {}
        for slot in core.lists[at.ORDER, : core.ints[at.I_RUNNING]]:
            stored = int(core.slots[slot, at.S_COMPUTED])
            for group, span in enumerate((9, 0)):
                needed = range(max(0, stored - span + 1) if span else 0, stored)
                for token in needed:
                    slots.setdefault(int(tables.blocks[slot, group, token // 4]), set()).add(token % 4)
        assert {b: 2 * len(s) for b, s in slots.items()} == {
            int(b): int(n) for b, n in enumerate(one.blocks.used_bytes) if n
        }
        assert one.ledger.used == 2 * sum(map(len, slots.values()))


def test_answers_that_are_requests_have_the_number_of_theirs_in_the_trace():
    found, outcome = snapshots_of(parse_policy("max"), with_samples(traffic(20), 4))
    assert outcome.sequences == 80
    for one in found:
        numbers, counts = np.unique(one.pieces.request, return_counts=True)
        assert numbers.max() < 20
        assert counts.max() > 1


def test_an_empty_trace_has_no_moment():
    workload = traffic(1)
    workload = replace(workload, prompt_tokens=np.array([5000], np.int32))  # rejected: nothing ever runs
    assert snapshots_of(parse_policy("paged"), workload)[0] == []
