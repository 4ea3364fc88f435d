"""Histograms of lengths and the tails of blocks, against counting by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.replay import Workload
from kvledger.traces.lengths import BLOCK_SIZES, tabulate_lengths


def workload(*pairs):
    prompts, outputs = zip(*pairs, strict=True)
    return Workload(
        arrival_seconds=np.zeros(len(pairs)),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(outputs, np.int32),
    ).check()


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=30))
def test_every_request_is_in_the_bin_of_its_length(pairs):
    table = tabulate_lengths(workload(*pairs))
    edges = table.edges.tolist()
    assert len(edges) < 100
    for counts, lengths in (
        (table.prompt_requests, [p for p, _ in pairs]),
        (table.output_requests, [o for _, o in pairs]),
        (table.total_requests, [p + o for p, o in pairs]),
    ):
        expected = [sum(a <= n < b for n in lengths) for a, b in pairwise(edges)]
        assert counts.tolist() == expected
        assert sum(expected) == len(pairs)


def test_the_tail_of_a_block_by_hand():
    """Stored: 16, 17 and 40 tokens; blocks of 16 leave 0, 15 and 8 slots empty of 16, 32 and 48."""
    tail = tabulate_lengths(workload((10, 7), (10, 8), (40, 1))).tails[BLOCK_SIZES.index(16)]
    assert tail.tail_tokens == pytest.approx(23 / 3)
    assert tail.tail_ratio == pytest.approx(23 / 96)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=30))
def test_smaller_blocks_never_lose_more(pairs):
    tails = [tail.tail_tokens for tail in tabulate_lengths(workload(*pairs)).tails]
    assert tails == sorted(tails)
