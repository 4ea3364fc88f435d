"""Tables are as large as what can be live, whatever the longest request of a trace is."""

import dataclasses

import numpy as np
import pytest

from kvledger.errors import CapacityError
from kvledger.pool import Kind, Policy, parse_policy
from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup
from kvledger.replay import Pool, Settings, Workload, replay
from kvledger.replay.table_size import size_tables

MILLION = 1_000_000
GROUPS = BlockGroups(
    groups=tuple(
        LayerGroup(kind=kind, block_tokens=16, span_tokens=span, payload_bytes=16)
        for kind, span in ((GroupKind.FULL, 0), (GroupKind.WINDOW, 64))
    ),
    block_bytes=16,
)


def with_one_enormous(requests, samples=None):
    rng = np.random.default_rng(3)
    prompts, outputs = rng.integers(10, 60, requests), rng.integers(1, 20, requests)
    prompts[requests // 2] = MILLION - 50
    return Workload(
        arrival_seconds=np.zeros(requests),
        prompt_tokens=prompts,
        output_tokens=outputs,
        samples=None if samples is None else np.full(requests, samples),
    )


def test_no_row_is_longer_than_what_fits_and_no_table_is_there_without_a_request():
    size = size_tables(
        with_one_enormous(20), Settings(max_model_len=2**20), fitting_tokens=320, block_tokens=16, rows=1
    )
    assert (size.slots, size.longest_tokens, size.longest_blocks) == (21, 320, 22)


def test_no_more_tables_are_there_than_run_at_a_time_and_one_that_waits():
    settings = Settings(max_model_len=2**20, max_num_seqs=8)
    size = size_tables(with_one_enormous(20), settings, fitting_tokens=2**30, block_tokens=16, rows=1)
    assert size.slots == 9
    assert size.longest_tokens >= MILLION - 49


def test_tables_that_cannot_be_kept_are_refused_with_their_number_before_anything_is_allocated():
    settings = Settings(max_model_len=2**20, max_num_seqs=20_000)
    workload = with_one_enormous(30_000)
    longest = workload.longest_tokens
    blocks = -(-longest // 16) + 2
    with pytest.raises(
        CapacityError, match=rf"20,001 tables of 2 rows.*{longest:,} tokens have {20_001 * 2 * blocks:,}"
    ):
        size_tables(workload, settings, fitting_tokens=2**30, block_tokens=16, rows=2)


@pytest.mark.parametrize("units", [2000, 200_000])
@pytest.mark.parametrize("kind", ["forks", "groups", "prefix"])
def test_one_request_of_a_million_tokens_is_served_or_rejected_beside_many_short_ones(kind, units):
    """62,500 blocks do not fit 2,000, and do fit 200,000; all others are served either way."""
    policy = {
        "forks": parse_policy("paged"),
        "groups": Policy(name="groups", kind=Kind.PAGED, groups=GROUPS),
        "prefix": dataclasses.replace(parse_policy("paged"), prefix_caching=True),
    }[kind]
    outcome = replay(
        with_one_enormous(2000, samples=2 if kind == "forks" else None),
        policy,
        pool=Pool(bytes_per_token=1, num_blocks=units, block_size=16),
        settings=Settings(max_model_len=2**20),
    )
    served = 1999 if units == 2000 else 2000
    assert (outcome.finished, sum(outcome.rejected.values())) == (served, 2000 - served)


@pytest.mark.parametrize("policy", ["paged:blocks", "paged:radix"])
def test_samples_of_a_prompt_that_is_rejected_cost_no_names_for_its_blocks(policy):
    """Two thousand million tokens have more blocks than can be named; the request is rejected, the other is served."""
    workload = Workload(
        arrival_seconds=np.zeros(2),
        prompt_tokens=np.array([2**31 - 1, 40], np.int32),
        output_tokens=np.array([5, 5], np.int32),
        samples=np.array([2, 2], np.int32),
    )
    base = Policy(name="", kind=Kind.PAGED, block_size=1)
    outcome = replay(
        workload,
        parse_policy(policy, base=base),
        pool=Pool(bytes_per_token=1, num_blocks=200, block_size=1),
        settings=Settings(max_model_len=100),
    )
    assert (outcome.finished, sum(outcome.rejected.values())) == (1, 1)
