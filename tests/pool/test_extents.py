"""Extents and their holes, against a set of intervals."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvledger.pool import extents

PLACEMENTS = {"best": extents.BEST, "first": extents.FIRST, "next": extents.NEXT, "worst": extents.WORST}
LIMIT = 40


class Holes:
    """The kernels' arrays, as an object."""

    def __init__(self, capacity):
        self.starts, self.sizes, self.meta = extents.new_holes(LIMIT)
        extents.reset(self.starts, self.sizes, self.meta, capacity)

    def list(self):
        count = int(self.meta[extents.COUNT])
        return [(int(self.starts[i]), int(self.sizes[i])) for i in range(count)]

    def allocate(self, size, placement):
        hole = extents.find_hole(self.starts, self.sizes, self.meta, size, PLACEMENTS[placement])
        return None if hole < 0 else extents.take(self.starts, self.sizes, self.meta, hole, size)

    def free(self, address, size):
        extents.release(self.starts, self.sizes, self.meta, address, size)

    def external(self, size):
        return extents.count_external(self.sizes, self.meta, size)


def holes_between(live, capacity):
    """Return the gaps between live intervals, from nothing but the intervals."""
    taken = {unit for address, size in live.items() for unit in range(address, address + size)}
    found, start = [], None
    for unit in range(capacity + 1):
        is_free = unit < capacity and unit not in taken
        if is_free and start is None:
            start = unit
        if not is_free and start is not None:
            found.append((start, unit - start))
            start = None
    return found


def lost_by_packing(holes, size):
    """Count the free units that requests of ``size`` lose, by placing as many as go in, one unit after the other."""
    free = sum(room for _, room in holes)
    together = len(range(size, free + 1, size))
    apart = sum(len(range(size, room + 1, size)) for _, room in holes)
    return (together - apart) * size


class ExtentMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(0, 60))
    def start(self, capacity):
        self.capacity, self.live, self.rover = capacity, {}, 0
        self.holes = Holes(capacity)

    def expected_address(self, size, placement):
        fitting = [h for h in holes_between(self.live, self.capacity) if h[1] >= size]
        if not fitting:
            return None
        if placement == "best":
            return min(fitting, key=lambda h: (h[1], h[0]))[0]
        if placement == "worst":
            return min(fitting, key=lambda h: (-h[1], h[0]))[0]
        if placement == "next":
            return next((h for h in fitting if h[0] >= self.rover), fitting[0])[0]
        return fitting[0][0]

    @precondition(lambda self: len(self.live) < LIMIT)
    @rule(size=st.integers(1, 20), placement=st.sampled_from(sorted(PLACEMENTS)))
    def allocate(self, size, placement):
        expected = self.expected_address(size, placement)
        assert self.holes.allocate(size, placement) == expected
        if expected is not None:
            self.live[expected] = size
            self.rover = expected + size

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        address = data.draw(st.sampled_from(sorted(self.live)))
        self.holes.free(address, self.live.pop(address))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_everything(self, data):
        for address in data.draw(st.permutations(sorted(self.live))):
            self.holes.free(address, self.live.pop(address))
        assert self.holes.list() == ([(0, self.capacity)] if self.capacity else [])

    @invariant()
    def holes_are_exactly_what_the_live_extents_leave(self):
        assert self.holes.list() == holes_between(self.live, self.capacity)

    @invariant()
    def holes_are_sorted_apart_and_sum_with_the_extents_to_the_pool(self):
        holes = self.holes.list()
        assert all(a + size < b for (a, size), (b, _) in itertools.pairwise(holes))
        assert sum(size for _, size in holes) + sum(self.live.values()) == self.capacity

    @invariant()
    def external_is_what_packing_loses(self):
        holes = holes_between(self.live, self.capacity)
        assert [self.holes.external(q) for q in range(1, 25)] == [lost_by_packing(holes, q) for q in range(1, 25)]


TestExtents = ExtentMachine.TestCase
TestExtents.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.sampled_from(sorted(PLACEMENTS)), st.data())
def test_the_order_of_frees_does_not_change_the_holes_that_remain(sizes, placement, data):
    one, other = Holes(sum(sizes)), Holes(sum(sizes))
    live = [(one.allocate(size, placement), size) for size in sizes]
    assert [(other.allocate(size, placement), size) for size in sizes] == live
    freed = data.draw(st.sets(st.sampled_from(range(len(live)))))
    for i in sorted(freed):
        one.free(*live[i])
    for i in data.draw(st.permutations(sorted(freed))):
        other.free(*live[i])
    assert one.list() == other.list()


@given(st.lists(st.integers(1, 12), max_size=20), st.integers(1, 12), st.sampled_from(sorted(PLACEMENTS)))
def test_freeing_undoes_allocating(sizes, size, placement):
    holes = Holes(100)
    live = [(holes.allocate(s, placement), s) for s in sizes]
    for address, s in live[::2]:
        if address is not None:
            holes.free(address, s)
    before = holes.list()
    address = holes.allocate(size, placement)
    if address is not None:
        holes.free(address, size)
    assert holes.list() == before


def test_holes_too_small_for_the_next_request_are_external():
    """Holes of 3 and 3: six are free, a request of 5 would fit in six, and fits in none: 5 * (1 - 0) = 5 are lost."""
    holes = Holes(10)
    first, second = holes.allocate(3, "first"), holes.allocate(4, "first")
    holes.free(first, 3)
    assert second == 3
    assert holes.list() == [(0, 3), (7, 3)]
    assert holes.external(5) == 5
    assert holes.external(3) == 0
    assert holes.external(2) == 2  # three would fit in six, one fits in each hole


def test_an_empty_pool_has_no_hole():
    assert Holes(0).list() == []
    assert Holes(0).allocate(1, "best") is None


@pytest.mark.parametrize(("placement", "address"), [("best", 12), ("first", 0), ("next", 17), ("worst", 4)])
def test_placements_choose_among_three_holes_as_their_name_says(placement, address):
    """Holes, cut by hand: [0,3) 3, [4,11) 7, [12,14) 2 and [17,20) 3; asked: 2."""
    holes = Holes(20)
    for size in (3, 1, 7, 1, 2, 3, 3):
        holes.allocate(size, "first")
    for start, size in ((0, 3), (4, 7), (12, 2), (17, 3)):
        holes.free(start, size)
    holes.meta[extents.ROVER] = 15
    assert holes.allocate(2, placement) == address
