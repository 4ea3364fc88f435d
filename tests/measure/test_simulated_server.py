"""The laws against a simulated server whose truth is known at every sample, over random loads."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.measure.balance import Scheduling
from kvledger.measure.meter import Meter
from tests.measure.simulated_server import Server, drive

SEEDS = st.integers(0, 2**32)


def check(server, *, seed, skip=0, scheduling=Scheduling.UNKNOWN, **load):
    """Measure a load; assert that every interval holds the truth, at once and settled; return the readings."""
    meter = Meter(scheduling=scheduling)
    truths = []
    for number, (scrape, stored, live) in enumerate(drive(server, seed=seed, **load)):
        if number < skip:
            continue
        reading = meter.take(scrape, seconds=float(number))[0]
        truths.append((stored, live))
        assert reading.balance.held == server.held_blocks() * server.block
        assert reading.balance.used.low <= stored <= reading.balance.used.high
        assert reading.balance.live.low <= live <= reading.balance.live.high
    settled = meter.settle()[0]
    for (stored, live), reading in zip(truths, settled, strict=True):
        assert reading.balance.used.low <= stored <= reading.balance.used.high
        assert reading.balance.live.low <= live <= reading.balance.live.high
        assert reading.sheet.ledger.check() is reading.sheet.ledger
    return settled


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, is_asynchronous=st.booleans(), caching=st.booleans(), pressure=st.sampled_from([0.05, 0.2, 0.6]))
def test_intervals_hold_the_truth_when_everything_happens_at_once(seed, is_asynchronous, caching, pressure):
    server = Server(is_asynchronous=is_asynchronous, caching=caching)
    check(server, seed=seed, steps=120, aborts=0.08, sharing=0.5, pressure=pressure)


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, skip=st.integers(1, 60), is_asynchronous=st.booleans())
def test_intervals_hold_the_truth_when_the_first_sample_finds_a_busy_server(seed, skip, is_asynchronous):
    server = Server(is_asynchronous=is_asynchronous)
    check(server, seed=seed, steps=200, aborts=0.1, sharing=0.3, skip=skip)


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, is_asynchronous=st.booleans())
def test_without_sharing_losses_or_pressure_everything_is_exact(seed, is_asynchronous):
    server = Server(is_asynchronous=is_asynchronous, blocks=2000, budget=4000, max_running=400)
    known = Scheduling.AHEAD if is_asynchronous else Scheduling.IN_STEP
    for reading in check(server, seed=seed, steps=80, scheduling=known):
        if reading.balance.prefilling.high == 0:
            assert reading.balance.used.is_exact
            assert reading.balance.live.is_exact


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
def test_used_is_never_wider_than_a_block_for_each_running_request(seed):
    for reading in check(Server(), seed=seed, steps=150, aborts=0.1, sharing=0.5):
        assert reading.balance.used.width <= reading.running * 15


@settings(max_examples=6, deadline=None)
@given(seed=SEEDS)
def test_preempted_requests_are_counted_exactly_once_settled_when_nobody_leaves(seed):
    server = Server(blocks=33, caching=False)
    readings = check(server, seed=seed, steps=150, pressure=0.6)
    assert readings[-1].running == 0
    assert readings[-1].balance.live.high == 0


@pytest.mark.parametrize(("is_asynchronous", "expected"), [(True, Scheduling.AHEAD), (False, Scheduling.IN_STEP)])
def test_one_request_at_a_time_tells_how_the_server_schedules(is_asynchronous, expected):
    server = Server(is_asynchronous=is_asynchronous, budget=4000)
    meter = Meter()
    last = None
    for _ in range(4):
        server.submit(20, 60)
        for _ in range(70):
            server.step()
            last = meter.take(server.scrape(), seconds=0.0)[0]
    assert last.scheduling is expected


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, is_asynchronous=st.booleans(), caching=st.booleans())
def test_scheduling_is_never_mistaken(seed, is_asynchronous, caching):
    server = Server(is_asynchronous=is_asynchronous, caching=caching)
    readings = check(server, seed=seed, steps=150, aborts=0.05, sharing=0.2, pressure=0.1)
    wrong = Scheduling.IN_STEP if is_asynchronous else Scheduling.AHEAD
    assert all(reading.scheduling is not wrong for reading in readings)


def bursts(server, *, seed):
    """Yield (scrape, stored tokens, live tokens) at every step of bursts that do not fit, and after them."""
    generator = random.Random(seed)
    for step in range(450):
        if step % 150 < 40 and generator.random() < 0.35:
            server.submit(generator.randrange(1, 150), generator.randrange(20, 60))
        server.step()
        yield server.scrape(), server.stored_tokens(), server.live_tokens()


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, is_asynchronous=st.booleans(), budget=st.sampled_from([14, 18, 24]))
def test_intervals_hold_the_truth_while_a_preempted_request_is_computed_again(seed, is_asynchronous, budget):
    """Ten samples a second of a slow server: computing a request again takes longer than any number of samples."""
    server = Server(blocks=65, budget=budget, is_asynchronous=is_asynchronous, longest_blocks=14)
    meter, truths = Meter(), []
    for number, (scrape, stored, live) in enumerate(bursts(server, seed=seed)):
        reading = meter.take(scrape, seconds=number / 10)[0]
        truths.append((stored, live))
        assert reading.balance.used.low <= stored <= reading.balance.used.high
    for (stored, live), reading in zip(truths, meter.settle()[0], strict=True):
        assert reading.balance.used.low <= stored <= reading.balance.used.high
        assert reading.balance.live.low <= live <= reading.balance.live.high


@pytest.mark.parametrize(("seed", "gap", "budget"), [(1405, 5, 24), (2909, 2, 64), (4438, 5, 14)])
def test_a_pool_that_was_full_between_two_samples_and_is_not_any_more_can_have_preempted(seed, gap, budget):
    """A request ends after the preemption: neither sample finds the pool near full."""
    server, meter = Server(blocks=33, budget=budget, longest_blocks=14), Meter()
    for number, (scrape, stored, _) in enumerate(bursts(server, seed=seed)):
        if number % gap == 0:
            used = meter.take(scrape, seconds=number / 10)[0].balance.used
            assert used.low <= stored <= used.high


def test_a_request_that_takes_the_place_of_one_whose_client_left_may_be_computed_again():
    """Asynchronous: every running request had emitted at every step, and one of them had only just been admitted."""
    server = Server(is_asynchronous=True, budget=64)
    readings = check(server, seed=2518, steps=150, aborts=0.05, sharing=0.3, pressure=0.6, every=1)
    assert readings[-1].running == 0
