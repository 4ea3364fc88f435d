"""The buddy allocator, against a bitmap of the pool."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvledger.pool import buddy

LIMIT = 40


class Buddies:
    """The kernels' arrays, as an object."""

    def __init__(self, capacity):
        self.blocks, self.counts = buddy.new_free_blocks(LIMIT)
        buddy.reset(self.blocks, self.counts, capacity)

    def list(self):
        return sorted(
            (int(self.blocks[order, i]), 1 << order)
            for order in range(buddy.ORDERS)
            for i in range(int(self.counts[order]))
        )

    def allocate(self, order):
        address = buddy.allocate(self.blocks, self.counts, order)
        return None if address < 0 else address

    def free(self, address, order):
        buddy.release(self.blocks, self.counts, address, order)


def roots_of(capacity):
    """Return the powers of two that sum to the capacity, large ones first, as (address, size)."""
    found, address = [], 0
    while address < capacity:
        size = 1 << ((capacity - address).bit_length() - 1)
        found.append((address, size))
        address += size
    return found


def largest_free_blocks(live, capacity):
    """Return the maximal aligned free blocks inside each root, from nothing but the live blocks."""
    taken = {unit for address, order in live.items() for unit in range(address, address + (1 << order))}
    found = []

    def visit(address, size):
        inside = taken & set(range(address, address + size))
        if not inside:
            found.append((address, size))
        elif size > 1 and len(inside) < size:
            visit(address, size // 2)
            visit(address + size // 2, size // 2)

    for root in roots_of(capacity):
        visit(*root)
    return sorted(found)


class BuddyMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(0, 100))
    def start(self, capacity):
        self.capacity, self.live = capacity, {}
        self.buddies = Buddies(capacity)

    @precondition(lambda self: len(self.live) < LIMIT)
    @rule(order=st.integers(0, 6))
    def allocate(self, order):
        fitting = [b for b in largest_free_blocks(self.live, self.capacity) if b[1] >= 1 << order]
        expected = min(fitting, key=lambda b: (b[1], b[0]))[0] if fitting else None
        assert buddy.can_allocate(self.buddies.counts, order) == bool(fitting)
        assert self.buddies.allocate(order) == expected
        if expected is not None:
            self.live[expected] = order

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        address = data.draw(st.sampled_from(sorted(self.live)))
        self.buddies.free(address, self.live.pop(address))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_everything(self, data):
        for address in data.draw(st.permutations(sorted(self.live))):
            self.buddies.free(address, self.live.pop(address))
        assert self.buddies.list() == roots_of(self.capacity)

    @invariant()
    def free_blocks_are_the_largest_the_live_ones_leave(self):
        assert self.buddies.list() == largest_free_blocks(self.live, self.capacity)

    @invariant()
    def blocks_are_aligned_to_their_size_and_sum_to_the_pool(self):
        free = self.buddies.list()
        assert all(address % size == 0 for address, size in free)
        assert sum(size for _, size in free) + sum(1 << o for o in self.live.values()) == self.capacity

    @invariant()
    def external_is_what_packing_loses(self):
        holes = [size for _, size in self.buddies.list()]
        for order in range(8):
            size = 1 << order
            together, apart = len(range(size, sum(holes) + 1, size)), sum(len(range(size, h + 1, size)) for h in holes)
            assert buddy.count_external(self.buddies.counts, order) == (together - apart) * size


TestBuddies = BuddyMachine.TestCase
TestBuddies.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_the_order_of_frees_does_not_change_what_remains(orders, data):
    one, other = Buddies(96), Buddies(96)
    live = [(one.allocate(order), order) for order in orders]
    assert [(other.allocate(order), order) for order in orders] == live
    freed = data.draw(st.sets(st.sampled_from(range(len(live)))))
    for i in sorted(freed):
        one.free(*live[i])
    for i in data.draw(st.permutations(sorted(freed))):
        other.free(*live[i])
    assert one.list() == other.list()


@given(st.integers(1, 2**50))
def test_the_order_of_a_size_is_the_smallest_that_holds_it(size):
    assert buddy.order_of(size) == (size - 1).bit_length()


def test_a_pool_is_laid_out_as_the_powers_of_two_that_sum_to_it():
    """13 = 8 + 4 + 1, from large to small."""
    assert Buddies(13).list() == [(0, 8), (8, 4), (12, 1)]


def test_a_freed_block_joins_its_buddy_again_and_again():
    buddies = Buddies(8)
    addresses = [buddies.allocate(0) for _ in range(8)]
    assert addresses == list(range(8))
    assert buddies.allocate(0) is None
    for address in addresses:
        buddies.free(address, 0)
    assert buddies.list() == [(0, 8)]
