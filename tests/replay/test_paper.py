"""Figures 2 and 18 of the PagedAttention paper (SOSP'23), reproduced from a seed."""

from dataclasses import replace

import numpy as np
import pytest

from kvledger.ledger import Account
from kvledger.pool import Kind, Policy, parse_policy
from kvledger.replay import Pool, Settings, replay
from kvledger.replay.clock import roofline_clock
from kvledger.sources.files import load_trace

SLOTS = 15_728  # 12 GiB / 819,200 bytes per token of OPT-13B
PUBLISHED = {  # token states, reservation, internal fragmentation, external and others; mean batch; its tolerance
    "max@buddy": ((20.4, 13.3, 57.3, 8.9), 7.00, 0.05),
    "pow2@buddy": ((26.8, 17.9, 13.6, 41.6), 9.81, 0.05),
    "exact@buddy": ((38.2, 25.2, 0.0, 36.6), 13.62, 0.05),
    "paged": ((96.3, 0.0, 0.0, 3.7), 30.42, 0.15),
}


def outcome_of(policy, *, shape="sigma=1.2,shape=1.4"):
    workload = load_trace(f"synthetic:sharegpt,requests=50000,rate=inf,{shape}").workload
    return replay(
        workload,
        parse_policy(policy, base=Policy(name="", kind=Kind.PAGED, watermark_ratio=10.5 / 983)),
        pool=Pool(bytes_per_token=819_200, memory_bytes=12 * 2**30),
        settings=Settings(max_model_len=2048, max_num_seqs=1024, max_num_batched_tokens=2**20),
    )


@pytest.mark.parametrize("policy", PUBLISHED)
def test_every_cell_of_figure_2_is_within_two_points(policy):
    cells, batch, tolerance = PUBLISHED[policy]
    outcome = outcome_of(policy)
    view = outcome.paper_ratio
    ours = (view.token_states, view.reservation, view.internal_fragmentation, view.external_and_others)
    assert sum(ours) == pytest.approx(1.0)
    assert [100 * cell for cell in ours] == pytest.approx(cells, abs=2.0)
    assert outcome.saturated_running == pytest.approx(batch, rel=tolerance)


@pytest.mark.parametrize("placement", ["buddy", "best"])
def test_max_reservation_holds_exactly_seven_requests_and_leaves_8_85_percent(placement):
    """7 * 2,048 = 14,336 of 15,728 slots; 1 - 14,336 / 15,728 = 8.85 %."""
    outcome = outcome_of(f"max@{placement}")
    assert outcome.peak_running == 7
    assert outcome.saturated_running == pytest.approx(7.0, abs=0.001)
    assert outcome.paper_ratio.external_and_others == pytest.approx(1 - 7 * 2048 / SLOTS, abs=1e-5)


@pytest.mark.parametrize("policy", ["pow2", "exact"])
def test_best_fit_wastes_less_than_the_buddy_allocator(policy):
    buddy, best = outcome_of(f"{policy}@buddy"), outcome_of(f"{policy}@best")
    assert best.paper_ratio.external_and_others < buddy.paper_ratio.external_and_others - 0.15
    assert best.saturated_ratio[Account.INTERNAL] == 0.0


OPT_13B_ON_A100 = roofline_clock(
    name="OPT-13B on an A100 of 40 GB",
    parameters=13e9,
    bandwidth_bytes_per_second=1555e9,
    flops_per_second=312e12,
    bytes_per_token=819_200,
)


def seconds_a_token(name, rate, *, overhead):
    """Mean end-to-end seconds a token by block size: the normalised latency of Figure 18."""
    workload = load_trace(f"synthetic:{name},requests=2000,rate={rate}").workload
    clock = replace(OPT_13B_ON_A100, block_overhead_tokens=overhead)
    found = {}
    for block in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        outcome = replay(
            workload,
            parse_policy(f"paged@{block}"),
            pool=Pool(bytes_per_token=819_200, memory_bytes=12 * 2**30),
            settings=Settings(max_model_len=2048, max_num_seqs=256, clock=clock),
        )
        found[block] = float(np.mean((outcome.latencies[2] - workload.arrival_seconds) / workload.output_tokens))
    return found


@pytest.mark.parametrize(("name", "rate", "best"), [("sharegpt", 2, (16, 32, 64, 128)), ("alpaca", 40, (16, 32, 64))])
def test_blocks_of_middle_size_are_best_as_in_figure_18(name, rate, best):
    """The overhead of 3.7 tokens is from section 7.1: 20 to 26 % slower at blocks of 16 is 3.2 to 4.2 tokens."""
    seconds = seconds_a_token(name, rate, overhead=3.7)
    fastest = min(seconds.values())
    assert min(seconds, key=seconds.get) in best
    assert max(seconds[block] for block in best) < 1.25 * fastest
    assert seconds[1] > seconds[2] > seconds[4] > seconds[8] > seconds[16]
    assert seconds[1] > 4 * fastest
    assert seconds[256] > 1.5 * fastest


@pytest.mark.parametrize(("name", "rate"), [("sharegpt", 2), ("alpaca", 40)])
def test_without_an_overhead_only_the_memory_side_of_figure_18_is_left(name, rate):
    seconds = seconds_a_token(name, rate, overhead=0.0)
    assert seconds[1] == pytest.approx(seconds[16], rel=0.05)
    assert seconds[256] > 1.5 * seconds[16]
