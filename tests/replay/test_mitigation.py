"""The mitigation table."""

from dataclasses import replace

from kvledger.ledger import Account
from kvledger.pool import Kind, Policy, parse_policy
from kvledger.replay import Clock, Pool, Settings, replay
from kvledger.replay.mitigation import mitigate

from .by_hand import workload
from .random_traffic import traffic

SETTINGS = Settings(max_model_len=900, max_num_seqs=128, clock=Clock(base=0.01, a=2e-5, b=1e-4, c=1e-8))
POOL = Pool(bytes_per_token=12, memory_bytes=200_000)


def table(policy="exact", *, pool=POOL, requests=None, settings=SETTINGS, base=None):
    requests = requests or traffic(1500, rate=400.0)
    parsed = parse_policy(policy, base=base)
    before = replay(requests, parsed, pool=pool, settings=settings)
    return before, list(mitigate(requests, parsed, pool=pool, settings=settings, before=before))


def test_every_mitigation_of_the_design_has_a_row_and_the_cure_comes_last():
    _, rows = table()
    assert [row.change for row in rows] == [
        "max_seq_len 450", "max_seq_len 225", "first fit", "next fit", "worst fit", "buddy allocator",
        "buffer of 56 tokens", rows[7].change, "block tables of 16", "block tables of 32", "block tables of 128",
    ]  # fmt: skip
    assert rows[7].change.startswith("restart every")


def test_the_placement_in_use_is_not_among_the_changes():
    _, rows = table("exact@buddy")
    changes = [row.change for row in rows]
    assert "best fit" in changes
    assert "buddy allocator" not in changes


def test_a_smaller_longest_sequence_rejects_and_cuts_and_says_how_many():
    _, rows = table()
    outcome = rows[1].outcome
    rejected = sum(outcome.rejected.values())
    assert rejected > 0
    assert rows[1].price == f"rejects {rejected:,} of 1,500 requests, cuts the answers of {outcome.truncated:,}"


def test_a_longest_sequence_that_cannot_be_halved_has_no_such_row():
    _, rows = table(requests=workload((0, 1, 1), (0, 1, 1)), settings=Settings(max_model_len=2))
    assert not any(row.change.startswith("max_seq_len") for row in rows)


def test_another_allocator_changes_placement_only():
    before, rows = table()
    for row in rows[2:5]:
        assert row.outcome.finished == before.finished
        assert row.outcome.headline_ratio[Account.INTERNAL] == 0.0
        assert row.price == "none"


def test_a_buffer_is_internal_and_what_no_longer_fits_is_counted():
    """Pool 10, max_model_len 9: a request of 9 fits bare, not with 1 token of buffer in steps of 5."""
    base = Policy(name="", kind=Kind.PAGED, granularity_tokens=5, block_size=2)
    pool = Pool(bytes_per_token=1, capacity_tokens=10)
    before, rows = table(
        "exact", pool=pool, requests=workload((0, 8, 2), (0, 1, 1)), settings=Settings(max_model_len=10), base=base
    )
    row = next(row for row in rows if row.change.startswith("buffer"))
    assert before.finished == 2
    assert row.outcome.finished == 1
    assert row.price.endswith("; 1 request no longer fits")


def test_restarts_clear_the_books_and_cure_nothing():
    slow = replace(SETTINGS, clock=Clock(base=1.0))
    before, rows = table(settings=slow)
    outcome = rows[7].outcome
    assert outcome.restarts >= 4
    assert outcome.recomputed_tokens > 0
    assert f"{outcome.restarts} restarts of 60 s each (assumed)" in rows[7].price
    assert outcome.makespan_seconds > before.makespan_seconds
    assert outcome.end_to_end.mean > before.end_to_end.mean
    wasted = [o.saturated_ratio[Account.RESERVED] for o in (before, outcome)]
    assert wasted[1] > 0.9 * wasted[0]


def test_block_tables_remove_reservation_and_holes():
    before, rows = table("max")
    for row in rows[-3:]:
        assert row.outcome.headline_ratio[Account.RESERVED] == 0.0
        assert row.outcome.headline_ratio[Account.EXTERNAL] == 0.0
        assert row.outcome.saturated_running > before.saturated_running


def test_every_row_has_the_same_memory_also_when_it_is_given_in_blocks():
    """1,040 blocks are those of the policy: 16 tokens. Block tables of 128 get an eighth of the blocks, not as many."""
    before, rows = table(pool=Pool(bytes_per_token=12, num_blocks=1040))
    assert before.capacity_bytes == 1040 * 16 * 12
    assert {row.outcome.capacity_bytes for row in rows} == {before.capacity_bytes}


def test_block_tables_keep_the_watermark_that_was_set():
    base = Policy(name="", kind=Kind.PAGED, watermark_ratio=0.5)
    _, rows = table(base=base)
    assert rows[-1].outcome.saturated_ratio[Account.FREE] > 0.3


def test_a_pool_without_one_large_block_leaves_that_row_out():
    _, rows = table(
        pool=Pool(bytes_per_token=1, capacity_tokens=40),
        requests=workload((0, 5, 3)),
        settings=Settings(max_model_len=9),
    )
    assert [row.change for row in rows][-2:] == ["block tables of 16", "block tables of 32"]


def test_traffic_served_before_the_first_restart_says_so():
    _, rows = table(requests=workload((0, 5, 3)))
    row = next(row for row in rows if row.change.startswith("restart"))
    assert row.change == "restart every 2 min"
    assert row.outcome.restarts == 0
    assert row.price == "not reached: the traffic is served in 0 s"


def test_restarts_of_a_long_run_come_every_hour():
    _, rows = table(requests=workload((0, 5, 3), (100_000, 5, 3)), settings=replace(SETTINGS, clock=Clock(base=1000.0)))
    row = next(row for row in rows if row.change.startswith("restart"))
    assert row.change == "restart every 1.0 h"
