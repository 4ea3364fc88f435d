"""Growing extents inside segments that round as PyTorch's caching allocator does."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvledger.ledger import Account
from kvledger.pool import Growth, Kind, Policy, parse_policy
from kvledger.replay import Pool, Settings, Workload, replay

from .plain_replay import PlainReplay

TOKEN_BYTES = 30_000
MIB = 2**20


def workload_of(lengths):
    prompts, outputs = (np.array(column, np.int32) for column in zip(*lengths, strict=True))
    return Workload(arrival_seconds=np.zeros(len(lengths)), prompt_tokens=prompts, output_tokens=outputs)


def ledgers(lengths, policy, pool, scheduler):
    chunks = []
    outcome = replay(workload_of(lengths), policy, pool=pool, settings=scheduler, series=chunks.append)
    return outcome, np.concatenate([chunk.accounts for chunk in chunks]) if chunks else np.zeros((0, 7))


@settings(max_examples=80, deadline=None)
@example([(223, 38), (392, 30)], Growth.EXACT, 54_525_952, 3, 50)  # what cannot grow has given back free segments
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=25),
    st.sampled_from(list(Growth)),
    st.integers(2 * MIB, 200 * MIB),
    st.sampled_from([3, 16]),
    st.sampled_from([50, 4096]),
)
def test_every_step_equals_a_plain_allocator_of_segments(lengths, growth, memory, seqs, budget):
    policy = Policy(name="grow", kind=Kind.GROW, growth=growth, segments=True, growth_step_tokens=16)
    pool = Pool(bytes_per_token=TOKEN_BYTES, memory_bytes=memory)
    scheduler = Settings(max_model_len=1000, max_num_seqs=seqs, max_num_batched_tokens=budget)
    outcome, rows = ledgers(lengths, policy, pool, scheduler)
    plain = PlainReplay(
        [(0.0, p, o, 0) for p, o in lengths],
        kind="grow",
        units=memory // 512,
        placement="segments",
        growth=growth.value,
        growth_step=16,
        max_len=1000,
        max_seqs=seqs,
        budget=budget,
        token_bytes=TOKEN_BYTES,
    ).run()
    expected = []
    for row in plain.rows:
        used, held, external = row["used"] * TOKEN_BYTES, row["held"] * 512, row["external"] * 512
        expected.append([used, 0, 0, held - used, external, memory // 512 * 512 - held - external, 0])
    assert rows.tolist() == expected
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert outcome.preemptions == plain.preemptions
    again = replay(workload_of(lengths), policy, pool=pool, settings=scheduler)
    assert again.steps == outcome.steps
    assert again.mean_ratio == pytest.approx(outcome.mean_ratio, abs=1e-9)


def test_a_large_extent_takes_a_segment_of_twenty_mebibytes_and_leaves_the_rest_to_others():
    """100 tokens of 30,000 bytes are 3,000,000 bytes, 5,860 units of 512: internal is 320 bytes, 17.1 MiB stay free.

    A pool of 20 MiB therefore holds six of them in one segment: 6 * 5,860 * 512 = 18,001,920 of 20,971,520 bytes.
    """
    pool = Pool(bytes_per_token=TOKEN_BYTES, memory_bytes=20 * MIB)
    outcome, rows = ledgers([(100, 1)] * 9, parse_policy("grow@segments"), pool, Settings(max_model_len=200))
    order = list(Account)
    assert outcome.peak_running == 6
    assert rows[0][order.index(Account.USED)] == 18_000_000
    assert rows[0][order.index(Account.INTERNAL)] == 6 * 320


def test_extents_up_to_one_mebibyte_share_small_segments():
    """30 tokens are 900,000 bytes, 1,758 units: two fit a segment of 4,096 units, so 3 segments hold 6 requests."""
    pool = Pool(bytes_per_token=TOKEN_BYTES, memory_bytes=6 * MIB)
    outcome, _ = ledgers([(30, 1)] * 9, parse_policy("grow@segments"), pool, Settings(max_model_len=200))
    assert outcome.peak_running == 6
