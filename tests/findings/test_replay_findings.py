"""What is found in replays, next to replays in which it must not be found."""

from kvledger.findings.finding import Trade
from kvledger.ledger import Account, Accuracy
from kvledger.pool import Kind, Policy
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


def test_promises_that_are_never_kept_are_found():
    """Requests write 40 tokens and may write 360: nine times as many."""
    traffic = same(60, 40, 40)
    found = find(traffic, scenario("no-evict"))["KV002"]
    assert "may write 9.0 times the tokens" in found.sentence
    settings = [remedy.setting for remedy in found.remedies]
    assert settings == ["max_tokens 40", "capacity_scheduler_policy: MAX_UTILIZATION (TensorRT-LLM)"]
    assert found.remedies[0].trade is Trade.SAFE
    assert "KV002" in find(traffic, scenario("upfront"))


def test_a_limit_of_the_longest_answers_cuts_a_few_and_says_so():
    from tests.replay.by_hand import workload

    traffic = workload(*[(0.0, 40, 40 if n else 200) for n in range(200)])
    found = find(traffic, scenario("upfront"))["KV002"]
    assert found.remedies[0].setting == "max_tokens 40"
    assert found.remedies[0].worse == "1 answer cut"


def test_promises_that_are_kept_are_no_finding():
    assert "KV002" not in find(same(60, 40, 40, limit=50), scenario("no-evict"))


def test_a_policy_that_promises_nothing_has_no_promises_to_break():
    assert "KV002" not in find(same(60, 40, 40), scenario("paged"))


def test_a_buffer_beside_each_extent_is_found_and_costs_nothing_to_leave_out():
    padded = scenario("exact", base=Policy(name="", kind=Kind.PAGED, buffer_tokens=100))
    found = find(same(60, 100, 50), padded)["KV005"]
    assert found.best.setting == "no buffer"
    assert found.best.trade is Trade.SAFE
    assert found.returned > 0


def test_powers_of_two_hold_more_than_half_a_grain():
    found = find(same(60, 100, 50), scenario("exact@buddy", tokens=1024))["KV005"]
    assert found.best.setting == "best fit instead of powers of two"


def test_extents_of_the_exact_length_have_no_grain():
    assert "KV005" not in find(same(60, 100, 50), scenario("exact"))


def test_large_pages_of_virtual_memory_are_too_large():
    pool = Pool(bytes_per_token=2**12, memory_bytes=2**27, tensors_per_token=2)
    found = find(same(60, 40, 10), scenario("vmm", tokens=pool))["KV004"]
    assert found.best.setting == "pages of 64.00 KiB"
    small = Pool(bytes_per_token=2**12, memory_bytes=2**27, tensors_per_token=2, vmm_page_bytes=2**16)
    assert "KV004" not in find(same(60, 40, 10), scenario("vmm", tokens=small))


def test_a_cache_that_grows_by_copying_needs_its_longest_request_twice():
    found = find(same(10, 100, 50, every=9.0), scenario("grow"))["KV006"]
    assert found.size.low == 150
    assert "KV006" not in find(same(10, 100, 50, every=9.0), scenario("paged"))


def test_a_padded_batch_of_unequal_rows_wastes_and_one_of_equal_rows_does_not():
    from tests.replay.by_hand import workload

    unequal = workload(*[(0.0, 20, 5 if n % 4 else 300) for n in range(40)])
    found = find(unequal, scenario("static-batch"))["KV007"]
    assert "times as fast" in found.best.proof
    assert "KV007" not in find(same(40, 300, 1), scenario("static-batch"))


def test_a_full_pool_without_preemptions_has_nothing_more_to_give():
    found = find(same(200, 200, 8), scenario("paged", tokens=Pool(bytes_per_token=2, memory_bytes=1952)))["KV011"]
    assert found.best.setting.startswith("fp8")
    assert "KV011" not in find(same(80, 150, 1, every=9.0), scenario("paged"))


def test_a_request_larger_than_the_pool_is_found_with_what_it_needs():
    """160 tokens fit; 170 of 171 are stored, for 11 blocks of 16."""
    from tests.replay.by_hand import workload

    pool = Pool(bytes_per_token=2, memory_bytes=320)
    found = find(workload((0.0, 100, 71), (1.0, 20, 5)), scenario("paged", tokens=pool))["KV012"]
    assert "1 request never fits" in found.sentence
    assert {remedy.setting.split()[0] for remedy in found.remedies} == {"fp8", "384"}
    assert "KV012" not in find(workload((0.0, 100, 61), (1.0, 20, 5)), scenario("paged", tokens=pool))


def test_seats_that_hold_requests_back_are_found():
    found = find(same(80, 40, 10), scenario("paged", max_num_seqs=2))["KV014"]
    assert found.best.setting == "max_num_seqs 17 (`--max-num-seqs`)"
    assert found.returned > 0.5 * 1000
    assert "KV014" not in find(same(80, 40, 10), scenario("paged", max_num_seqs=40))


def test_prompts_that_are_refused_by_length_are_told_from_those_that_do_not_fit():
    from tests.replay.by_hand import workload

    traffic = workload((0.0, 120, 5), (1.0, 20, 5))
    found = find(traffic, scenario("paged", max_model_len=100))
    assert found["KV015"].best.setting == "max_model_len 126 (`--max-model-len`)"
    assert "KV012" not in found
    assert "KV015" not in find(traffic, scenario("paged"))


def test_a_longest_length_far_above_the_traffic_costs_only_those_who_reserve_it():
    traffic = same(60, 40, 10)
    reserving = find(traffic, scenario("max"))["KV021"]
    assert reserving.best.setting == "max_model_len 51"
    assert reserving.returned > 500
    paged = find(traffic, scenario("paged"))["KV021"]
    assert paged.remedies == ()
    assert "lowering it frees nothing" in paged.sentence
    assert "KV021" not in find(traffic, scenario("paged", max_model_len=200))


def sharing(count, shared):
    """Return requests of 100 tokens that begin alike."""
    from dataclasses import replace

    import numpy as np

    from kvledger.replay import SharedPrefix

    traffic = same(count, 100, 10, every=0.05)
    return replace(traffic, content=SharedPrefix(tokens=np.full(count, shared, np.int32)))


def test_shared_prefixes_without_a_cache_are_found_and_safe_to_share():
    found = find(sharing(40, 64), scenario("paged"))["KV030"]
    assert found.best.trade is Trade.SAFE
    assert found.returned > 0
    assert "KV030" not in find(sharing(40, 0), scenario("paged"))
    assert "KV030" not in find(same(40, 100, 10, every=0.05), scenario("paged"))


def test_a_prefix_cache_that_finds_nothing_is_explained():
    caching = Policy(name="", kind=Kind.PAGED, prefix_caching=True)
    found = find(sharing(40, 0), scenario("paged", base=caching))["KV031"]
    assert found.remedies == ()
    assert "KV031" not in find(sharing(40, 64), scenario("paged", base=caching))


def test_extents_of_coarse_grain_are_found():
    coarse = scenario("exact", base=Policy(name="", kind=Kind.PAGED, granularity_tokens=128))
    found = find(same(60, 100, 50), coarse)["KV005"]
    assert found.best.setting == "extents of whole tokens"


def test_samples_share_their_prompt_when_seats_are_counted():
    """4 samples of 40 + 4 x 10 tokens: 20 a sequence, so 49 fit 992; 9 in 10 of them are proposed."""
    from dataclasses import replace

    import numpy as np

    traffic = replace(same(80, 40, 10), samples=np.full(80, 4, np.int32))
    found = find(traffic, scenario("paged", max_num_seqs=8))["KV014"]
    assert found.best.setting == "max_num_seqs 44 (`--max-num-seqs`)"


def test_short_prompts_below_a_wide_block_are_counted():
    from dataclasses import replace

    from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup

    def wide(tokens, *, caching=True):
        group = LayerGroup(kind=GroupKind.FULL, block_tokens=tokens, payload_bytes=2 * tokens)
        groups = BlockGroups(groups=(group,), block_bytes=2 * tokens)
        base = Policy(name="", kind=Kind.PAGED, prefix_caching=caching)
        case = scenario("paged", tokens=Pool(bytes_per_token=2, memory_bytes=2**14), base=base, max_model_len=600)
        return replace(case, policy=replace(case.policy, groups=groups))

    traffic = same(30, 256, 10)
    assert "30 of 30 prompts have at most 256 tokens" in find(traffic, wide(256))["KV032"].sentence
    assert "KV032" not in find(same(30, 257, 10), wide(256))
    assert "KV032" not in find(traffic, wide(128))
    assert "KV032" not in find(traffic, wide(256, caching=False))
