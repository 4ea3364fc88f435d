"""What is found in replays, next to replays in which it must not be found."""

from kvledger.findings.finding import Trade
from kvledger.ledger import Account, Accuracy
from kvledger.replay import Pool, parse_clock

from .replayed import find, report_on, run, same, scenario


def test_reservation_dominates_and_block_tables_give_it_back():
    traffic = same(60, 40, 40)
    found = find(traffic, scenario("max"), scenario("paged"))["KV001"]
    before, after = run(traffic, scenario("max")), run(traffic, scenario("paged"))
    reserved = before.headline_ratio[Account.RESERVED] * before.capacity_bytes
    tails = after.headline_ratio[Account.INTERNAL] * after.capacity_bytes
    assert found.subject == "`max`"
    assert found.returned == round(reserved) - round(tails)
    assert found.best.trade is Trade.TRADE_OFF
    assert found.size.accuracy is Accuracy.DERIVED
    assert f"{after.mean_running:.1f} requests run at a time instead of {before.mean_running:.1f}" in found.best.proof


def test_a_reservation_that_is_used_is_no_finding():
    assert "KV001" not in find(same(60, 380, 19), scenario("max"), scenario("paged"))


def test_block_tables_reserve_nothing():
    assert "KV001" not in find(same(60, 40, 40), scenario("paged"))


def test_holes_that_refuse_the_head_of_the_queue_are_found():
    traffic = same_but_long()
    found = find(traffic, scenario("exact@first", tokens=1000))
    assert found["KV003"].size.low > 10
    assert found["KV003"].returned > 0
    assert "although enough is free" in found["KV003"].sentence


def same_but_long():
    """Short and long requests in turn, so that what the short ones leave does not hold the long ones."""
    from tests.replay.by_hand import workload

    return workload(*[(0.0, 30 + 170 * (i % 3 == 2), 20 + 11 * (i % 5)) for i in range(60)])


def test_extents_of_one_length_leave_no_holes():
    assert "KV003" not in find(same(60, 40, 10), scenario("exact@first", tokens=1000))


def test_large_blocks_and_short_requests_waste_tails():
    found = find(same(60, 40, 10), scenario("paged@128"))["KV004"]
    assert found.best.setting.startswith("blocks of 16 tokens")
    assert 0 < found.returned <= found.size.low


def test_blocks_of_sixteen_are_not_too_large():
    assert "KV004" not in find(same(60, 40, 10), scenario("paged@16"))


def test_large_blocks_that_are_full_are_not_too_large():
    assert "KV004" not in find(same(60, 128, 1), scenario("paged@64", tokens=1024))


PRESSED = same(80, 20, 150)


def test_a_pool_that_preempts_is_found_with_every_way_out():
    dear = parse_clock("0.01,1e-2,1e-4,0")  # what is computed again takes longer than it would have waited
    found = find(PRESSED, scenario("paged", tokens=Pool(bytes_per_token=2, memory_bytes=2000), clock=dear))["KV010"]
    settings = [remedy.setting for remedy in found.remedies]
    assert any(setting.startswith("max_num_seqs") for setting in settings)
    assert any("fp8" in setting for setting in settings)
    assert any("of KV memory" in setting for setting in settings)
    assert all(remedy.trade is Trade.TRADE_OFF and remedy.worse for remedy in found.remedies)
    assert all("instead of" in remedy.proof for remedy in found.remedies)
    assert found.size.accuracy is Accuracy.MODELLED
    assert found.returned > 0


def test_a_pool_that_is_full_without_preemptions_does_not_thrash():
    assert "KV010" not in find(same(80, 150, 1), scenario("paged"))


IDLE = same(20, 40, 10, every=5.0)


def test_a_pool_far_larger_than_the_load_is_found_and_the_smaller_one_serves_alike():
    found = find(IDLE, scenario("paged", tokens=Pool(bytes_per_token=2**12, memory_bytes=2**30)))["KV020"]
    assert found.best.setting.startswith("--kv-cache-memory-bytes ")
    wanted = int(found.best.setting.split()[-1])
    assert wanted >= 400 * 2**12
    assert found.returned > 0.9 * 2**30


def test_a_pool_in_which_requests_wait_is_not_too_large():
    assert "KV020" not in find(same(80, 40, 10), scenario("paged", max_num_seqs=2))


def test_a_pool_that_one_request_of_the_longest_length_needs_is_not_too_large():
    tight = scenario("paged", tokens=Pool(bytes_per_token=2**12, memory_bytes=2**21), max_model_len=500)
    assert "KV020" not in find(IDLE, tight)


def test_findings_are_ranked_by_what_they_give_back():
    report = report_on(same(60, 40, 40), scenario("max"), scenario("pow2"), scenario("paged@64"))
    returned = [finding.returned for finding in report.findings]
    assert returned == sorted(returned, reverse=True)
    assert returned


def test_without_proofs_nothing_is_told_and_the_codes_are_named():
    report = report_on(PRESSED, scenario("paged", tokens=Pool(bytes_per_token=2, memory_bytes=2000)), proofs=False)
    assert report.findings == ()
    assert "KV010" in report.unproved


def test_what_was_replayed_already_is_proof_enough():
    report = report_on(same(60, 40, 40), scenario("max"), scenario("paged"), proofs=False)
    assert [finding.code for finding in report.findings] == ["KV001"]
