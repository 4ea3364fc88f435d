"""The laws against the ledgers that the scheduler of the same server drew up at the same step, sample by sample.

vLLM 0.32.0 on a CPU, 257 blocks of 32 tokens, 64 tokens a step, recorded by ``tests.live.record``: ``in-step`` as it
comes, ``ahead`` with asynchronous scheduling, which vLLM's CPU platform otherwise switches off.
"""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.ledger import Account
from kvledger.measure.balance import Scheduling, Unsure
from kvledger.measure.figure import Span
from kvledger.measure.meter import Meter
from tests.live.truth import contradictions

DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0-inside"
RECORDINGS = ["in-step", "ahead"]
KNOWN = {"in-step": Scheduling.IN_STEP, "ahead": Scheduling.AHEAD}
BLOCK = 32
LEAVE = ("aborted", "abandoned")


@cache
def rows(name):
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def phase_of(row):
    return row["phase"].partition("/")[0]


@cache
def measured(name, *, begin=0, only_busy=False, known=False):
    """Return (row, reading at once, reading settled) from a sample on, torn ones left out."""
    chosen = [row for row in rows(name)[begin:] if row["running"] or not only_busy]
    meter = Meter(scheduling=KNOWN[name] if known else Scheduling.UNKNOWN)
    online = [meter.take(read_vllm_metrics(row["text"]), seconds=row["seconds"])[0] for row in chosen]
    found = zip(chosen, online, meter.settle()[0], strict=True)
    return [one for one in found if Unsure.TORN not in one[1].balance.causes]


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recording_has_a_hundred_busy_samples_of_every_traffic(name):
    busy = [row for row in rows(name) if row["running"]]
    assert len(busy) >= 100
    assert {phase_of(row) for row in busy} == {"plain", "shared", "chunked", *LEAVE, "preempted"}
    assert max(row["preempted"] for row in busy) >= 3
    assert max(row["saved_tokens"] for row in busy) >= 192
    assert max(row["prefilling"] for row in busy) >= 1
    assert len(measured(name)) >= len(rows(name)) - 10


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("only_busy", [False, True])
@pytest.mark.parametrize("name", RECORDINGS)
def test_every_interval_holds_what_the_scheduler_knows(name, only_busy, known):
    for row, *readings in measured(name, only_busy=only_busy, known=known):
        for reading in readings:
            assert contradictions(reading, row, clients_leave=phase_of(row) in LEAVE) == {}, row["phase"]
            assert reading.sheet.ledger.check()


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("begin", range(3, 230, 75))
def test_wherever_measuring_begins_the_intervals_hold_the_truth(name, begin):
    for row, *readings in measured(name, begin=begin):
        for reading in readings:
            assert contradictions(reading, row, clients_leave=phase_of(row) in LEAVE) == {}, row["phase"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_live_tokens_are_the_schedulers_to_the_token_where_no_client_leaves(name):
    for row, _, reading in measured(name):
        if phase_of(row) not in LEAVE:
            assert reading.balance.live == Span.exact(row["live_tokens"])


@pytest.mark.parametrize("name", RECORDINGS)
def test_used_tokens_are_exact_in_plain_traffic_once_the_scheduling_is_known(name):
    exact = 0
    for row, _, reading in measured(name, known=True):
        if phase_of(row) == "plain" and reading.running and not reading.balance.prefilling.high:
            assert reading.balance.used == Span.exact(row["used_tokens"])
            exact += 1
    assert exact >= 10


@pytest.mark.parametrize("name", RECORDINGS)
def test_held_is_the_schedulers_own_count_of_blocks(name):
    for row, _, reading in measured(name):
        assert reading.balance.held == row["held_blocks"] * BLOCK


@pytest.mark.parametrize("name", RECORDINGS)
def test_never_idle_the_offset_of_lost_clients_is_within_a_block_a_running_request(name):
    pinned = 0
    for row, reading, _ in measured(name, only_busy=True):
        assert reading.balance.used.width <= reading.running * (BLOCK - 1)
        plain = not reading.balance.prefilling.high and Unsure.PREEMPTED not in reading.balance.causes
        if row["phase"] == "aborted" and plain:
            assert reading.balance.live.width <= reading.running * BLOCK
            pinned += 1
    assert pinned >= 10


@pytest.mark.parametrize("name", RECORDINGS)
def test_after_the_load_everything_is_back(name):
    row, _, reading = measured(name)[-1]
    assert (row["running"], row["held_blocks"], row["live_tokens"]) == (0, 0, 0)
    assert (reading.balance.held, reading.balance.live, reading.balance.used) == (0, Span.exact(0), Span.exact(0))


@pytest.mark.parametrize("name", RECORDINGS)
def test_an_idle_pool_that_was_full_is_nearly_all_cached_and_said_so(name):
    """At the end a few of 256 blocks are bare; the least is below by one or two for each that ran at once."""
    row, _, reading = measured(name, known=True)[-1]
    assert row["cached_blocks"] >= 250
    assert reading.sheet.figure("cached").low >= {"in-step": 150, "ahead": 60}[name] * BLOCK
    assert reading.sheet.ledger[Account.CACHED] == reading.sheet.figure("cached").low
