"""Ledgers of three requests under each policy, computed by hand before they were run.

One byte a token, one second a step. Rows are [used, reserved, internal, external, free].
"""

import pytest

from kvledger.ledger import Account
from kvledger.pool import Kind, Policy, parse_policies
from kvledger.replay import Pool

from .by_hand import run

A, B, C = (0, 4, 3), (0, 3, 2), (0, 2, 2)


def test_max_reserves_the_longest_sequence_for_each():
    """Pool 20, max_model_len 8: A and B take 8 each, C waits for 8 with 4 free.

    Step 1: A computes 4, B 3: used 7 of 16 held. Step 2: 5 + 4 = 9, B ends. Step 3: C joins with 2: A 6 + C 2 = 8,
    A ends. Step 4: C 3.
    """
    outcome, rows = run([A, B, C], "max", tokens=20)
    assert rows == [[7, 9, 0, 0, 4], [9, 7, 0, 0, 4], [8, 8, 0, 0, 4], [3, 5, 0, 0, 12]]
    assert (outcome.steps, outcome.makespan_seconds, outcome.finished) == (4, 4.0, 3)
    assert (outcome.refused_while_free, outcome.preemptions, outcome.rejected) == (0, 0, {})


def test_saturated_means_are_over_the_steps_after_which_a_request_waits():
    """C waits after steps 1 and 2 only: used (7 + 9) / 2 = 8 of 20, reserved 8 of 20; two requests run."""
    outcome, _ = run([A, B, C], "max", tokens=20)
    assert outcome.saturated_seconds == 2.0
    assert outcome.saturated_running == 2.0
    assert outcome.saturated_ratio[Account.USED] == pytest.approx(8 / 20)
    assert outcome.saturated_ratio[Account.RESERVED] == pytest.approx(8 / 20)
    assert outcome.mean_ratio[Account.USED] == pytest.approx((7 + 9 + 8 + 3) / 4 / 20)
    assert outcome.headline_ratio == outcome.saturated_ratio
    assert outcome.utilisation == pytest.approx(0.4)


def test_the_papers_view_splits_what_is_reserved_by_whether_it_will_be_used():
    """While C waits A will never use 8 - (4 + 3 - 1) = 2 tokens and B 8 - (3 + 2 - 1) = 4: 6 of 20 is never used.

    Token states 8 / 20; reservation (8 - 6) / 20; internal 6 / 20; the 4 free tokens are external and others.
    """
    view = run([A, B, C], "max", tokens=20)[0].paper_ratio
    assert view.token_states == pytest.approx(0.4)
    assert view.reservation == pytest.approx(0.1)
    assert view.internal_fragmentation == pytest.approx(0.3)
    assert view.external_and_others == pytest.approx(0.2)


def test_the_three_factors_multiply_to_the_utilisation():
    """Length 8 / 16, block 16 / 16, usable 16 / 20: 0.5 * 1 * 0.8 = 0.4."""
    factors = run([A, B, C], "max", tokens=20)[0].factors
    assert (factors.length_ratio, factors.block_efficiency) == (pytest.approx(0.5), pytest.approx(1.0))
    assert factors.usable_share == pytest.approx(0.8)
    assert factors.product == pytest.approx(0.4)


def test_pow2_reserves_the_power_of_two_above_the_output():
    """Pool 16. A 4 + 4 = 8, B 3 + 2 = 5; C asks 2 + 2 = 4 with 3 free and waits; B ends and C takes its place."""
    outcome, rows = run([A, B, C], "pow2", tokens=16)
    assert rows == [[7, 6, 0, 0, 3], [9, 4, 0, 0, 3], [8, 4, 0, 0, 4], [3, 1, 0, 0, 12]]
    assert outcome.refused_while_free == 0


def test_exact_leaves_holes_that_are_external():
    """Pool 10. A takes 2 + 1 = 3 at 0, B 2 + 2 = 4 at 3; C asks 5.

    Step 1: 3 free, C would not fit anyway. A ends. Step 2: holes of 3 and 3: six free and no place for 5, so
    5 * (1 - 0) = 5 are external and 1 is free; C is refused while free. B ends. Step 3: C has the pool.
    """
    outcome, rows = run([(0, 2, 1), (0, 2, 2), (0, 4, 1)], "exact", tokens=10)
    assert rows == [[4, 3, 0, 0, 3], [3, 1, 0, 5, 1], [4, 1, 0, 0, 5]]
    assert outcome.refused_while_free == 1
    assert outcome.saturated_ratio[Account.EXTERNAL] == pytest.approx(2.5 / 10)


def test_declared_reserves_what_the_request_says_it_may_need():
    """Pool 12. A declares 4: 2 + 4 = 6; B declares nothing: 3 + (8 - 3) = 8 waits with 6 free; C behind it waits too.

    A ends after one step, though it reserved 6. B then runs alone (8), C (1 + 2 = 3) beside it: 11 of 12.
    """
    outcome, rows = run([(0, 2, 1, 4), (0, 3, 1), (0, 1, 1, 2)], "declared", tokens=12)
    assert rows == [[2, 4, 0, 0, 6], [4, 7, 0, 0, 1]]
    assert outcome.saturated_never_used_ratio == pytest.approx((6 - 2) / 12)


def test_paged_wastes_only_the_tail_of_the_last_block():
    """Five blocks of 2. Step 1: 3 + 4 + 2 tokens in 2 + 2 + 1 blocks: 1 of 10 is a tail. C ends.

    Step 2: 4 + 5 tokens in 2 + 3 blocks. B ends. Step 3: A has 5 tokens in 3 blocks, 2 blocks are free.
    """
    outcome, rows = run([(0, 3, 3), (0, 4, 2), (0, 2, 1)], "paged@2", tokens=10)
    assert rows == [[9, 0, 1, 0, 0], [9, 0, 1, 0, 0], [5, 0, 1, 0, 4]]
    assert outcome.saturated_seconds == 0
    assert outcome.headline_ratio == outcome.mean_ratio


def test_a_request_without_a_block_is_preempted_and_computed_again():
    """Four blocks of 2. Step 2: A fills its second block, B needs a third: B, the last admitted, loses its two.

    Step 3: A takes a third block; B asks ceil(5 / 2) = 3 with 1 free. A ends. Step 4: B computes all 5 again.
    """
    outcome, rows = run([(0, 3, 3), (0, 4, 3)], "paged@2", tokens=8)
    assert rows == [[7, 0, 1, 0, 0], [4, 0, 0, 0, 4], [5, 0, 1, 0, 2], [5, 0, 1, 0, 2], [6, 0, 0, 0, 2]]
    assert (outcome.preemptions, outcome.recomputed_tokens, outcome.saturated_seconds) == (1, 4, 2.0)
    assert outcome.refused_while_free == 0


@pytest.mark.parametrize("policy", ["upfront@2", "no-evict@2"])
def test_a_promise_is_reserved_memory_in_paged_engines_too(policy):
    """Six blocks of 2. A may need 3 + 4 = 7 tokens (4 blocks), B 2 + 2 = 4 (2 blocks), C 1 + 2 = 3 (2 blocks) waits.

    Step 1: used 3 + 2, kept 7 + 4, held 12: reserved 6, internal 1. B ends. Step 2: A 4 + C 1 of kept 7 + 3, held 12.
    While C waits 7 - 4 = 3 of A and 4 - 2 = 2 of B are never used.
    """
    outcome, rows = run([(0, 3, 2, 4), (0, 2, 1, 2), (0, 1, 1, 2)], policy, tokens=12)
    assert rows == [[5, 6, 1, 0, 0], [5, 5, 2, 0, 0]]
    assert outcome.paper_ratio.internal_fragmentation == pytest.approx(5 / 12)
    assert outcome.paper_ratio.reservation == pytest.approx(1 / 12)


def test_growing_exactly_copies_everything_at_every_token():
    """Pool 10. A at [0,2), B [2,5), C [5,9); B and C end. A needs 3: best fit in [2,10), copies 2; needs 4, copies 3.

    Step 3: A at [5,9): holes [0,5) and [9,10), C asked 4 last: 4 * (floor(6 / 4) - 1) = 0 are external.
    """
    outcome, rows = run([(0, 2, 3), (0, 3, 1), (0, 4, 1)], "grow", tokens=10)
    assert rows == [[9, 0, 0, 0, 1], [3, 0, 0, 0, 7], [4, 0, 0, 0, 6]]
    assert outcome.copied_tokens == 5


def test_growing_by_doubling_copies_less_and_holds_more():
    """Pool 12. A holds 2 at [0,2), then 4 at [2,6) for its third and fourth token: one copy of 2, one token internal.

    Then the holes are [0,2) and [6,12). C asked 4 last: 4 * (floor(8 / 4) - floor(2 / 4) - floor(6 / 4)) = 4 external.
    """
    outcome, rows = run([(0, 2, 3), (0, 3, 1), (0, 4, 1)], "grow@doubling", tokens=12)
    assert rows == [[9, 0, 1, 0, 2], [3, 0, 1, 4, 4], [4, 0, 0, 4, 4]]
    assert outcome.copied_tokens == 2


def test_a_growing_request_that_can_never_be_placed_is_rejected_not_repeated_for_ever():
    """Pool 9, one token a step. 1 at [0,1), 2 at [1,3), 3 at [3,6): the holes are 3 and 3, and 4 fits in neither.

    The last size and the one before it need 4 + 3 = 7 of 9, so it was admitted; twice in vain is enough.
    """
    outcome, rows = run([(0, 4, 1)], "grow", tokens=9, max_num_batched_tokens=1)
    assert outcome.rejected == {"cannot_grow": 1}
    assert (outcome.finished, outcome.preemptions) == (0, 2)
    assert [row[0] for row in rows] == [1, 2, 3, 0, 1, 2, 3, 0]


def test_a_static_batch_pads_every_row_to_the_longest_and_waits_for_it():
    """Pool 12. A and B: 2 * (3 + 2) = 10; with C it would be 15. A batch holds its 10 to the end.

    Step 1: A 2 + B 3 used; kept (2 + 2) + (3 + 2) = 9; A's left padding is 1. Step 2: B has ended: A 3 of kept 4, 6
    internal. C would have fitted in the 2 free tokens. Step 3: C alone.
    """
    outcome, rows = run([(0, 2, 2), (0, 3, 1), (0, 1, 1)], "static-batch", tokens=12)
    assert rows == [[5, 4, 1, 0, 2], [3, 1, 6, 0, 2], [1, 1, 0, 0, 10]]
    assert outcome.refused_while_free == 2
    assert outcome.end_to_end.max == 3.0


def test_the_buddy_allocator_rounds_every_extent_to_a_power_of_two():
    """Pool 13 = 8 + 4 + 1. A asks 3 and takes 4, B asks 5 and takes 8, C asks 2 and only the 1 is left.

    Step 1: used 5, kept 8, held 12. A ends. Step 2: C takes half of A's block: used 4 + 1, kept 5 + 2, held 8 + 2.
    """
    outcome, rows = run([(0, 2, 1), (0, 3, 2), (0, 1, 1)], "exact@buddy", tokens=13)
    assert rows == [[5, 3, 4, 0, 1], [5, 2, 3, 0, 3]]
    assert outcome.refused_while_free == 0


def test_a_buffer_and_a_granularity_are_internal():
    """A asks align_up(3 + 1, 4) = 4, B align_up(5 + 1, 4) = 8: held 12, kept 8, used 5."""
    base = Policy(name="", kind=Kind.PAGED, buffer_tokens=1, granularity_tokens=4)
    _, rows = run([(0, 2, 1), (0, 3, 2)], "exact", tokens=13, base=base)
    assert rows[0] == [5, 3, 4, 0, 1]


def test_pages_of_each_layer_hold_whole_tokens_and_pad_the_rest():
    """One layer, 6 bytes a token, 3 a tensor; a page of 10 bytes holds 3 tokens. 100 bytes are 5 pairs of pages.

    4 tokens take two pairs, 40 bytes, of which 24 are used: 16 are internal.
    """
    pool = Pool(bytes_per_token=6, memory_bytes=100, tensors_per_token=2, vmm_page_bytes=10)
    outcome, rows = run([(0, 4, 1)], "vmm", tokens=pool)
    assert rows == [[24, 0, 16, 0, 60]]
    assert outcome.unit_tokens == 3


def test_prompts_in_chunks_are_admitted_with_the_first_chunk():
    """Two tokens a step. The prompt of 5 is computed as 2 + 2 + 1; a block of 2 is taken for each chunk."""
    outcome, rows = run([(0, 5, 1)], "paged@2", tokens=8, max_num_batched_tokens=2)
    assert rows == [[2, 0, 0, 0, 6], [4, 0, 0, 0, 4], [5, 0, 1, 0, 2]]
    assert outcome.first_token.max == 3.0


def test_the_watermark_keeps_blocks_free_only_when_something_is_scheduled():
    """Four blocks, a quarter kept free. A takes 2; B asks 2 of the 2 free, one of which must stay."""
    base = Policy(name="", kind=Kind.PAGED, watermark_ratio=0.25)
    outcome, rows = run([(0, 3, 1), (0, 4, 1)], "paged@2", tokens=8, base=base)
    assert rows == [[3, 0, 1, 0, 4], [4, 0, 0, 0, 4]]
    assert outcome.refused_while_free == 1


def test_one_seat_runs_one_request_at_a_time():
    outcome, _ = run([A, B, C], "paged@2", tokens=100, max_num_seqs=1)
    assert (outcome.peak_running, outcome.peak_waiting, outcome.steps) == (1, 2, 3 + 2 + 2)
    assert outcome.saturated_running == 1.0


@pytest.mark.parametrize("policy", [policy.name for policy in parse_policies("all")])
def test_what_can_never_run_is_counted_by_reason(policy):
    """max_model_len 8: a prompt of 8 leaves no room to answer. A request of 7 + 1 cannot fit a pool of 4."""
    pool = Pool(bytes_per_token=2, capacity_tokens=4, tensors_per_token=2, vmm_page_bytes=1)
    base = Policy(name="", kind=Kind.PAGED, block_size=1)
    outcome, rows = run([(0, 8, 1), (0, 7, 1), (0, 9, 9)], policy, tokens=pool, base=base)
    assert outcome.rejected == {"prompt_too_long": 2, "larger_than_pool": 1}
    assert (outcome.finished, outcome.requests, rows) == (0, 3, [])
    assert set(outcome.mean_ratio.values()) == {0.0}
    assert outcome.queue is outcome.first_token is outcome.end_to_end is None


def test_answers_are_cut_at_max_tokens_and_at_the_longest_sequence():
    """A declares 2 of its 5; B has 8 - 3 = 5 of its 7. Both are cut and both finish."""
    outcome, _ = run([(0, 2, 5, 2), (0, 3, 7)], "paged@2", tokens=100)
    assert (outcome.truncated, outcome.finished, outcome.output_tokens) == (2, 2, 2 + 5)


def test_time_jumps_over_idle_stretches_which_count_in_no_mean():
    """Two requests of one step each, an hour apart: busy 2 s of a makespan of 3601 s."""
    outcome, rows = run([(0, 4, 1), (3600, 2, 1)], "exact", tokens=10)
    assert [row[0] for row in rows] == [4, 2]
    assert (outcome.busy_seconds, outcome.makespan_seconds) == (2.0, 3601.0)
    assert outcome.mean_ratio[Account.USED] == pytest.approx((4 + 2) / 2 / 10)
