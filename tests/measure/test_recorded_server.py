"""The laws against recorded servers: vLLM 0.32.0 on a CPU, 257 blocks of 32 tokens, 64 tokens a step.

Each recording has one client that streamed every token and counted them; the truth is its count. ``async`` ran with
the defaults, ``sync`` with ``--no-async-scheduling``, which is all that vLLM does on a CPU. Phases: plain, shared
prefix, long prompts in many chunks, clients that disconnect, and more load than the pool holds. Three scrapes of
``async`` are torn: their live tokens are not told.
"""

import pytest

from kvledger.measure.balance import Scheduling, Unsure
from kvledger.measure.meter import Meter
from tests.measure.recorded import client_tokens, is_busy, measure, rows, scrapes

RECORDINGS = ["async", "sync"]
BLOCK = 32


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recording_holds_a_hundred_busy_samples_with_every_kind_of_traffic(name):
    busy = [row["phase"] for row, scrape in zip(rows(name), scrapes(name), strict=True) if is_busy(scrape)]
    assert len(busy) >= 100
    assert set(busy) >= {"plain", "chunked", "aborted", "preempted"}


@pytest.mark.parametrize("name", RECORDINGS)
def test_live_tokens_hold_the_clients_count_within_one_step(name):
    """The client sees a token at most one step late; a step gives each running request one token."""
    for row, reading in measure(name):
        if Unsure.TORN in reading.balance.causes:
            continue
        low, high = client_tokens(row)
        step = reading.running + 1
        assert low - step <= reading.balance.live.high, row["phase"]
        assert reading.balance.live.low <= high + step + sum(row["pending_before"].values()), row["phase"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_live_tokens_are_exact_in_plain_and_preempted_traffic_once_settled(name):
    for row, reading in measure(name, phases={"plain", "preempted", "chunked"}):
        assert reading.balance.live.is_exact
        low, high = client_tokens(row)
        if row["before"] == row["after"] and reading.balance.prefilling.high == 0:
            assert abs(reading.balance.live.low - low) <= reading.running
        assert low - reading.running <= reading.balance.live.low <= high + sum(row["pending_before"].values()) + 64


@pytest.mark.parametrize("name", RECORDINGS)
def test_held_equals_the_blocks_of_the_clients_requests(name):
    """Samples at which nothing moved for the client: held is the sum of ceil(length / 32), one step of slack."""
    checked = 0
    for row, reading in measure(name, phases={"plain", "aborted"}):
        lengths = row["before"].values()
        still = row["before"] == row["after"] and not row["pending_before"] and not row["pending_after"]
        if not still or len(lengths) != reading.running or row["aborted_before"] != row["aborted_after"]:
            continue
        low = sum(-(-(length - 1) // BLOCK) for length in lengths) * BLOCK
        high = sum(-(-(length + 1) // BLOCK) for length in lengths) * BLOCK
        assert low <= reading.balance.held <= high
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize("name", RECORDINGS)
def test_used_tokens_hold_what_the_clients_stored(name):
    """Without sharing: what is stored of each request is its length, or one less while a step is under way."""
    for row, reading in measure(name, phases={"plain", "aborted"}):
        if reading.balance.prefilling.high or row["before"].keys() != row["after"].keys():
            continue
        low, high = client_tokens(row)
        used = reading.balance.used
        assert used.low <= high + reading.running
        assert low - 2 * reading.running <= used.high


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("only_busy", [True, False])
def test_a_server_that_is_never_idle_is_known_within_one_block_a_running_request(name, only_busy):
    for row, reading in measure(name, only_busy=only_busy, settled=False):
        low, high = client_tokens(row)
        assert reading.balance.used.width <= reading.running * BLOCK
        if Unsure.TORN in reading.balance.causes:
            continue
        assert low - reading.running - 1 <= reading.balance.live.high
        assert reading.balance.live.low <= high + reading.running + sum(row["pending_before"].values())


def test_lost_clients_are_pinned_down_without_an_idle_moment():
    """59 clients left; never idle, the offset they left is known within one block a running request."""
    checked, meter = 0, Meter()
    for row, scrape in zip(rows("async"), scrapes("async"), strict=True):
        if row["phase"] != "aborted" or not is_busy(scrape):
            continue
        (reading,) = meter.take(scrape, seconds=row["seconds"])
        balance = reading.balance
        if balance.prefilling.high == 0 and Unsure.PREEMPTED not in balance.causes:
            assert balance.live.width <= reading.running * BLOCK
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize("name", RECORDINGS)
def test_everything_returns_to_zero_after_the_load(name):
    after = [reading for row, reading in measure(name) if row["phase"].endswith("/after")]
    assert after
    for reading in (after[0], after[-1]):
        assert (reading.balance.live.low, reading.balance.live.high) == (0, 0)
        assert (reading.balance.held, reading.balance.used.high) == (0, 0)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_ledger_balances_and_names_what_it_leaves_open(name):
    for _, reading in measure(name):
        sheet = reading.sheet
        assert sheet.ledger.check() is sheet.ledger
        assert sheet.unit == "tokens"
        assert sheet.ledger.capacity == 257 * BLOCK
        assert sum(part.amount for part in sheet.unattributed) == sheet.ledger.unattributed
        assert sheet.ledger.used <= sheet.figure("used").high <= sheet.figure("held").high


def test_shared_prefixes_are_counted_once():
    """Requests share 200 tokens, 192 of them whole blocks: live exceeds held, and the saving is some of those."""
    readings = [reading for _, reading in measure("async", phases={"shared"}) if reading.running >= 8]
    readings = [reading for reading in readings if Unsure.TORN not in reading.balance.causes]
    assert len(readings) >= 10
    for reading in readings:
        balance = reading.balance
        assert balance.live.low > balance.held
        assert balance.shared_saving.high <= 256 * reading.running
        assert balance.shared_saving.low >= 192 * (reading.running - 2) - 32 * reading.running


@pytest.mark.parametrize("name", RECORDINGS)
def test_scheduling_in_step_is_never_taken_for_scheduling_ahead(name):
    assert {reading.scheduling for _, reading in measure(name)} <= {Scheduling.UNKNOWN, Scheduling.IN_STEP}
